"""A bad number at any place of a graph's constants: inspect tells of it, folding does not change what is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from affine_graphs import EXAMPLES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import normdeploy as nd
from normdeploy.errors import NormdeployError
from normdeploy.graph import Evaluator, load_graph

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what is not finite

Form = tuple[list[onnx.NodeProto], dict[str, np.ndarray], tuple[int, ...]]
KINDS = {np.float32: TensorProto.FLOAT, np.float16: TensorProto.FLOAT16, np.float64: TensorProto.DOUBLE}
BAD = [np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 1e-42, 1e-30, 1e-7, 1e30, 3e38, 6e4, 1e200]


def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def vectors(rng: np.random.Generator, width: int, names: str, positive: str = "") -> dict[str, np.ndarray]:
    return {k: rng.uniform(0.5, 2, width) if k in positive.split() else rng.normal(size=width) for k in names.split()}


def behind(rng: np.random.Generator) -> Form:
    nodes = [
        node("Conv", "x w b", "c"),
        node("BatchNormalization", "c s t m v", "n"),
        node("Relu", "n", "r"),
        node("GlobalAveragePool", "r", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f w2 b2", "y"),
    ]
    more = {"w": rng.normal(size=(4, 3, 1, 1)), "w2": rng.normal(size=(4, 5)), "b2": rng.normal(size=5)}
    return nodes, {**vectors(rng, 4, "b s t m v", "s v"), **more}, (2, 3, 4, 4)


def in_front(rng: np.random.Generator) -> Form:
    nodes = [
        node("BatchNormalization", "x s t m v", "n"),
        node("Conv", "n w b", "c", pads=[1, 1, 1, 1]),
        node("Conv", "x w3 b3", "d"),
        node("Add", "c d", "e"),
        node("Relu", "e", "y"),
    ]
    more = {"w": rng.normal(size=(4, 3, 3, 3)), "w3": rng.normal(size=(4, 3, 1, 1)), **vectors(rng, 4, "b b3")}
    return nodes, {**vectors(rng, 3, "s t m v", "s v"), **more}, (2, 3, 4, 4)


def layer_norm(rng: np.random.Generator) -> Form:
    nodes = [
        node("MatMul", "x w", "a"),
        node("Add", "a b", "c"),
        node("LayerNormalization", "c s t", "n"),
        node("MatMul", "n w2", "p"),
        node("Add", "p b2", "y"),
    ]
    more = {"w": rng.normal(size=(6, 8)), "w2": rng.normal(size=(8, 5)), "b2": rng.normal(size=5)}
    return nodes, {**vectors(rng, 8, "b s t", "s"), **more}, (2, 3, 6)


def spelled(rng: np.random.Generator) -> Form:
    nodes = [
        node("ReduceMean", "x", "mu", axes=[-1]),
        node("Sub", "x mu", "c"),
        node("Mul", "c c", "q"),
        node("ReduceMean", "q", "va", axes=[-1]),
        node("Add", "va eps", "ve"),
        node("Sqrt", "ve", "sd"),
        node("Div", "c sd", "n"),
        node("Mul", "n s", "o"),
        node("Add", "o t", "p"),
        node("MatMul", "p w", "y"),
    ]
    more = {"eps": np.array([1e-5]), "w": rng.normal(size=(8, 4))}
    return nodes, {**vectors(rng, 8, "s t", "s"), **more}, (2, 3, 8)


def maps(rng: np.random.Generator) -> Form:
    nodes = [
        node("Mul", "x s", "a"),
        node("Add", "a t", "c"),
        node("Conv", "c w b", "d"),
        node("Mul", "d s2", "e"),
        node("Sub", "e t2", "f"),
        node("Div", "f dv", "y"),
    ]
    flat = {"w": rng.normal(size=(4, 3, 3, 3)), "b": rng.normal(size=4)}
    wide = {k: v.reshape(-1, 1, 1) for k, v in vectors(rng, 4, "s2 t2 dv", "s2 dv").items()}
    return (
        nodes,
        {**{k: v.reshape(-1, 1, 1) for k, v in vectors(rng, 3, "s t", "s").items()}, **flat, **wide},
        (2, 3, 4, 4),
    )


def instance(rng: np.random.Generator) -> Form:
    nodes = [
        node("ConvTranspose", "x w b", "c"),
        node("InstanceNormalization", "c s t", "n"),
        node("Mul", "n k", "y"),
    ]
    more = {"w": rng.normal(size=(3, 4, 2, 2)), "k": rng.uniform(0.5, 2, (4, 1, 1))}
    return nodes, {**vectors(rng, 4, "b s t", "s"), **more}, (2, 3, 4, 4)


def quantized(rng: np.random.Generator) -> Form:
    nodes = [
        node("QuantizeLinear", "x sx zx", "q"),
        node("DequantizeLinear", "q sx zx", "d"),
        node("Conv", "d w b", "c"),
        node("BatchNormalization", "c s t m v", "n"),
        node("Relu", "n", "y"),
    ]
    more = {"sx": np.array(0.05), "w": rng.normal(size=(4, 3, 1, 1))}
    return nodes, {**vectors(rng, 4, "b s t m v", "s v"), **more}, (2, 3, 4, 4)


def branches(rng: np.random.Generator) -> Form:
    nodes = [
        node("Conv", "x w b", "c"),
        node("Conv", "x w2 b2", "d"),
        node("Add", "c d", "e"),
        node("Conv", "e w3 b3", "y"),
    ]
    more = {k: rng.normal(size=(3, 3, 1, 1)) for k in ("w", "w2", "w3")}
    return nodes, {**vectors(rng, 3, "b b2 b3"), **more}, (2, 3, 4, 4)


def group_norm(rng: np.random.Generator) -> Form:
    nodes = [
        node("Conv", "x w b", "c"),
        node("GroupNormalization", "c s t", "n", num_groups=2),
        node("PRelu", "n a", "r"),
        node("Conv", "r w2 b2", "y"),
    ]
    more = {"w": rng.normal(size=(4, 3, 1, 1)), "w2": rng.normal(size=(3, 4, 1, 1)), "a": rng.normal(size=(4, 1, 1))}
    return nodes, {**vectors(rng, 4, "b s t", "s"), **vectors(rng, 3, "b2"), **more}, (2, 3, 4, 4)


def group_spelled(rng: np.random.Generator) -> Form:
    """InstanceNormalization of groups, as PyTorch's older exporter writes it."""
    nodes = [
        node("Reshape", "x #in", "g"),
        node("InstanceNormalization", "g one zero", "i"),
        node("Reshape", "i #out", "n"),
        node("Mul", "n s", "o"),
        node("Add", "o t", "p"),
        node("Conv", "p w b", "y"),
    ]
    wide = {k: v.reshape(-1, 1, 1) for k, v in vectors(rng, 4, "s t", "s").items()}
    more = {"one": np.ones(2), "zero": np.zeros(2), "w": rng.normal(size=(3, 4, 1, 1)), "b": rng.normal(size=3)}
    shapes = {"#in": np.array([0, 2, -1]), "#out": np.array([0, 4, 4, 4])}
    return nodes, {**wide, **more, **shapes}, (2, 4, 4, 4)


def rms_norm(rng: np.random.Generator) -> Form:
    nodes = [
        node("MatMul", "x w", "a"),
        node("RMSNormalization", "a s", "n"),
        node("Mul", "n k", "o"),
        node("MatMul", "o w2", "y"),
    ]
    more = {"w": rng.normal(size=(6, 8)), "w2": rng.normal(size=(8, 5))}
    return nodes, {**vectors(rng, 8, "s k", "s k"), **more}, (2, 3, 6)


def rms_spelled(rng: np.random.Generator) -> Form:
    nodes = [
        node("Pow", "x two", "q"),
        node("ReduceMean", "q #axes", "va"),
        node("Add", "va eps", "ve"),
        node("Sqrt", "ve", "sd"),
        node("Reciprocal", "sd", "r"),
        node("Mul", "x r", "n"),
        node("Mul", "n s", "o"),
        node("MatMul", "o w", "y"),
    ]
    more = {"two": np.array(2.0), "eps": np.array(1e-5), "w": rng.normal(size=(8, 4)), "#axes": np.array([-1])}
    return nodes, {**vectors(rng, 8, "s", "s"), **more}, (2, 3, 8)


def instance_spelled(rng: np.random.Generator) -> Form:
    nodes = [
        node("Conv", "x w b", "c"),
        node("ReduceMean", "c #axes", "mu"),
        node("Sub", "c mu", "d"),
        node("Mul", "d d", "q"),
        node("ReduceMean", "q #axes", "va"),
        node("Add", "va eps", "ve"),
        node("Sqrt", "ve", "sd"),
        node("Div", "d sd", "n"),
        node("Mul", "n s", "o"),
        node("Add", "o t", "y"),
    ]
    wide = {k: v.reshape(-1, 1, 1) for k, v in vectors(rng, 4, "s t", "s").items()}
    more = {"w": rng.normal(size=(4, 3, 1, 1)), "b": rng.normal(size=4), "eps": np.array(1e-5)}
    return nodes, {**wide, **more, "#axes": np.array([2, 3])}, (2, 3, 4, 4)


def batch_spelled(rng: np.random.Generator) -> Form:
    """A BatchNorm by hand, its epsilon and statistics as they are stored."""
    nodes = [
        node("Conv", "x w b", "c"),
        node("Sub", "c m", "d"),
        node("Add", "v eps", "ve"),
        node("Sqrt", "ve", "sd"),
        node("Div", "d sd", "n"),
        node("Mul", "n s", "o"),
        node("Add", "o t", "y"),
    ]
    wide = {k: v.reshape(-1, 1, 1) for k, v in vectors(rng, 4, "s t m v", "s v").items()}
    return nodes, {**wide, "w": rng.normal(size=(4, 3, 1, 1)), "b": rng.normal(size=4), "eps": np.array(1e-5)}, (
        2, 3, 4, 4)  # fmt: skip


def weight_norm(rng: np.random.Generator) -> Form:
    """g v / |v|, of constants: torch.nn.utils.parametrizations.weight_norm, as it is traced."""
    nodes = [
        node("ReduceL2", "v #axes", "l", keepdims=1),
        node("Div", "v l", "u"),
        node("Mul", "u g", "w"),
        node("Conv", "x w b", "c"),
        node("BatchNormalization", "c s t m va", "y"),
    ]
    more = {"v": rng.normal(size=(4, 3, 1, 1)), "g": rng.uniform(0.5, 2, (4, 1, 1, 1)), "#axes": np.array([1, 2, 3])}
    return nodes, {**vectors(rng, 4, "b s t m va", "s va"), **more}, (2, 3, 4, 4)


def one_channel(rng: np.random.Generator) -> Form:
    nodes = [
        node("Conv", "x w b", "c"),
        node("BatchNormalization", "c s t m v", "n"),
        node("PRelu", "n a", "r"),
        node("BatchNormalization", "r s2 t2 m2 v2", "q"),
        node("Conv", "q w2 b2", "y"),
    ]
    more = {"w": rng.normal(size=(1, 3, 1, 1)), "w2": rng.normal(size=(3, 1, 3, 3)), **vectors(rng, 3, "b2")}
    small = vectors(rng, 1, "b s t m v a s2 t2 m2 v2", "s v s2 v2")
    return nodes, {**small, **more}, (2, 3, 4, 4)


FORMS: dict[str, Callable[[np.random.Generator], Form]] = {
    form.__name__: form
    for form in (behind, in_front, layer_norm, spelled, maps, instance, quantized, branches, group_norm, group_spelled,
                 rms_norm, rms_spelled, instance_spelled, batch_spelled, weight_norm, one_channel)
}  # fmt: skip
EPSILONS = [1e-5, 0.0, 1e-42, 1e-30, 1e-7, -1e-3, 1e30, np.inf, np.nan]
"""An epsilon that is an attribute."""


def write(form: Form, dtype: type, path: Path) -> Path:
    nodes, constants, sizes = form
    with np.errstate(over="ignore"):
        stored = [
            numpy_helper.from_array(np.asarray(array).astype(np.int64 if name[0] == "#" else dtype), name)
            for name, array in constants.items()
        ]
    stored.append(numpy_helper.from_array(np.array(3, np.uint8), "zx"))
    x = helper.make_tensor_value_info("x", KINDS[dtype], ["N", *sizes[1:]])
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", KINDS[dtype], None)], stored)
    newer = {"GroupNormalization", "RMSNormalization"}.intersection(item.op_type for item in nodes)
    opset = 23 if newer or any(name[0] == "#" for name in constants) else 17
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad")


@settings(max_examples=6 * EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(list(FORMS)), st.integers(0, 99), st.sampled_from(BAD), st.sampled_from(list(KINDS)),
       st.booleans(), st.integers(0, 2**32 - 1), st.sampled_from(EPSILONS))  # fmt: skip
def test_a_bad_number_changes_nothing_in_silence(
    folder: Path, name: str, position: int, value: float, dtype: type, everywhere: bool, seed: int, epsilon: float
) -> None:
    """In float64 both files give the same: numbers where there are numbers, NaN and infinity where those are."""
    rng = np.random.default_rng(seed)
    nodes, constants, sizes = FORMS[name](rng)
    normal = next((item for item in nodes if item.op_type.endswith("Normalization")), None)
    if normal is not None:
        normal.attribute.append(helper.make_attribute("epsilon", float(epsilon)))
    numbers = sorted(key for key in constants if key[0] != "#")
    key = numbers[position % len(numbers)]
    flat = constants[key].reshape(-1)
    if normal is not None and epsilon != EPSILONS[0]:
        value = flat[
            0
        ]  # one thing at a time: a constant row behind a vanishing epsilon is rounding, divided by nothing
    flat[slice(None) if everywhere else rng.integers(flat.size)] = value
    source, target = write((nodes, constants, sizes), dtype, folder / "in.onnx"), folder / "out.onnx"
    with np.errstate(over="ignore"):
        held = np.asarray(constants[key]).astype(dtype)
    findings = nd.inspect(source)
    impossible = normal is not None and not (np.isfinite(epsilon) and epsilon >= 0)
    if impossible or not np.isfinite(held).all():
        assert any(finding.severity == "error" for finding in findings), (name, key, value)
    try:
        nd.fold(source, target, verify=False, overwrite=True)
    except NormdeployError:
        return  # told, and the file is as it was
    x = {"x": rng.normal(size=sizes).astype(dtype)}
    before, after = (Evaluator(load_graph(path)).run(x)["y"].numpy() for path in (source, target))
    finite = np.isfinite(before)
    np.testing.assert_array_equal(np.isnan(before), np.isnan(after))
    np.testing.assert_array_equal(before[~finite], after[~finite])
    rounding = {np.float16: 5e-2, np.float32: 1e-4, np.float64: 1e-9}[dtype]
    error, size = np.abs(before[finite] - after[finite]), np.abs(before[finite])
    assert (error <= rounding * (size + size.max(initial=0.0))).all(), (name, key, value, epsilon)


@pytest.mark.parametrize(
    ("form", "key", "value", "kind", "severity"),
    [
        (layer_norm, "w", 1e-42, "magnitude", "note"),
        (layer_norm, "w2", 1e30, "magnitude", "warning"),
        (in_front, "m", 1e30, "magnitude", "warning"),
        (quantized, "sx", 0.0, "quantizer", "error"),
        (quantized, "sx", -0.1, "quantizer", "error"),
        (quantized, "sx", np.nan, "not-finite", "error"),
        (behind, "v", -1.0, "variance", "error"),
        (maps, "dv", np.inf, "not-finite", "error"),
        (group_norm, "a", np.nan, "not-finite", "error"),
        (group_norm, "s", 1e30, "magnitude", "warning"),
        (rms_spelled, "eps", -1.0, "epsilon", "error"),
        (instance_spelled, "eps", np.nan, "not-finite", "error"),
        (weight_norm, "g", np.inf, "not-finite", "error"),
        (one_channel, "v", np.nan, "variance", "error"),
        (one_channel, "v2", -1.0, "variance", "error"),
    ],
)
def test_what_inspect_tells(form, key: str, value: float, kind: str, severity: str, tmp_path: Path) -> None:
    nodes, constants, sizes = form(np.random.default_rng(0))
    constants[key].reshape(-1)[0] = value
    found = nd.inspect(write((nodes, constants, sizes), np.float32, tmp_path / "in.onnx"))
    assert (kind, severity) in [(finding.kind, finding.severity) for finding in found]


@pytest.mark.parametrize("epsilon", [-1e-3, np.inf, np.nan])
@pytest.mark.parametrize("form", [behind, layer_norm, instance, group_norm, rms_norm, one_channel])
def test_inspect_tells_of_an_operators_epsilon(form, epsilon: float, tmp_path: Path) -> None:
    nodes, constants, sizes = form(np.random.default_rng(0))
    next(item for item in nodes if "Norm" in item.op_type).attribute.append(helper.make_attribute("epsilon", epsilon))
    found = nd.inspect(write((nodes, constants, sizes), np.float32, tmp_path / "in.onnx"))
    assert ("epsilon", "error") in [(finding.kind, finding.severity) for finding in found]


@pytest.mark.parametrize("value", [-np.inf, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize(("between", "operands"), [("Div", "m two"), ("Flatten", "m"), ("Neg", "m")])
def test_what_a_mask_passes_on_its_way_to_a_softmax_is_told_by_its_traits(
    between: str, operands: str, value: float, tmp_path: Path
) -> None:
    nodes = [node(between, operands, "n"), node("Add", "x n", "a"), node("Softmax", "a", "y")]
    numbers = {"m": np.array([0.0, value, 0.0]), "two": np.array(2.0)}
    path = write((nodes, numbers, (2, 3)), np.float32, tmp_path / "in.onnx")
    found = [finding for finding in nd.inspect(path) if finding.kind in ("not-finite", "magnitude")]
    assert bool(found) == (between == "Neg")  # an infinity with the other sign is no mask


@pytest.mark.parametrize("value", [-np.inf, float(np.finfo(np.float32).min)])
def test_a_mask_in_front_of_a_softmax_may_be_infinite(value: float, tmp_path: Path) -> None:
    nodes = [node("Add", "x m", "a"), node("Softmax", "a", "y")]
    path = write((nodes, {"m": np.array([0.0, value, 0.0])}, (2, 3)), np.float32, tmp_path / "in.onnx")
    assert not [finding for finding in nd.inspect(path) if finding.kind in ("not-finite", "magnitude")]
    nodes[1] = node("Relu", "a", "y")
    path = write((nodes, {"m": np.array([0.0, value, 0.0])}, (2, 3)), np.float32, tmp_path / "in.onnx")
    assert [finding for finding in nd.inspect(path) if finding.kind in ("not-finite", "magnitude")]
