"""Mixtures of experts: groups of rows, each with matrices of its own, right in onnxruntime whoever is chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.translations import experts_translation

WIDTH, INNER, EXPERTS = 16, 32, 3


@torch.library.custom_op("nd_tests_experts::grouped", mutates_args=())
def grouped(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:  # noqa: A002 - transformers' name for it
    """Stand in for transformers' operator, of the same meaning and signature."""
    begins = [0, *offs.tolist()[:-1]]
    return torch.cat([input[b:e] @ w for b, e, w in zip(begins, offs.tolist(), weight, strict=True)])


@grouped.register_fake
def _(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:  # noqa: A002 - as above
    return input.new_empty(input.shape[0], weight.shape[2])


@pytest.fixture(autouse=True)
def translated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator that stands in is translated as transformers' is."""
    table = {torch.ops.nd_tests_experts.grouped.default: experts_translation.grouped_mm}
    monkeypatch.setattr(experts_translation, "translations", lambda: table)


class Mixture(nn.Module):
    """A router's choice of one expert a row; rows are sorted by expert, as transformers sorts them."""

    def __init__(self, experts: int = EXPERTS) -> None:
        super().__init__()
        self.experts = experts
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, INNER) / 4)
        self.down = nn.Parameter(torch.randn(experts, INNER, WIDTH) / 4)
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(x)
        chosen = self.router(rows).argmax(-1)
        ordered, order = torch.sort(chosen)
        ends = (ordered.unsqueeze(0) <= torch.arange(self.experts).unsqueeze(1)).sum(-1, dtype=torch.int32)
        hidden = grouped(rows[order], self.up, ends).relu()
        found = grouped(hidden, self.down, ends)
        return self.last(x + found[torch.argsort(order)])


def mixture() -> Mixture:
    torch.manual_seed(0)
    model = Mixture().eval()
    for norm in (model.norm, model.last):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias)
    return model


def by_hand(model: Mixture, x: np.ndarray) -> np.ndarray:
    """Return what each row gets from its own expert, in float64."""

    def norm(layer: nn.LayerNorm, rows: np.ndarray) -> np.ndarray:
        centred = rows - rows.mean(-1, keepdims=True)
        weight, bias = (p.detach().double().numpy() for p in (layer.weight, layer.bias))
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + layer.eps) * weight + bias

    up, down, router = (p.detach().double().numpy() for p in (model.up, model.down, model.router.weight))
    rows = norm(model.norm, x.astype(np.float64))
    chosen = (rows @ router.T).argmax(-1)
    found = [np.maximum(row @ up[e], 0) @ down[e] for row, e in zip(rows, chosen, strict=True)]
    return norm(model.last, x + np.stack(found))


def test_each_row_has_its_own_expert_and_the_proof_is_for_every_input(tmp_path: Path):
    model, path = mixture(), tmp_path / "net.onnx"
    result = nd.export(model, (torch.randn(24, WIDTH),), path, verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()
    (derivation,) = [check for check in result.verdict.checks if check.name == "derivation"]
    assert derivation.status == "pass", derivation.text
    session = onnxruntime.InferenceSession(path)
    rng = np.random.default_rng(1)
    for rows in (1, 5, 24):  # of one row two experts have none
        x = rng.standard_normal((rows, WIDTH)).astype(np.float32)
        (found,) = session.run(None, {session.get_inputs()[0].name: x})
        np.testing.assert_allclose(found, by_hand(model, x), rtol=1e-4, atol=1e-5)


def test_the_work_is_that_of_the_chosen_experts(tmp_path: Path):
    nd.export(mixture(), (torch.randn(24, WIDTH),), tmp_path / "net.onnx", verify=False)
    graph = onnx.load(tmp_path / "net.onnx").graph
    assert [node.op_type for node in graph.node].count("Split") == 2
    shapes = {tuple(tensor.dims) for tensor in graph.initializer}
    assert (EXPERTS, WIDTH, INNER) not in shapes, "each expert's matrix is a constant of its own"


def test_one_expert_is_one_product(tmp_path: Path):
    torch.manual_seed(0)
    model = Mixture(experts=1).eval()
    nd.export(model, (torch.randn(24, WIDTH),), tmp_path / "net.onnx", verify="quick", dynamic_shapes={"x": {}})
    kinds = [node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node]
    assert "Split" not in kinds


@pytest.mark.zoo
def test_a_mixture_of_transformers_is_exported_and_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, num_local_experts=4, use_cache=False, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.MixtralModel(config).eval()
    ids = torch.randint(0, 99, (2, 12))
    result = nd.export(model, (), tmp_path / "net.onnx", kwargs={"input_ids": ids}, verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()
