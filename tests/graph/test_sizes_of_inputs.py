"""Files whose inputs declare no size at all are run at the sizes that their constants ask for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import normdeploy as nd

GRAPHS: dict[str, tuple[str, int, dict[str, tuple[int, ...]]]] = {
    "convolution": ("c = Conv<group=2>(x, w)\n y = BatchNormalization(c, s, b, m, v)", 4, {"w": (4, 3, 1, 1)}),
    "transposed": ("c = ConvTranspose(x, w)\n y = BatchNormalization(c, s, b, m, v)", 4, {"w": (5, 4, 2, 2)}),
    "norm": ("y = BatchNormalization(x, s, b, m, v)", 3, {}),
    "product": ("c = MatMul(x, w)\n t = Transpose<perm=[0, 2, 1]>(c)\n y = BatchNormalization(t, s, b, m, v)", 3,
                {"w": (7, 4)}),
    "product from the left": ("c = MatMul(w, x)\n y = Add(c, a)", 3, {"w": (4, 7), "a": (4, 1)}),
    "gemm": ("c = Gemm<transB=1>(x, w)\n y = BatchNormalization(c, s, b, m, v)", 2, {"w": (4, 7)}),
    "turned": ("t = Transpose<perm=[0, 3, 1, 2]>(x)\n r = Relu(t)\n c = Conv(r, w)\n y = Add(c, a)",
               4, {"w": (4, 5, 1, 1), "a": (4, 1, 1)}),
    "positions": ("c = Add(x, p)\n y = LayerNormalization(c, s)", 3, {"p": (1, 9, 4)}),
    "recurrent": ("y, h, c = LSTM<hidden_size=3>(x, w, r)", 3, {"w": (1, 12, 5), "r": (1, 12, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_what_declares_no_size_is_folded_and_proven(name: str, tmp_path: Path) -> None:
    """With 3 samples and 8 of everything else no runtime runs one of these."""
    text, rank, weights = GRAPHS[name]
    rng = np.random.default_rng(0)
    shape = ", ".join(f"unk__{i}" for i in range(rank))
    declared = f'<ir_version: 8, opset_import: ["" : 17]> g (float[{shape}] x) => (float[] y) {{ {text} }}'
    model = onnx.parser.parse_model(declared)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    norms = dict.fromkeys("sbmv", (4,))
    read = {given for node in model.graph.node for given in node.input}
    for key, sizes in {**norms, **weights}.items():
        if key in read:
            array = rng.uniform(0.5, 1.5, sizes).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(array, key))
    onnx.save(model, tmp_path / "net.onnx")
    result = nd.fold(tmp_path / "net.onnx", tmp_path / "folded.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()
    assert nd.inspect(tmp_path / "net.onnx") is not None


def test_sizes_of_a_first_batch_give_way_to_those_that_are_inferred(tmp_path: Path) -> None:
    """A file whose inputs were made dynamic later says of its inner values what its first export said."""
    rng = np.random.default_rng(1)
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 3, H, W] x) => (float[N, 4, H, W] y) '
        "<float[1, 4, 5, 5] c, float[1, 4, 5, 5] n> "
        "{ c = Conv(x, w)\n n = BatchNormalization(c, s, b, m, v)\n p = GlobalAveragePool(n)\n y = Sub(n, p) }"
    )
    model = onnx.parser.parse_model(text)
    for key, sizes in {"w": (4, 3, 1, 1), **dict.fromkeys("sbmv", (4,))}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.uniform(0.5, 1.5, sizes).astype(np.float32), key))
    assert len(model.graph.value_info) == 2
    onnx.save(model, tmp_path / "net.onnx")
    nd.fold(tmp_path / "net.onnx", tmp_path / "folded.onnx", verify="quick")
    x = rng.normal(size=(3, 3, 6, 7)).astype(np.float32)
    (want,), (have,) = (ort.InferenceSession(tmp_path / f"{n}.onnx").run(None, {"x": x}) for n in ("net", "folded"))
    np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("version", [18, 20])
def test_group_norms_of_the_first_form_are_no_flaw(version: int, tmp_path: Path) -> None:
    """onnx's checker calls them deprecated; onnxruntime runs them, a scale and a shift for each group."""
    rng = np.random.default_rng(2)
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2, epsilon=1e-2)
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 6, 4]) for name in "xy"]
    arrays = {key: rng.uniform(0.5, 1.5, 2).astype(np.float32) for key in "sb"}
    stored = [numpy_helper.from_array(array, key) for key, array in arrays.items()]
    graph = helper.make_graph([node], "g", value[:1], value[1:], stored)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=9), tmp_path / "n.onnx"
    )
    nd.fold(tmp_path / "n.onnx", tmp_path / "f.onnx", verify="quick")
    x = rng.normal(size=(3, 6, 4)).astype(np.float32)
    groups = x.astype(np.float64).reshape(3, 2, 12)
    centred = groups - groups.mean(2, keepdims=True)
    scaled = centred / np.sqrt(np.square(centred).mean(2, keepdims=True) + 1e-2)
    expected = (scaled * arrays["s"][:, None] + arrays["b"][:, None]).reshape(3, 6, 4)
    (have,) = ort.InferenceSession(tmp_path / "f.onnx").run(None, {"x": x})
    np.testing.assert_allclose(have, expected, rtol=1e-4, atol=1e-5)
