"""SVMClassifier: what onnx's reference implementation says, but for how pairs of classes make probabilities.

There the products of two rows are summed where each stands for itself; libsvm and onnxruntime solve the system that was
published (Wu, Lin and Weng, "Probability estimates for multi-class classification by pairwise coupling", JMLR 5, 2004,
section 4.2)::

    min over p of 1/2 sum_i sum_{j != i} (r_ji p_i - r_ij p_j)^2,   sum p = 1, p >= 0

and stop where no component of its gradient is further than 0.005 / k from the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.ops.aionnxml.op_svm_classifier import SVMClassifier as Reference

from normdeploy.array_types import Floats

_STEPS, _ENOUGH = 100, 0.005
_LEAST = 1e-7
"""The least probability of one class of two."""


class SVMClassifier(Reference):
    """The operator of ai.onnx.ml; onnx finds it by this name."""

    op_domain = "ai.onnx.ml"

    def _probabilities(self, scores: Floats, class_count_: int) -> Floats:
        """Return the probability of each class for one sample.

        Args:
            scores: of each pair of classes. class_count_: how many classes there are.
        """
        attributes: Any = self._svm.atts
        pairs = np.zeros((class_count_, class_count_), scores.dtype)
        for index, (i, j) in enumerate(zip(*np.triu_indices(class_count_, 1), strict=True)):
            odds = scores[index] * attributes.prob_a[index] + attributes.prob_b[index]
            pairs[i, j] = np.clip(1 / (1 + np.exp(odds)), _LEAST, 1 - _LEAST)  # where exp is infinite, 0
            pairs[j, i] = 1 - pairs[i, j]
        return coupled(pairs)


def coupled(pairs: Floats) -> Floats:
    """Return the probabilities of k classes.

    Args:
        pairs: r_ij, the probability of class i where it is i or j; [k, k], 0 on the diagonal.
    """
    count = len(pairs)
    system = -pairs.T * pairs
    np.fill_diagonal(system, (pairs**2).sum(0))
    found = np.full(count, 1 / count, pairs.dtype)
    for _ in range(_STEPS):
        gradient = system @ found
        mean = float(found @ gradient)
        if np.abs(gradient - mean).max() < _ENOUGH / count:
            break
        for i in range(count):
            step = (mean - gradient[i]) / system[i, i]
            found[i] += step
            mean = (mean + step * (step * system[i, i] + 2 * gradient[i])) / (1 + step) ** 2
            gradient = (gradient + step * system[i]) / (1 + step)
            found /= 1 + step
    return found
