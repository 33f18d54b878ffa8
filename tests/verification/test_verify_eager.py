"""Eager modules against files: containers, plain classes, modes, references that cannot be run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.conformance import by_hand
from normdeploy.errors import InputError
from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.check_levels import LEVELS
from normdeploy.verification.derivation.related.report import Report


def export(model: nn.Module, args: tuple[Any, ...], path: Path, **options: Any) -> dict[str, Any]:
    traced = trace(model, args, **options)
    rewritten = rewrite(traced.model)
    save_graph(rewritten.model.clone(), path)
    return {"traced": traced, "rewritten": rewritten}


@dataclass
class Pair:
    logits: Tensor
    extra: dict[str, Tensor]


class Many(nn.Module):
    """Token ids, a boolean mask and a dict of floats in; a dataclass with a dict and an argmax out."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(17, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, ids: Tensor, mask: Tensor, more: dict[str, Tensor]) -> Pair:
        h = self.table(ids) + more["shift"].unsqueeze(1)
        h = self.norm(h) * mask.unsqueeze(-1)
        logits = self.head(h)
        return Pair(logits, {"best": logits.argmax(-1), "pooled": (h.sum(1), mask.sum(1))})


class OneLeftOut(nn.Module):
    """Takes three inputs, of which its user never gives the second."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor, mask: Tensor | None = None, other: Tensor | None = None) -> Tensor:
        y = self.norm(self.lin(x))
        y = y if mask is None else y * mask
        return y if other is None else y + 3 * other


@pytest.mark.parametrize("given", [True, False], ids=["keyword arguments", "nothing"])
def test_inputs_are_told_by_their_names(given: bool, tmp_path: Path):
    torch.manual_seed(0)
    model = OneLeftOut().eval()
    example = {"x": torch.randn(2, 4), "other": torch.randn(2, 4)}
    nd.export(model, (), tmp_path / "net.onnx", kwargs=example, verify=False)
    verdict = nd.verify(model, tmp_path / "net.onnx", kwargs=example if given else None, level="quick")
    assert verdict.passed, verdict.summary()


def test_several_inputs_and_nested_outputs(tmp_path: Path):
    torch.manual_seed(0)
    model = Many().eval()
    ids, mask = torch.randint(0, 17, (2, 5)), torch.ones(2, 5, dtype=torch.bool)
    args = (ids, mask, {"shift": torch.randn(2, 8)})
    path = tmp_path / "net.onnx"
    known = export(model, args, path)
    verdict = verify(model, path, args=args, **known)
    assert verdict.status == "pass", verdict.summary()
    assert {m.output for m in verdict.measurements} == {v.name for v in known["traced"].model.graph.outputs[:1]} | {
        n for n in known["traced"].output_names if "pooled" in n and n.endswith("0")
    }
    spec = verdict.environment["inputs"]
    assert spec["ids"]["dtype"] == "int64"
    assert spec["mask"]["dtype"] == "bool"

    proto = onnx.load(str(path))
    for tensor in proto.graph.initializer:
        if tuple(tensor.dims) == (17, 8):
            table = onnx.numpy_helper.to_array(tensor).copy()
            table[16] = table[15]
            tensor.CopyFrom(onnx.numpy_helper.from_array(table, tensor.name))
    wrong = tmp_path / "wrong.onnx"
    onnx.save(proto, str(wrong))
    assert verify(model, wrong, args=args, level="quick", **known).status == "fail"


class ByHand(nn.Module):
    """A plain-class BatchNorm and a plain-class LayerNorm, as their authors wrote them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.norm = by_hand.B1(10)
        self.second = nn.Linear(10, 8)
        self.rows = by_hand.L1(8)
        generator = torch.Generator().manual_seed(0)
        self.norm.seen_mean = torch.randn(1, 10, generator=generator)
        self.norm.seen_var = torch.rand(1, 10, generator=generator) + 0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(self.second(self.norm(self.first(x)).relu()))


@pytest.fixture(scope="module")
def hand(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, tuple[Tensor], Path, dict[str, Any]]:
    torch.manual_seed(1)
    model, args = ByHand(), (torch.randn(3, 6),)
    path = tmp_path_factory.mktemp("hand") / "net.onnx"
    return model, args, path, export(model, args, path)


def test_hand_written_norms_are_sites_with_their_epsilons(hand: Any):
    model, args, path, known = hand
    verdict = verify(model, path, args=args, **known)
    assert verdict.status == "pass", verdict.summary()
    kinds = {site.kind for site in verdict.sites}
    assert {"affine map", "epsilon", "LayerNormalization"} <= kinds
    names = {m.name for site in verdict.sites if site.kind == "epsilon" for m in site.mutants}
    assert names == {"epsilon x10", "epsilon /10", "epsilon 0"}


def test_the_model_is_left_as_it_was(hand: Any):
    model, args, path, known = hand
    model.train()
    model.norm.training = True
    mean = model.norm.seen_mean.clone()
    verify(model, path, args=args, level="quick", **known)
    assert model.training
    assert model.norm.training
    assert torch.equal(model.norm.seen_mean, mean)
    assert torch.is_grad_enabled()


def test_the_running_mean_that_state_dict_loses_is_checked(hand: Any, tmp_path: Path):
    """The file holds the statistics of export time; the module's plain tensors have moved on."""
    model, args, path, known = hand
    saved = model.norm.seen_mean
    model.norm.seen_mean = saved + 0.01
    try:
        assert verify(model, path, args=args, level="quick").status == "fail"
    finally:
        model.norm.seen_mean = saved
    assert verify(model, path, args=args, level="quick", **known).status == "pass"


def test_arguments_that_do_not_fit_are_input_errors(hand: Any):
    model, args, path, _ = hand
    with pytest.raises(InputError):
        verify(model, path, args=(args[0], args[0]))


class Refuses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError(f"not today, nor with {x.shape}")


def test_a_reference_that_does_not_run_is_an_error_not_a_pass(hand: Any):
    _, args, path, known = hand
    verdict = verify(Refuses(), path, args=args, traced=known["traced"], rewritten=known["rewritten"])
    assert verdict.status == "error"
    assert "not today" in verdict.reasons[0]


class Untraceable(nn.Module):
    """Control flow on values: it runs, but no tracer follows it."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2.0 if float(x.sum()) > 1e9 else x * 3.0


def test_without_a_graph_of_the_reference_the_verdict_is_weak(tmp_path: Path):
    from onnx import parser

    proto = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y) '
        "<float three = {3.0}> { y = Mul(x, three) }"
    )
    path = tmp_path / "net.onnx"
    onnx.save(proto, str(path))
    verdict = verify(Untraceable(), path, args=(torch.randn(3, 4),))
    assert verdict.status == "weak", verdict.summary()
    assert any("cannot be traced" in text for text in verdict.not_checked)
    assert "quantization" not in {check.name for check in verdict.checks}  # it met no quantizer
    other = onnx.load(str(path))
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.float32(3.001), "three"))
    onnx.save(other, str(path))
    assert verify(Untraceable(), path, args=(torch.randn(3, 4),)).status == "fail"


def test_a_network_of_much_work_has_its_mutants_estimated_by_derivative(
    folded_by_torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(LEVELS, "default", replace(LEVELS["default"], heavy=-1.0))
    monkeypatch.setattr(Report, "nearly", False)  # as of a file whose numbers no order of rounding explains
    plain = tmp_path / "plain.onnx"
    nd.export(folded_by_torch.model, folded_by_torch.x, plain, fold=False, verify=False)
    verdict = verify(
        plain, folded_by_torch.path
    )  # folded in float32: no derivation confirms it, and there is no module
    assert verdict.status == "pass", verdict.summary()
    notes = [m.note for site in verdict.sites for m in site.mutants]
    assert notes.count("estimated by a directional derivative") > len(notes) / 2
    assert any("mutants one by one" in text for text in verdict.not_checked)
