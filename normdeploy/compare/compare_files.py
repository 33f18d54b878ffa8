"""Compare two ONNX files."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.compare.difference import Difference, OutputDifference, WeightDifference
from normdeploy.compare.ulps import ulps_between
from normdeploy.errors import InputError, UsageError
from normdeploy.graph import load_graph
from normdeploy.graph.onnx_files import stored_tensors
from normdeploy.ort.settings import Settings
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.feeds import check_feeds
from normdeploy.runtime.predictor import Predictor
from normdeploy.runtime.samples import make_samples


def diff(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    inputs: Mapping[str, Any] | Any = None,
    sizes: Mapping[str, int] | None = None,
    batch: int = 4,
    run: bool = True,
    seed: int = 0,
) -> Difference:
    """Compare two ONNX files: operators, weights, outputs on the same inputs.

    Weights belong together by name, and where a name is only on one side, by their content. Outputs and inputs belong
    together by name, or by position where the names differ.

    Args:
        first, second: the files.
        inputs: what to feed, by the first's input names, or one array for a model of one input; made up by default:
            N(0, 1) for floats, 0 or 1 for integers.
        sizes: sizes of dynamic dimensions of made-up inputs, by word; each one but the batch needs a size.
        batch: samples of made-up inputs.
        run: compute outputs.
        seed: of made-up inputs.

    Returns:
        Difference: ``.same .operators .weights .outputs .to_dict()``.

    Raises:
        GraphError: a file is missing, invalid or cannot be run.
        InputError: the inputs do not fit.
        UsageError: a dynamic dimension has no size.

    >>> import normdeploy as nd
    >>> difference = nd.diff("plain.onnx", "folded.onnx")
    >>> difference.same, difference.operators, difference.outputs[0].largest < 1e-5
    (False, {'BatchNormalization': (1, 0)}, True)
    """
    graphs = load_graph(first), load_graph(second)
    counts = [Counter(_operator(node) for node in graph.graph.all_nodes()) for graph in graphs]
    names = sorted(counts[0].keys() | counts[1].keys())
    weights, same, alone = _weights(*graphs)
    outputs, fed = ([], {}) if not run else _outputs(Path(first), Path(second), inputs, sizes, batch, seed)
    return Difference(
        os.fspath(first),
        os.fspath(second),
        (counts[0].total(), counts[1].total()),
        {name: (counts[0][name], counts[1][name]) for name in names if counts[0][name] != counts[1][name]},
        weights,
        same,
        *alone,
        outputs,
        [f"{name} {array.dtype}{list(array.shape)}" for name, array in fed.items()],
        "" if run else "outputs were not asked for",
    )


def _operator(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _stored(model: ir.Model) -> dict[str, Array]:
    """Return every stored tensor by a name of its own; constants in attributes have their node's output's."""
    found: dict[str, Array] = {}
    for tensor, _ in stored_tensors(model):
        name = tensor.name or "constant"
        number = 2
        while name in found:
            name, number = f"{tensor.name or 'constant'} ({number})", number + 1
        found[name] = tensor.numpy()
    return found


def _weights(first: ir.Model, second: ir.Model) -> tuple[list[WeightDifference], int, tuple[list[str], list[str]]]:
    one, two = _stored(first), _stored(second)
    pairs = [(name, name) for name in one if name in two]
    contents: dict[str, list[str]] = {}
    for name in two:
        if name not in one:
            contents.setdefault(_content(two[name]), []).append(name)
    moved = ((name, contents.get(_content(one[name]))) for name in one if name not in two)
    pairs.extend((name, others.pop(0)) for name, others in moved if others)
    rows = [_weight(a, b, one[a], two[b]) for a, b in pairs]
    same = sum(row is None for row in rows)
    taken = {a for a, _ in pairs}, {b for _, b in pairs}
    alone = tuple(
        [f"{name} {array.dtype}{list(array.shape)}" for name, array in held.items() if name not in used]
        for held, used in zip((one, two), taken, strict=True)
    )
    return [row for row in rows if row is not None], same, (alone[0], alone[1])


def _content(array: Array) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return f"{array.dtype}{array.shape}{digest}"


def _weight(name: str, other: str, a: Array, b: Array) -> WeightDifference | None:
    """Return how one tensor differs; None where it does not."""
    shapes = list(a.shape), list(b.shape)
    if a.dtype == b.dtype and shapes[0] == shapes[1] and a.tobytes() == b.tobytes():
        return None
    given = (name, other, str(a.dtype), str(b.dtype), *shapes)
    if shapes[0] != shapes[1] or "S" in (a.dtype.kind, b.dtype.kind) or "O" in (a.dtype.kind, b.dtype.kind):
        return WeightDifference(*given, count=a.size, changed=a.size)
    largest, ulps = _far(a, b)
    both = (np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))) | (a == b)
    return WeightDifference(*given, int(np.sum(~both)), a.size, largest, ulps)


def _far(a: Array, b: Array) -> tuple[float, float | None]:
    """Return the largest absolute difference, and the one in units of the last place."""
    if a.size == 0:
        return 0.0, ulps_between(a, b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinity minus itself is no difference
        apart = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    return float(np.max(apart)), ulps_between(a, b)


def _outputs(
    first: Path, second: Path, inputs: Any, sizes: Mapping[str, int] | None, batch: int, seed: int
) -> tuple[list[OutputDifference], dict[str, Array]]:
    one, two = Predictor(first, Settings()), Predictor(second, Settings())
    specs = one.inputs
    if len(specs) != len(two.inputs):
        raise UsageError(
            f"{first} takes {_listed(specs)} and {second} takes {_listed(two.inputs)}; expected as many inputs of "
            "both: compare operators and weights alone (--no-run, run=False)"
        )
    if inputs is None:
        feeds = make_samples(specs, batch, sizes=sizes, seed=seed)
    else:
        feeds = check_feeds(specs, inputs if isinstance(inputs, Mapping) else {specs[0].name: inputs})
    theirs = _renamed(feeds, specs, two.inputs)
    try:
        check_feeds(two.inputs, theirs)
    except InputError:
        raise UsageError(
            f"{first} takes {_listed(specs)} and {second} takes {_listed(two.inputs)}; expected inputs that both take: "
            "compare operators and weights alone (--no-run, run=False)"
        ) from None
    results: tuple[Any, Any] = one(feeds), two(theirs)  # a dict each, for a dict given
    return [_output(*pair) for pair in _paired(*results)], feeds


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(str(spec) for spec in specs)


def _renamed(feeds: Mapping[str, Array], ours: Sequence[TensorSpec], theirs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Return the feeds under the second file's names: the same where it has them, by position otherwise."""
    names = [spec.name for spec in theirs]
    if set(names) == set(feeds):
        return dict(feeds)
    return {name: feeds[spec.name] for name, spec in zip(names, ours, strict=True)}


def _paired(one: Mapping[str, Array], two: Mapping[str, Array]) -> list[tuple[str, str, Array, Array]]:
    if set(one) == set(two):
        return [(name, name, one[name], two[name]) for name in one]
    return [(a, b, one[a], two[b]) for a, b in zip(one, two, strict=False)]


def _output(name: str, other: str, a: Array, b: Array) -> OutputDifference:
    if a.shape != b.shape or a.dtype.kind not in "fiubV" or b.dtype.kind not in "fiubV":
        return OutputDifference(name, other, list(a.shape), list(b.shape))
    largest, ulps = _far(a, b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        scale, apart = np.sqrt(np.mean(x**2)) if x.size else 0.0, np.sqrt(np.mean((x - y) ** 2)) if x.size else 0.0
    relative = float(apart / scale) if scale else float(apart)
    decides = x.ndim > 0 and x.shape[-1] > 1
    same = float(np.mean(x.argmax(-1) == y.argmax(-1))) if decides and x.size else None
    return OutputDifference(name, other, list(a.shape), list(b.shape), largest, relative, ulps, same)
