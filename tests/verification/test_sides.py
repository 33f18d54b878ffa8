"""Who failed: the module, its graph as evaluated here, or our own code; and modules prepared by who runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from normdeploy.errors import GraphError
from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.sides.flat_values import Signature
from normdeploy.verification.sides.two_sides import EagerReference, Refused


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)
        with torch.no_grad():
            self.norm.running_mean.fill_(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.linear(x)))


class Picky(Norm):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] not in (2, 4):
            raise ValueError("two or four rows, please")
        return super().forward(x)


@pytest.mark.parametrize("method", ["native", "truth"])
def test_an_eager_reference_prepares_itself_where_nobody_did(method: str):
    model = Norm().train()
    x = torch.randn(5, 4)
    reference = EagerReference(model, Signature(model, x, None, ["x"]), None)
    mean = model.norm.running_mean.clone()
    (found,) = getattr(reference, method)({"x": x.numpy()})
    assert model.training
    assert model.drop.training
    assert torch.equal(model.norm.running_mean, mean)
    with torch.no_grad():
        expected = model.eval()(x)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_preparing_may_be_nested():
    model = Norm().train()
    reference = EagerReference(model, Signature(model, torch.randn(5, 4), None, ["x"]), None)
    with reference.ready():
        with reference.ready():
            assert not model.training
        assert not model.training
    assert model.training


def test_what_the_users_module_raises_is_told_apart():
    model = Picky()
    reference = EagerReference(model, Signature(model, torch.randn(2, 4), None, ["x"]), None)
    with pytest.raises(Refused, match="ValueError: two or four rows, please"):
        reference.truth({"x": np.zeros((3, 4), np.float32)})
    with pytest.raises(KeyError):  # a feed that we forgot is our mistake, not the module's
        reference.truth({})


def test_a_module_that_refuses_a_size_is_named_with_its_words(small: Any, tmp_path: Path):
    class PickyToo(type(small.model)):  # type: ignore[misc] # made in the conftest
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] not in (2, 4):
                raise ValueError("two or four rows, please")
            return super().forward(x)

    model = PickyToo()
    model.load_state_dict(small.model.state_dict())
    known = {"traced": small.traced, "rewritten": small.rewritten}
    verdict = verify(model.eval(), small.folded, args=small.args, level="quick", **known)
    assert verdict.status == "pass", verdict.summary()
    assert any("=1:" in t and "ValueError: two or four rows, please" in t for t in verdict.not_checked)


def test_a_graph_that_cannot_be_evaluated_here_is_not_the_references_failure(
    small: Any, monkeypatch: pytest.MonkeyPatch
):
    def stopped(*_: Any, **__: Any) -> Any:
        raise GraphError("operator Odd (odd) is unknown")

    monkeypatch.setattr("normdeploy.verification.check_context.counted", stopped)
    verdict = small.verdict(small.folded)
    assert verdict.status == "weak", verdict.summary()
    assert any("graph cannot be evaluated here (operator Odd (odd) is unknown)" in t for t in verdict.not_checked)
    assert not any("the reference fails" in t or "refuses" in t for t in [*verdict.reasons, *verdict.not_checked])


def test_noise_that_cannot_be_measured_is_none_and_is_named(small: Any, monkeypatch: pytest.MonkeyPatch):
    def stopped(*_: Any, **__: Any) -> Any:
        raise GraphError("operator Odd (odd) is unknown")

    monkeypatch.setattr(NoisyGraph, "spreads", stopped)
    verdict = small.verdict(small.folded, level="thorough")  # which measures it in every family
    assert any("rounding noise on 'example'" in t and "operator Odd (odd)" in t for t in verdict.not_checked)


def test_a_mistake_of_ours_is_not_swallowed(small: Any, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any, **__: Any) -> Any:
        raise IndexError("ours")

    monkeypatch.setattr(NoisyGraph, "spreads", broken)
    with pytest.raises(IndexError, match="ours"):
        small.verdict(small.folded, level="thorough")


class SinglePrecision(Norm):
    """Stops in any precision but its own, as code around a kernel of one dtype does."""

    def forward(self, x: Tensor) -> Tensor:
        if x.element_size() != torch.finfo(torch.float32).bits // 8:
            raise TypeError("float32 only")
        return super().forward(x)


def test_a_module_without_a_float64_run_is_judged_by_its_traced_graph_and_weakly(tmp_path: Path):
    model, x = SinglePrecision().eval(), torch.randn(3, 4)
    path = save_graph(rewrite(trace(model, x).model).model.clone(), tmp_path / "net.onnx")
    verdict = verify(model, path, args=x, level="quick")
    assert verdict.status == "weak", verdict.summary()
    assert "does not run in float64 (TypeError: float32 only): its traced graph" in verdict.reasons[0]
    proto = onnx.load(str(path))
    tensor = next(t for t in proto.graph.initializer if tuple(t.dims) == (3,))
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.001), tensor.name))
    onnx.save(proto, str(path))
    assert verify(model, path, args=x, level="quick").status == "fail"
