"""Files that onnxruntime's optimizers wrote, judged against what they were made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from fused_transformers import fused, written
from onnx import numpy_helper
from optimized_files import operators, optimized
from skip_norms import loses_digits
from torch import nn

from normdeploy.verification import Verdict, verify

DOMAIN = "com.microsoft"


def judged(reference: Path, path: Path) -> Verdict:
    return verify(reference, path, level="quick")


def assert_right(verdict: Verdict) -> None:
    """Every comparison passes, and each could have failed."""
    assert verdict.status == "pass", verdict.summary()


KINDS = {
    "bert": {"Attention", "BiasGelu", "EmbedLayerNormalization", "SkipLayerNormalization"},
    "gpt2": {"FastGelu", "SkipLayerNormalization"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_fused_transformers_are_judged(kind: str, tmp_path: Path):
    if loses_digits():
        pytest.skip("onnxruntime 1.28 computes the fused norms wrongly, and the verdict says so")
    source = written(kind, tmp_path / "net.onnx")
    proto = fused(kind, source, tmp_path / "fused.onnx")
    assert operators(proto, DOMAIN) >= KINDS[kind], operators(proto, DOMAIN)
    assert_right(judged(source, tmp_path / "fused.onnx"))
    for node in proto.graph.node:  # and a wrong one is wrong
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-2
    onnx.save(proto, str(tmp_path / "wrong.onnx"))
    assert judged(source, tmp_path / "wrong.onnx").status == "fail"


def parts_exchanged(proto: onnx.ModelProto, first: int, second: int) -> None:
    """Exchange two of query, key and value among the joined columns of an Attention's weights."""
    attention = next(node for node in proto.graph.node if node.op_type == "Attention")
    for stored in proto.graph.initializer:
        if stored.name in attention.input[1:3]:
            parts = np.split(numpy_helper.to_array(stored), 3, axis=-1)
            parts[first], parts[second] = parts[second], parts[first]
            stored.CopyFrom(numpy_helper.from_array(np.concatenate(parts, axis=-1), stored.name))


def attribute_set(proto: onnx.ModelProto, name: str, value: float) -> None:
    """Give an Attention an attribute another value."""
    attention = next(node for node in proto.graph.node if node.op_type == "Attention")
    kept = [attribute for attribute in attention.attribute if attribute.name != name]
    del attention.attribute[:]
    attention.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])


def mask_dropped(proto: onnx.ModelProto) -> None:
    next(node for node in proto.graph.node if node.op_type == "Attention").input[3] = ""


DAMAGES = {
    "query and key": lambda proto: parts_exchanged(proto, 0, 1),
    "key and value": lambda proto: parts_exchanged(proto, 1, 2),
    "one head": lambda proto: attribute_set(proto, "num_heads", 1),
    "four heads": lambda proto: attribute_set(proto, "num_heads", 4),
    "scale": lambda proto: attribute_set(proto, "scale", 0.36),
    "filter of the mask": lambda proto: attribute_set(proto, "mask_filter_value", -5.0),
    "one way": lambda proto: attribute_set(proto, "unidirectional", 1),
    "no mask": mask_dropped,
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("bert")
    source = written("bert", folder / "net.onnx")
    fused("bert", source, folder / "fused.onnx")
    return source, folder / "fused.onnx"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_attention_is_found(damage: str, bert: tuple[Path, Path], tmp_path: Path) -> None:
    source, path = bert
    proto = onnx.load(path)
    DAMAGES[damage](proto)
    onnx.save(proto, tmp_path / "damaged.onnx")
    assert judged(source, tmp_path / "damaged.onnx").status == "fail"


def test_a_fusion_that_takes_the_ones_of_a_mask_for_its_first_is_found(tmp_path: Path):
    """The default of onnxruntime.transformers counts a mask's ones: right for padding at the end alone."""
    source = written("bert", tmp_path / "net.onnx")
    fused("bert", source, tmp_path / "fused.onnx", raw_mask=False)
    import onnxruntime as ort

    sessions = [ort.InferenceSession(str(tmp_path / name)) for name in ("net.onnx", "fused.onnx")]
    ids = np.random.default_rng(0).integers(0, 30, (1, 6))
    errors = []
    for mask in ([1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]):
        feeds = {"ids": ids, "mask": np.array([mask]), "segments": np.zeros_like(ids)}
        right, got = (session.run(None, feeds)[0] for session in sessions)
        errors.append(np.abs(right - got)[:, np.array(mask, bool)].max())
    if errors[1] < 1e-3:
        pytest.skip(f"onnxruntime {ort.__version__} keeps the mask; 1.31 counted its ones")
    assert errors[0] < 1e-4
    assert judged(source, tmp_path / "fused.onnx").status == "fail"


class Image(nn.Module):
    """Convolutions with and without groups, a residual sum, pools and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.depth, self.point = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 16, 1)
        self.inner, self.head = nn.BatchNorm2d(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = nn.functional.max_pool2d(torch.relu(x + self.inner(self.point(self.depth(x)))), 2)
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from normdeploy import export

    torch.manual_seed(0)
    model = Image().eval()
    for norm in (model.norm, model.inner):
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    path = tmp_path_factory.mktemp("image") / "net.onnx"
    export(model, torch.randn(2, 3, 16, 16), path, fold=False, verify=False)
    return path


@pytest.mark.parametrize("level", ["basic", "extended", "all"])
def test_saved_convolutional_networks_are_judged(level: str, image: Path, tmp_path: Path):
    proto = optimized(image, tmp_path / "optimized.onnx", level)
    if level == "extended":
        assert "FusedConv" in operators(proto, DOMAIN)
    assert judged(image, tmp_path / "optimized.onnx").status == "pass"
    weight = max(proto.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    array = numpy_helper.to_array(weight).copy()
    array.reshape(-1)[np.abs(array).argmax()] *= 1.001
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(proto, str(tmp_path / "wrong.onnx"))
    assert judged(image, tmp_path / "wrong.onnx").status == "fail"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its older exporter
@pytest.mark.parametrize("level", ["extended", "all"])
def test_what_was_folded_and_laid_in_blocks_is_judged_by_the_module(level: str, tmp_path: Path):
    """Operators on blocks of channels are those on plain ones: their numbers are right within another rounding."""
    torch.manual_seed(0)
    model, x = Image().eval(), torch.randn(2, 3, 16, 16)
    torch.onnx.export(model, (x,), tmp_path / "net.onnx", dynamo=False, verbose=False, input_names=["x"])
    proto = optimized(tmp_path / "net.onnx", tmp_path / "optimized.onnx", level)
    assert "BatchNormalization" not in operators(proto, "")
    verdict = verify(model, tmp_path / "optimized.onnx", args=x, level="quick")
    assert_right(verdict)
    assert "right within another rounding" in verdict.check("derivation").detail
    bias = next(tensor for tensor in proto.graph.initializer if tensor.name == first_bias(proto))
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(1e-4), bias.name))
    onnx.save(proto, str(tmp_path / "wrong.onnx"))
    wrong = verify(model, tmp_path / "wrong.onnx", args=x, level="quick").check("derivation")
    assert wrong.status == "fail", wrong.detail
    assert "bias of Conv" in wrong.detail


def first_bias(proto: onnx.ModelProto) -> str:
    return next(node.input[2] for node in proto.graph.node if node.op_type in ("Conv", "FusedConv"))


@pytest.mark.slow
@pytest.mark.parametrize("level", ["extended", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_transformers_are_judged(kind: str, level: str, tmp_path: Path):
    source = written(kind, tmp_path / "net.onnx")
    proto = optimized(source, tmp_path / "optimized.onnx", level)
    assert operators(proto, DOMAIN)
    assert_right(judged(source, tmp_path / "optimized.onnx"))


HARD_SWISH = """<ir_version: 10, opset_import: ["": 20]> g (float[n,4] x) => (float[n,4] y)
    <float[4,4] w = {0.3, -0.5, 0.2, 0.7, 0.1, 0.9, -0.4, 0.6, -0.8, 0.2, 0.5, -0.1, 0.4, 0.3, -0.6, 0.8}> {
    a = MatMul(x, w) h = HardSwish(a) y = MatMul(h, w) }"""
"""It has no kernel: onnxruntime writes its definition, x HardSigmoid(x)."""

SCALED_SCORES = """<ir_version: 10, opset_import: ["": 20]> g (float[b,n,8] x, float[b,n,8] z) => (float[b,n,n] y)
    <float s = {0.59460354}, float t = {0.59460354}> {
    q = Mul(x, s) u = Transpose<perm = [0, 2, 1]>(z) k = Mul(u, t) d = MatMul(q, k) y = Softmax<axis = -1>(d) }"""
"""As torch writes attention, half of the scale on either operand: onnxruntime joins both behind the product."""


@pytest.mark.parametrize(
    ("graph", "written"),
    [(HARD_SWISH, "HardSigmoid"), (SCALED_SCORES, "FusedMatMul")],
    ids=["HardSwish", "two scales in front of a product"],
)
def test_what_is_written_as_other_operators_is_confirmed(graph: str, written: str, tmp_path: Path) -> None:
    source, path = tmp_path / "net.onnx", tmp_path / "saved.onnx"
    onnx.save(onnx.parser.parse_model(graph), source)
    proto = optimized(source, path, "extended")
    assert written in {node.op_type for node in proto.graph.node}
    verdict = judged(source, path)
    assert_right(verdict)
    assert verdict.check("derivation").status == "pass", verdict.summary()
    for attribute in (a for node in proto.graph.node if node.op_type == written for a in node.attribute):
        if attribute.name == "alpha":
            attribute.f *= 1.0001
    onnx.save(proto, path)
    wrong = judged(source, path)
    assert wrong.status == "fail", wrong.summary()
