"""A run beyond its bound is held part by part: a network that amplifies rounding passes, a wrong kernel does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from normdeploy.exporting.trace import Traced, trace
from normdeploy.graph import load_graph, save_graph
from normdeploy.onnxfile.named_bytes import NamedBytes
from normdeploy.rewrite import RewriteResult, rewrite
from normdeploy.verification import Verdict, check_context, runs, verify
from normdeploy.verification.bounds.spread import Spread
from normdeploy.verification.checks import by_algebra
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.related.report import Report
from normdeploy.verification.family_case import Case, make_case
from normdeploy.verification.judging import parts
from normdeploy.verification.judging.parts import held_in_parts
from normdeploy.verification.moved_constants import MovedConstants
from normdeploy.verification.samples.family import Family
from normdeploy.verification.sides import sessions, subject
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.sides.subject import Subject

SCHEMA = Path(__file__).parents[2] / "docs" / "verdict.schema.json"
Change = Callable[[onnx.ModelProto], None]

LUCK = 8.0
"""How much less than it does eager errs where noise shows nothing: less than the bound allows for, in float64 alone."""


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.gate = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x)).relu()
        return x + y * self.gate(y.mean((2, 3))).sigmoid()[..., None, None]


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(6) for _ in range(4)))
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return (100 * self.head(self.blocks(x).mean((2, 3)))).sin()


@dataclass
class Exported:
    model: nn.Module
    args: tuple[Tensor]
    traced: Traced
    rewritten: RewriteResult
    folded: Path

    def verdict(self, path: Path, **options: Any) -> Verdict:
        return verify(self.model, path, args=self.args, traced=self.traced, rewritten=self.rewritten, **options)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    torch.manual_seed(0)
    model, args = Deep().eval(), (torch.randn(2, 6, 8, 8),)
    with torch.no_grad():
        for block in model.blocks:
            block.norm.running_mean.normal_()
            block.norm.running_var.uniform_(0.5, 2)
            block.norm.weight.uniform_(0.5, 2)
            block.norm.bias.normal_()
    traced = trace(model, args)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), tmp_path_factory.mktemp("deep") / "folded.onnx")
    return Exported(model, args, traced, rewritten, path)


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all noise of the whole network show nothing, and eager err little, by accident: a run is beyond the bound."""

    def made(*args: Any, **options: Any) -> Case:
        case = make_case(*args, **options)
        nothing = Spread.of([np.zeros(np.shape(y)) for y in case.truth])
        lucky = [
            (y + (np.asarray(e, np.float64) - y) / LUCK).astype(e.dtype)
            for y, e in zip(case.truth, case.eager, strict=True)
        ]
        return replace(case, rounding=nothing, eager=lucky)

    monkeypatch.setattr(check_context, "make_case", made)


def _bytes_of(model: bytes | Path | NamedBytes) -> bytes:
    """Return what a session is opened with: a file, its bytes, or those in memory under a name."""
    if isinstance(model, NamedBytes):
        return bytes(model.content)
    return model if isinstance(model, bytes) else model.read_bytes()


@pytest.fixture
def computed_as(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes the runtime compute a changed file in place of each that it is given."""

    def install(change: Change, *, opened: bool = True) -> None:
        def open_changed(model: Any, setting: Setting, **options: Any) -> Any:
            proto = onnx.load_from_string(_bytes_of(model))
            change(proto)
            return sessions.open_session(proto.SerializeToString(), setting, **options)

        monkeypatch.setattr(subject, "open_session", open_changed)
        if opened:
            monkeypatch.setattr(parts, "open_session", open_changed)

    return install


def scaled(result: str, factor: float) -> Change:
    """Return a change that multiplies one value, where it is computed."""

    def change(proto: onnx.ModelProto) -> None:
        place, node = next((i, n) for i, n in enumerate(proto.graph.node) if result in n.output)
        node.output[list(node.output).index(result)] = "right"
        proto.graph.initializer.append(numpy_helper.from_array(np.float32(factor), "factor"))
        proto.graph.node.insert(place + 1, helper.make_node("Mul", ["right", "factor"], [result]))

    return change


def other_operator(kind: str, other: str, **attributes: Any) -> Change:
    def change(proto: onnx.ModelProto) -> None:
        node = next(n for n in proto.graph.node if n.op_type == kind)
        node.CopyFrom(helper.make_node(other, node.input, node.output, **attributes))

    return change


def half_precision(proto: onnx.ModelProto) -> None:
    place, node = next((i, n) for i, n in enumerate(proto.graph.node) if n.op_type == "Conv")
    result, node.output[0] = node.output[0], "wide"
    casts = [("wide", "narrow", onnx.TensorProto.FLOAT16), ("narrow", result, onnx.TensorProto.FLOAT)]
    for number, (read, made, to) in enumerate(casts):
        proto.graph.node.insert(place + 1 + number, helper.make_node("Cast", [read], [made], to=to))


def one_weight(proto: onnx.ModelProto) -> None:
    name = next(n for n in proto.graph.node if n.op_type == "Conv").input[1]
    tensor = next(t for t in proto.graph.initializer if t.name == name)
    weight = numpy_helper.to_array(tensor).copy()
    weight[0, 0, 0, 0] += 1e-3
    tensor.CopyFrom(numpy_helper.from_array(weight, name))


KERNELS: dict[str, Change] = {
    "another function": other_operator("Sigmoid", "HardSigmoid"),
    "a slope of 1e-3": other_operator("Relu", "LeakyRelu", alpha=1e-3),
    "half precision": half_precision,
    "one weight off by 1e-3": one_weight,
}


def computed(file: Path) -> Iterator[str]:
    for node in onnx.load(str(file)).graph.node:
        if node.op_type != "Constant":
            yield node.output[0]


def held(file: Path, feeds: dict[str, np.ndarray], setting: Setting) -> parts.InParts:
    side = Subject(file)
    return held_in_parts(side, feeds, side.run(feeds, setting), setting, seed=0)


@pytest.mark.usefixtures("unseen")
def test_a_network_that_amplifies_what_no_noise_showed_passes_and_says_so(deep: Exported, monkeypatch):
    verdict = deep.verdict(deep.folded, level="quick")
    assert verdict.passed, verdict.summary()
    check = verdict.check("rounding")
    assert "amplifies rounding" in check.detail
    found = [m for m in verdict.measurements if m.in_parts is not None]
    assert found
    assert all(m.ratio > 1 >= m.in_parts for m in found)
    jsonschema.validate(json.loads(verdict.to_json()), json.loads(SCHEMA.read_text()))
    assert "held in parts" in verdict.to_html()
    monkeypatch.setattr(runs, "held_in_parts", lambda *_, **__: parts.InParts(False))
    assert deep.verdict(deep.folded, level="quick").check("rounding").status == "fail"


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_wrong_kernel_is_not_held(deep: Exported, computed_as: Callable[..., None], kernel: str):
    computed_as(KERNELS[kernel])
    check = deep.verdict(deep.folded, level="quick").check("rounding")
    assert check.status == "fail"
    assert "alone err by" in check.detail


@pytest.mark.usefixtures("unseen")
def test_a_run_that_ends_in_other_bits_speaks_for_nothing(deep: Exported, computed_as: Callable[..., None]):
    computed_as(KERNELS["a slope of 1e-3"], opened=False)
    check = deep.verdict(deep.folded, level="quick").check("rounding")
    assert check.status == "fail"
    assert "changes what the runtime computes" in check.detail


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("damage", ["scale", "weight"])
def test_a_damaged_file_fails_as_before(deep: Exported, damaged: Callable[..., Path], damage: str):
    last = list(computed(deep.folded))[-2]
    path = damaged(deep.folded, one_weight if damage == "weight" else scaled(last, 1.001))
    verdict = deep.verdict(path, level="quick")
    assert verdict.status == "fail"
    assert not any(m.in_parts is not None for m in verdict.measurements)


@pytest.mark.usefixtures("unseen")
def test_parts_do_not_believe_what_algebra_says_of_the_whole(deep: Exported, damaged, monkeypatch):
    """A checker that confirms a damaged file, as one with a gap would: the file in float64 tells on the same inputs."""
    right = load_graph(deep.folded)

    def confirming(source: Any, file: Any, *args: Any, **options: Any) -> Report:
        return check_derivation(source, right, *args, **options)

    monkeypatch.setattr(by_algebra, "check_derivation", confirming)
    path = damaged(deep.folded, scaled(list(computed(deep.folded))[6], 1.01))
    verdict = deep.verdict(path, level="quick")
    assert verdict.check("derivation").status == "pass"
    check = verdict.check("rounding")
    assert check.status == "fail"
    assert "in float64 is not the reference" in check.detail


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize(
    ("amplified", "ratio", "status"),
    [
        pytest.param(1e9, 0.0, "fail", id="a calm network: its file in float64 has to be the reference"),
        pytest.param(0.0, 0.0, "pass", id="a steep one, whose traced graph is the reference"),
        pytest.param(0.0, 7.0, "fail", id="a steep one, whose traced graph is not"),
    ],
)
def test_where_rounding_is_amplified_the_traced_graph_speaks_for_the_file(
    deep: Exported, monkeypatch: pytest.MonkeyPatch, amplified: float, ratio: float, status: str
):
    """EfficientNet-B0 on images of 0 to 255: its gates turn one rounding of a weight into a third of the output."""
    monkeypatch.setattr(runs, "logic_problems", lambda *_, **__: (["the rounding of weights turned a gate"], 99.0))
    monkeypatch.setattr(runs, "AMPLIFIED", amplified)
    asked: list[str] = []

    def hold_trace(_: Any, case: Case, constants: MovedConstants) -> float:
        asked.append(case.family.name)
        return ratio

    def forgotten(context: Any, case: Case, *rest: Any) -> parts.InParts:
        case.chain = None  # as on a family on which the level compares no trace
        return in_parts(context, case, *rest)

    in_parts = runs._in_parts
    monkeypatch.setattr(runs, "_in_parts", forgotten)
    monkeypatch.setattr(runs, "hold_trace", hold_trace)
    check = deep.verdict(deep.folded, level="quick").check("rounding")
    assert check.status == status, check.detail
    assert ("in float64 is not the reference" in check.detail) == (status == "fail")
    assert bool(asked) == (amplified == 0)


@pytest.mark.parametrize("shown", ["noise", "eager"])
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_amplification_is_what_noise_or_eager_shows(shown: str, factor: float):
    truth = np.linspace(1, 2, 64)
    error = factor * runs.AMPLIFIED * 2.0**-24 * np.sqrt(np.mean(truth**2)) * np.ones(64)
    nothing = np.zeros(64)
    case = Case(
        family=Family("steep", {}),
        names=["count", "y"],
        truth=[np.arange(3), truth],
        eager=[np.arange(3), truth + (error if shown == "eager" else nothing)],
        rounding=Spread.of([np.zeros(3), error if shown == "noise" else nothing]),
        precision="float32",
        noisy=None,
    )
    assert runs._amplifies(case) == (factor > 1)


def test_wherever_a_value_is_off_it_is_found(deep: Exported, computed_as: Callable[..., None]):
    """Every operator in turn, those at borders among them: an error of 1e-4 of one value lies inside some part."""
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 6, 8, 8)).astype(np.float32)}
    setting, names = Setting(), list(computed(deep.folded))
    assert held(deep.folded, feeds, setting).holds
    for name in names:
        computed_as(scaled(name, 1 + 1e-4))
        assert not held(deep.folded, feeds, setting).holds, name


def test_two_cuts_have_no_border_in_common_and_hold_every_operator(deep: Exported):
    graph = Subject(deep.folded).model.graph
    for size in parts.SIZES:
        pair = list(parts.cuts(graph, size))
        for cut in pair:
            assert [n for part in cut for n in part.nodes] == [n for n in graph if n.op_type != "Constant"]
        first, second = ({part.nodes[0] for part in cut[1:]} for cut in pair)
        assert not first & second
        assert first


class Both(nn.Module):
    """Two outputs, each of operators of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Deep(), Deep()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), self.other(x)


def test_a_run_with_its_values_shown_speaks_for_each_output_that_ends_in_the_same_bits(tmp_path: Path, monkeypatch):
    """Of fourteen outputs of a detector one was beyond its bound; others are fused where nothing is shown."""
    torch.manual_seed(0)
    args = (torch.randn(2, 6, 8, 8),)
    side = Subject(save_graph(trace(Both().eval(), args).model, tmp_path / "both.onnx"))
    feeds, setting = {side.input_names[0]: args[0].numpy()}, Setting()
    outputs = side.run(feeds, setting)

    def in_other_bits(model: bytes, setting: Setting) -> Any:
        proto = onnx.load_from_string(model)
        scaled(side.output_names[1], 1 + 2.0**-23)(proto)
        return sessions.open_session(proto.SerializeToString(), setting)

    monkeypatch.setattr(parts, "open_session", in_other_bits)
    assert held_in_parts(side, feeds, outputs, setting, seed=0, judged={0}).holds
    for judged in ({1}, {0, 1}, None):
        assert "changes what the runtime computes" in held_in_parts(
            side, feeds, outputs, setting, seed=0, judged=judged
        ).why  # fmt: skip
