r"""The effect of many mutants from one backward pass, for networks where a run per mutant would take too long.

For random signs r over an output y, <r, dy> has mean square |dy|^2. To first order <r, dy> = <J^T r, dx> with dx the
mutant's change of its site's own output, and J^T r comes from one backward pass for all sites at once. A few r give an
estimate of RMS(dy) per mutant. An estimate kills only with room to spare; what it does not kill is run exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import Evaluator
from normdeploy.verification.bounds.criteria import Bounds, rms
from normdeploy.verification.cases import Case
from normdeploy.verification.derivation.links import chain_bounds
from normdeploy.verification.mutation.mutants import Site

PROBES = 4
MARGIN = 5.0
"""An estimate must exceed the killing ratio this many times: it is first-order, and random (the mean square of four
projections exceeds 25 times its expectation with a probability below 1e-20)."""


class Sensitivities:
    """Gradients of random projections of the outputs at the sites' outputs.

    Args:
        evaluator: of the graph. case: the inputs. sites: where. seed: of the signs.
    """

    def __init__(self, evaluator: Evaluator, case: Case, sites: Sequence[Site], *, seed: int = 0) -> None:
        self.case = case
        wanted = {site.output for site in sites}
        seen: dict[str, Tensor] = {}

        def hook(node: ir.Node, results: list[Tensor]) -> list[Tensor]:
            for position, output in enumerate(node.outputs[: len(results)]):
                if output.name in wanted and results[position].is_floating_point():
                    tensor = results[position]
                    if not tensor.requires_grad:
                        tensor = tensor.requires_grad_(True)
                        results[position] = tensor
                    seen[str(output.name)] = tensor
            return results

        feeds = {k: torch.from_numpy(np.array(v)) for k, v in case.family.feeds.items()}
        with torch.enable_grad():
            outputs = evaluator.run(feeds, hook=hook)
        self._scale: list[tuple[Bounds, Bounds | None, int]] = []
        self.gradients: list[list[dict[str, Tensor]]] = []
        names = list(seen)
        generator = torch.Generator().manual_seed(seed)
        for index, y in enumerate(outputs.values()):
            if not (y.is_floating_point() and y.requires_grad and y.numel()):
                continue
            probes = []
            for _ in range(PROBES):
                signs = torch.randint(0, 2, y.shape, generator=generator).to(y.dtype).mul_(2).sub_(1)
                found = torch.autograd.grad(
                    y, [seen[n] for n in names], grad_outputs=signs, retain_graph=True, allow_unused=True
                )
                probes.append({n: g.detach() for n, g in zip(names, found, strict=True) if g is not None})
            self.gradients.append(probes)
            chain = chain_bounds(case, index) if case.chain is not None else None
            self._scale.append((case.bounds(index), chain, y.numel()))

    def ratios(self, site: Site, change: Tensor) -> tuple[float, float]:
        """Return the estimated RMS effect of a change at a site over the rounding bound and over the float64 chain's.

        Args:
            change: the mutant's output minus the right one.
        """
        worst = [0.0, 0.0]
        for probes, (bounds, chain, size) in zip(self.gradients, self._scale, strict=True):
            squares = [float((p[site.output] * change).sum()) ** 2 for p in probes if site.output in p]
            if not squares:
                continue
            effect = float(np.sqrt(np.mean(squares) / size))
            for i, against in enumerate((bounds, chain)):
                if against is not None and np.isfinite(effect):
                    worst[i] = max(worst[i], effect / _rms_bound(against))
        return worst[0], worst[1]


def _rms_bound(bounds: Bounds) -> float:
    spread = max(rms(bounds.eager), rms(bounds.spread))
    return bounds.constants.rms * spread + bounds.roundoff * rms(bounds.truth) + bounds.floor
