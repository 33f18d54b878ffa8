"""The table of traits cannot lie: each operator is run in float64, and has the traits it is seen to have, no others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from operator_calls import CALLS, OperatorCall
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph.operators import OPERATORS
from normdeploy.graph.operators.sequences import SEQUENCES
from normdeploy.graph.traits import TRAITS, Trait, has, kind_of, kinds

SEEDS = range(3)


def _strange(x: Tensor) -> Tensor:
    """Map numbers to others, not monotonically, and 0 not to 0."""
    return 0.3 + torch.cos(3 * x) if x.is_floating_point() else x


def _equal(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    return bool(torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))


def _replaced(operands: list[Tensor], index: int, value: Tensor) -> list[Tensor]:
    return [value if at == index else x for at, x in enumerate(operands)]


def _mapped(call: OperatorCall, operands: list[Tensor], change: Callable[[Tensor], Tensor]) -> list[Tensor]:
    return [change(x) if at in call.data else x for at, x in enumerate(operands)]


def _floats(results: list[Tensor]) -> list[Tensor]:
    return [y for y in results if y.is_floating_point()]


def _always(holds: Callable[[OperatorCall, list[Tensor], int], bool]) -> Callable[[OperatorCall], bool]:
    known: dict[int, bool] = {}

    def observed(call: OperatorCall) -> bool:
        if id(call) not in known:  # calls live as long as their table
            known[id(call)] = all(holds(call, call.operands(seed), seed) for seed in SEEDS)
        return known[id(call)]

    return observed


@_always
def keeps_order(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    return x[0].is_floating_point() and _equal(call.run(x)[0].reshape(-1), x[0].reshape(-1))


@_always
def permutes(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    y = _floats(call.run(x))
    same = len(y) == 1 and x[0].is_floating_point() and _equal(y[0].reshape(-1).sort()[0], x[0].reshape(-1).sort()[0])
    return same and moves_once(call, x)


def moves_once(call: OperatorCall, x: list[Tensor]) -> bool:
    if not x[0].is_floating_point():
        return False
    y, z = _floats(call.run(x)), _floats(call.run(_replaced(x, 0, _strange(x[0]))))
    return bool(y) and any(a.numel() for a in y) and all(_equal(_strange(a), b) for a, b in zip(y, z, strict=True))


@_always
def moves(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    return moves_once(call, x)


@_always
def repeats(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    if not moves_once(call, x):
        return False
    counts = call.run(x)[0].reshape(-1).unique(return_counts=True)[1]
    return len(counts) == x[0].numel() and int(counts.min()) == int(counts.max()) > 1


@_always
def joins(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    if len(call.data) < 2 or len(call.data) < len(x) or not all(v.is_floating_point() for v in x):
        return False
    y, z = call.run(x), call.run(_mapped(call, x, _strange))
    return all(_equal(_strange(a), b) for a, b in zip(y, z, strict=True))


@_always
def pointwise(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    y = call.run(x)[0]
    if y.dim() < 2 or any(x[at].shape != y.shape and not _broadcasts_to(x[at], y) for at in call.data):
        return False
    generator = torch.Generator().manual_seed(seed)
    other = call.operands(seed + 100)
    place = torch.rand(y.shape, generator=generator) < 0.5
    for at in call.data:
        if x[at].shape != y.shape:
            continue
        changed = call.run(_replaced(x, at, torch.where(place, other[at], x[at])))[0]
        if changed.shape != y.shape or not _equal(changed[~place], y[~place]):
            return False
    rolled = [torch.roll(v, (1, 1, 1, 1)[: v.dim()], tuple(range(v.dim()))) if v.shape == y.shape else v for v in x]
    if any(v.shape not in (y.shape, ()) for at, v in enumerate(x) if at in call.data):
        return False
    return _equal(call.run(rolled)[0], torch.roll(y, (1,) * y.dim(), tuple(range(y.dim()))))


def _broadcasts_to(x: Tensor, y: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(x.shape, y.shape) == y.shape
    except RuntimeError:
        return False


@_always
def broadcasts(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    if len(call.data) < 2 or not pointwise(call) or (call.data[0] != 0 and x[0].is_floating_point()):
        return False
    for at in range(len(x)):
        small = x[at][:1, :, :, :1]
        try:
            narrow, wide = call.run(_replaced(x, at, small)), call.run(_replaced(x, at, small.expand(x[at].shape)))
        except Exception:
            return False
        if not _equal(narrow[0], wide[0]) or _inferred(call, _replaced(x, at, small)) != list(wide[0].shape):
            return False
    return True


def _inferred(call: OperatorCall, operands: list[Tensor]) -> list[int]:
    """Return the shape of the result as ONNX's own inference has it: some kernels take more than the standard."""
    if call.kind[0]:
        return list(call.run(operands)[0].shape)
    types = [onnx.helper.np_dtype_to_tensor_dtype(x.numpy().dtype) for x in operands]
    inputs = [
        onnx.helper.make_tensor_value_info(f"x{index}", kind, list(x.shape))
        for index, (kind, x) in enumerate(zip(types, operands, strict=True))
    ]
    result = onnx.ValueInfoProto(name="y0")
    graph = onnx.helper.make_graph([ir.to_proto(call.node())], "one", inputs, [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 22)])
    shape = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape
    return [dim.dim_value for dim in shape.dim]


@_always
def adds(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    other = call.operands(seed + 100)
    if len(call.data) < 2 or len(call.data) < len(x) or not pointwise(call) or not x[0].is_floating_point():
        return False
    y, z, total = call.run(x)[0], call.run(other)[0], call.run([a + b for a, b in zip(x, other, strict=True)])[0]
    return y.is_floating_point() and _equal(total, y + z)


@_always
def commutes(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    return len(x) == 2 and x[0].shape == x[1].shape and _equal(call.run(x)[0], call.run(x[::-1])[0])


@_always
def compares(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    return len(x) == 2 and pointwise(call) and x[0].is_floating_point() and call.run(x)[0].dtype == torch.bool


def monotone(call: OperatorCall) -> bool:
    if sizes(call):
        return False
    changed = False
    for seed in SEEDS:
        x, other = call.operands(seed), call.operands(seed + 50)[0]
        if not x[0].is_floating_point():
            return False
        x[0], other = x[0].nan_to_num(), other.nan_to_num()
        mixed = torch.where(other < other.median(), other, x[0])  # half may change, the others stay
        low, high = torch.minimum(x[0], mixed), torch.maximum(x[0], mixed)
        a, b = call.run(_replaced(x, 0, low))[0], call.run(_replaced(x, 0, high))[0]
        places = a.dtype in (torch.int32, torch.int64)
        if a.shape != b.shape or places or not (a.double() <= b.double() + 1e-12).all():
            return False
        changed |= not torch.equal(a, b)
    return changed


@_always
def homogeneous(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    if not x[0].is_floating_point() or call.kind[1] in ("Acos", "Asin", "Atanh"):
        return False
    ys = _floats(call.run(x))
    for s in (0.37, 2.9):
        zs = _floats(call.run(_replaced(x, 0, s * x[0])))
        if not ys or not all(_equal(s * y, z) for y, z in zip(ys, zs, strict=True)):
            return False
    return not sizes(call) and bool(ys[0].any())


@_always
def sums(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    if not x[0].is_floating_point() or moves_once(call, x) or pointwise(call) or exact(call):
        return False
    other = call.operands(seed + 100)[0]
    y, z = call.run(x)[0], call.run(_replaced(x, 0, other))[0]
    alone = len(call.data) == 1 and monotone(call)
    return alone and _equal(call.run(_replaced(x, 0, x[0] + other))[0], y + z)


@_always
def reduces(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    y = call.run(x)[0]
    if not x[0].is_floating_point() or x[0].dim() != 4 or y.dim() != 4 or len(call.data) > 1:
        return False
    folded = [axis for axis in range(4) if x[0].shape[axis] > 1 and y.shape[axis] == 1]
    if not folded or any(y.shape[axis] != x[0].shape[axis] for axis in range(4) if axis not in folded):
        return False
    return all(_equal(call.run(_replaced(x, 0, x[0].roll(1, axis)))[0], y) for axis in folded)


def pools(call: OperatorCall) -> bool:
    x = call.operands(0)
    y = call.run(x)[0]
    if not x[0].is_floating_point() or y.dim() != 4 or y.shape[:2] != x[0].shape[:2] or y.numel() >= x[0].numel():
        return False
    other = x[0].clone()
    other[:, 1] = call.operands(9)[0][:, 1]
    z = call.run(_replaced(x, 0, other))[0]
    alone = torch.equal(z[:, [0, 2, 3]], y[:, [0, 2, 3]]) and not torch.equal(z[:, 1], y[:, 1])
    return alone and len(x) == 1


@_always
def weighs(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    if len(call.data) < 2 or x[0].dtype == torch.bool or call.data[:2] != (0, 1):
        return False
    if not _floats(call.run(x)) and x[0].is_floating_point():
        return False
    zeros = _replaced(x, 1, torch.zeros_like(x[1]))
    return _same_for(call, zeros, 0, call.operands(seed + 100)[0])


@_always
def multiplies(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    if not weighs(call):
        return False
    zeros = _replaced(x, 0, torch.zeros_like(x[0]))
    return _same_for(call, zeros, 1, call.operands(seed + 100)[1])


def _same_for(call: OperatorCall, x: list[Tensor], at: int, other: Tensor) -> bool:
    y, z = call.run(x), call.run(_replaced(x, at, other))
    return all(bool(a.to(torch.float64).isfinite().all()) and _equal(a, b) for a, b in zip(y, z, strict=True))


@_always
def normalizes(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    if not x[0].is_floating_point() or x[0].dim() != 4 or pointwise(call) or call.data[:2] == (0, 2):
        return False
    plain = [torch.ones_like(v) if at == 1 and 1 in call.data else v for at, v in enumerate(x)]
    plain = [torch.zeros_like(v) if at == 2 and 2 in call.data else v for at, v in enumerate(plain)]
    y = call.run(plain)[0]
    if y.shape != x[0].shape or not y.is_floating_point():
        return False
    unit = abs(float(y.square().mean()) - 1) < 1e-6
    return unit and all(_equal(call.run(_replaced(plain, 0, s * x[0]))[0], y, 1e-6) for s in (0.37, 2.9))


@_always
def by_row(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    if not normalizes(call):
        return False
    y = call.run(x)[0]
    try:
        return _equal(call.run(_replaced(x, 0, x[0][1:, 2:3, 4:5]))[0], y[1:, 2:3, 4:5])
    except GraphError:  # its parameters count the channels
        return False


@_always
def centres(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    return normalizes(call) and _equal(call.run(_replaced(x, 0, x[0] + 0.8))[0], call.run(x)[0], 1e-6)


def decides(call: OperatorCall) -> bool:
    """Some result is the same for small changes of any operand of data, and another for other operands."""
    steps = None
    for seed in SEEDS:
        x, other = (_mapped(call, call.operands(at), torch.nan_to_num) for at in (seed, seed + 100))
        if not all(x[at].is_floating_point() for at in call.data):
            return False
        near = _mapped(call, x, lambda v: v * (1 + 1e-11))
        y, z, far = call.run(x), call.run(near), call.run(other)
        still = [a.shape == b.shape and torch.equal(a, b) for a, b in zip(y, z, strict=True)]
        steps = still if steps is None else [a and b for a, b in zip(steps, still, strict=True)]
        jumps = [a.shape != b.shape or not torch.equal(a, b) for a, b in zip(y, far, strict=True)]
        if not any(a and b for a, b in zip(steps, jumps, strict=True)):
            return False
    return True


@_always
def exact(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    single = [v.to(torch.float32) if v.is_floating_point() else v for v in x]
    y, z = call.run(single, torch.float32), call.run([v.double() if v.is_floating_point() else v for v in single])
    return all(a.shape == b.shape and torch.equal(a.double(), b.double()) for a, b in zip(y, z, strict=True))


@_always
def sizes(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    other = call.operands(seed + 100)
    y, z = call.run(x), call.run(_replaced(x, 0, other[0]))
    return not torch.equal(x[0], other[0]) and all(_equal(a, b) for a, b in zip(y, z, strict=True))


@_always
def shaped(call: OperatorCall, x: list[Tensor], seed: int) -> bool:
    if len(x) < 2 or x[1].dtype != torch.int64 or x[1].dim() != 1:
        return False
    y = call.run(x)[0]
    try:
        return torch.equal(call.run(_replaced(x, 1, torch.tensor(y.shape)))[0], y)
    except Exception:
        return False


_SEEN: dict[Trait, Callable[[OperatorCall], bool]] = {
    Trait.KEEPS_ORDER: keeps_order,
    Trait.PERMUTES: permutes,
    Trait.MOVES: moves,
    Trait.REPEATS: repeats,
    Trait.JOINS: joins,
    Trait.POINTWISE: pointwise,
    Trait.BROADCASTS: broadcasts,
    Trait.ADDS: adds,
    Trait.COMMUTES: commutes,
    Trait.COMPARES: compares,
    Trait.MONOTONE: monotone,
    Trait.HOMOGENEOUS: homogeneous,
    Trait.SUMS: sums,
    Trait.REDUCES: reduces,
    Trait.POOLS: pools,
    Trait.WEIGHS: weighs,
    Trait.MULTIPLIES: multiplies,
    Trait.NORMALIZES: normalizes,
    Trait.BY_ROW: by_row,
    Trait.CENTRES: centres,
    Trait.DECIDES: decides,
    Trait.EXACT: exact,
    Trait.SIZES: sizes,
    Trait.SHAPED: shaped,
}
"""What shows each trait."""

_IEEE = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Sqrt": np.sqrt}


@pytest.mark.parametrize("kind", list(CALLS), ids=lambda kind: "::".join(filter(None, kind)))
def test_an_operator_has_the_traits_it_is_seen_to_have_and_no_others(kind: tuple[str, str]) -> None:
    calls, declared = CALLS[kind], TRAITS[kind]
    seen = Trait(0)
    for trait, shows in _SEEN.items():
        if all(shows(call) for call in calls):
            seen |= trait
    if declared & Trait.CONVERTS:
        seen &= ~Trait.EXACT  # the evaluator holds every float in one type: what a narrower one rounds is not seen
    assert declared & ~(Trait.CONVERTS | Trait.ROUNDED_ONCE) == seen


def test_every_operator_of_the_table_is_run_but_those_that_draw_and_the_old_name_of_resize() -> None:
    drawing = {kind for kind, traits in TRAITS.items() if traits == Trait.RANDOM}
    assert set(TRAITS) - set(CALLS) - drawing == {("", "Upsample")}
    assert TRAITS["", "Upsample"] == TRAITS["", "Resize"]
    assert {name for _, name in drawing} == {
        s.name for s in _specification() if s.name.startswith(("Random", "Bern", "Multi"))
    }


def test_every_standard_operator_that_is_evaluated_here_is_in_the_table() -> None:
    missing = {kind for kind in OPERATORS if not kind[0] and kind not in TRAITS and kind[1] not in SEQUENCES}
    assert not missing, "an operator of the evaluator without traits: add a row, and a call to operator_calls.py"


@pytest.mark.parametrize("kind", sorted(kinds(Trait.ROUNDED_ONCE)))
def test_what_ieee_754_fixes_is_the_exact_result_rounded_once(kind: tuple[str, str]) -> None:
    (call,) = CALLS[kind]
    for seed in SEEDS:
        single = [x.numpy().astype(np.float32) for x in call.operands(seed)]
        found = _IEEE[kind[1]](*single)
        exact64 = call.run([torch.from_numpy(x).double() for x in single])[0].numpy()
        assert np.array_equal(found, exact64.astype(np.float32))


@pytest.mark.parametrize("call", [call for kind in kinds(Trait.CONVERTS) for call in CALLS[kind]])
def test_what_converts_keeps_places_and_changes_the_type_alone(call: OperatorCall) -> None:
    x = call.operands(3)
    (y,) = call.run(x)
    assert torch.equal(y, x[0].to(y.dtype))


def test_the_two_spellings_of_the_standard_domain_are_one_and_other_domains_are_not() -> None:
    def node(domain: str) -> ir.Node:
        return ir.Node(domain, "Transpose", [ir.Value(name="x")])

    assert kind_of(node("")) == kind_of(node("ai.onnx")) == ("", "Transpose")
    assert has(node("ai.onnx"), Trait.MOVES)
    assert not any(has(node("my.own"), trait) for trait in Trait)
    assert not has(None, Trait.MOVES)


@pytest.mark.parametrize(
    ("stronger", "weaker"),
    [
        (Trait.KEEPS_ORDER, Trait.PERMUTES),
        (Trait.PERMUTES, Trait.MOVES),
        (Trait.REPEATS, Trait.MOVES),
        (Trait.MOVES, Trait.EXACT),
        (Trait.BROADCASTS, Trait.POINTWISE),
        (Trait.MULTIPLIES, Trait.WEIGHS),
        (Trait.BY_ROW, Trait.NORMALIZES),
        (Trait.CENTRES, Trait.NORMALIZES),
    ],
)
def test_a_stronger_statement_comes_with_the_weaker_one(stronger: Trait, weaker: Trait) -> None:
    assert kinds(stronger) <= kinds(weaker)


def _specification() -> list[onnx.defs.OpSchema]:
    return [schema for schema in onnx.defs.get_all_schemas() if schema.domain == ""]


def test_names_are_those_of_the_specification() -> None:
    known = {schema.name for schema in _specification()} | {"SimplifiedLayerNormalization"}  # onnxruntime's own there
    assert {name for domain, name in TRAITS if domain == ""} <= known
