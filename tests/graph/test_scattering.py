"""ScatterElements and ScatterND: each update goes where its index says, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator

REDUCTIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "none": lambda _, update: update,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
KINDS = {"double": np.float64, "int64": np.int64, "bool": np.bool_}


def evaluated(call: str, x: np.ndarray, places: np.ndarray, updates: np.ndarray, kind: str = "double") -> np.ndarray:
    shapes = [",".join(map(str, array.shape)) for array in (x, places, updates)]
    given = f"{kind}[{shapes[0]}] x, int64[{shapes[1]}] i, {kind}[{shapes[2]}] u"
    graph = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": 18]> g ({given}) => ({kind} y) {{ y = {call}(x, i, u) }}'
    )
    return Evaluator(graph).run({"x": x, "i": places, "u": updates})["y"].numpy()


def drawn(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.normal(size=shape) * 4).astype(KINDS[kind]) if kind != "bool" else rng.random(shape) < 0.5


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", ["double", "int64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements(axis: int, kind: str, reduction: str) -> None:
    rng = np.random.default_rng(0)
    x, updates = drawn(rng, kind, (4, 5, 3)), drawn(rng, kind, (3, 4, 2))
    places = rng.integers(-x.shape[axis], x.shape[axis], updates.shape)
    want = x.copy()
    for at in np.ndindex(updates.shape):
        where = list(at)
        where[axis] = places[at]
        want[tuple(where)] = REDUCTIONS[reduction](want[tuple(where)], updates[at])
    found = evaluated(f'ScatterElements<axis = {axis}, reduction = "{reduction}">', x, places, updates, kind)
    np.testing.assert_allclose(found, want, rtol=1e-15)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("count", [(6,), (2, 3), (0,)])
def test_slices(count: tuple[int, ...], depth: int, reduction: str) -> None:
    rng = np.random.default_rng(depth)
    x = drawn(rng, "double", (2, 3, 4))
    places = np.stack([rng.integers(-size, size, count) for size in x.shape[:depth]], -1).reshape(*count, depth)
    updates, want = drawn(rng, "double", (*count, *x.shape[depth:])), x.copy()
    for at in np.ndindex(count):
        where = tuple(places[at])
        want[where] = REDUCTIONS[reduction](want[where], updates[at])
    found = evaluated(f'ScatterND<reduction = "{reduction}">', x, places, updates)
    np.testing.assert_allclose(found, want, rtol=1e-15)


def test_truth_values() -> None:
    x, places = np.array([True, False, True]), np.array([[0], [-2]])
    assert evaluated("ScatterND", x, places, np.array([False, True]), "bool").tolist() == [False, True, True]


@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("wrong", [3, -4])
def test_an_index_outside_is_refused(operator: str, wrong: int) -> None:
    places = np.array([wrong]) if operator == "ScatterElements" else np.array([[wrong]])
    with pytest.raises(GraphError, match=operator):
        evaluated(operator, np.zeros(3), places, np.ones(1))
