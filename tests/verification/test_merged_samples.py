"""Gauges that begin again with each sample, of heads merged with a batch: confirmed for all sizes, or not at all."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.rewrite import rewrite
from normdeploy.verification.derivation.checker import check_derivation

HEADS, WIDTH, PLACES = 3, 2, 4
CHANNELS = HEADS * WIDTH
ORDER = np.arange(CHANNELS)
MERGED = f"""<ir_version: 10, opset_import: ["": 20]>
net (double[N,{CHANNELS},{PLACES}] x, double[M,{PLACES},{PLACES}] z) => (double[B,{CHANNELS},{PLACES}] y)
<int64[4] four = {{-1, {HEADS}, {WIDTH}, {PLACES}}}, int64[3] heads = {{-1, {WIDTH}, {PLACES}}},
 int64[3] whole = {{-1, {CHANNELS}, {PLACES}}}> {{
  v = Conv (x, w, b) h = Reshape (v, heads) t = Transpose <perm = [0, 2, 1]> (h)
  p = Softmax (z) m = MatMul (p, t) u = Transpose <perm = [0, 2, 1]> (m) r = Reshape (u, whole)
  """


def sizes(*batches: int) -> list[dict[str, tuple[int, ...]]]:
    return [{"x": (n, CHANNELS, PLACES), "z": (HEADS * n, PLACES, PLACES)} for n in batches]


def graph(text: str, given: dict[str, np.ndarray]) -> ir.Model:
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in given.items())
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def numbers() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(CHANNELS, CHANNELS, 1)), "b": rng.normal(size=CHANNELS)}
    scale = rng.uniform(0.5, 2, (CHANNELS, 1)) * rng.choice([-1, 1], (CHANNELS, 1))
    return weights | {"s": scale, "d": rng.normal(size=(CHANNELS, 1))}


def source(merged: str = MERGED) -> ir.Model:
    """A map of all channels behind the heads."""
    return graph(f"{merged} a = Mul (r, s) n = Add (a, d) y = Relu (n) }}", numbers())


def is_confirmed(order: np.ndarray = ORDER, batches: tuple[int, ...] = (1, 2), merged: str = MERGED) -> bool:
    """Tell whether a file is, in whose Conv the map's numbers are, in an order; a hint says what the Conv writes."""
    given = numbers()
    scale, shift = (given[name].reshape(-1)[order] for name in "sd")
    weights = {"w": given["w"] * scale[:, None, None], "b": given["b"] * scale + shift}
    hint = Hint("v", "v", "", (1 / scale)[:, None], (-shift / scale)[:, None])
    file = graph(f"{merged} y = Relu (r) }}", weights)
    return check_derivation(source(merged), file, Derivation((hint,)), sizes(*batches)).confirmed


@pytest.mark.parametrize("batches", [(1, 2), (2, 4), (3, 5)], ids=str)
def test_a_map_of_all_channels_behind_merged_heads(batches):
    assert is_confirmed(batches=batches)
    assert not is_confirmed(np.roll(ORDER, WIDTH), batches)  # another head's numbers
    assert not is_confirmed(ORDER.reshape(HEADS, WIDTH)[:, ::-1].reshape(-1), batches)  # another channel's of the head


def test_what_rewriting_makes_of_it_is_confirmed_for_every_input():
    given = source()
    result = rewrite(given)
    assert [row.action for row in result.ledger] == ["folded"]
    assert check_derivation(given, result.model, result.derivation, sizes(1, 2)).confirmed


@pytest.mark.parametrize("order", [ORDER, ORDER.reshape(HEADS, WIDTH).T.reshape(-1)], ids=str)
def test_heads_in_front_of_the_samples_are_not_confirmed(order):
    """(heads, samples): which head a row is of depends on how many samples there are."""
    turned = "g = Reshape (v, four) k = Transpose <perm = [1, 0, 2, 3]> (g) h = Reshape (k, heads)"
    assert not is_confirmed(order, merged=MERGED.replace("h = Reshape (v, heads)", turned))


@pytest.mark.parametrize("between", ["Softsign (h)", "Add (h, table)", "Relu (h)"])
def test_what_begins_again_passes_products_and_movement_alone(between):
    """What is right to pass, as Relu with scales above 0, would need a law of its own; nothing is guessed."""
    merged = MERGED.replace("t = Transpose", f"f = {between} t = Transpose").replace("[0, 2, 1]> (h)", "[0, 2, 1]> (f)")
    merged = merged.replace("<int64[4]", "<double[1] table = {0.5}, int64[4]")
    assert not is_confirmed(merged=merged)
