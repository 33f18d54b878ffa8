"""torch.distributions in forward: their checks decide by values, and are left out of the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, distributions, nn

import normdeploy as nd
from normdeploy.errors import TraceError


class Policy(nn.Module):
    """The mean of a normal distribution, its logarithmic density at an action, and its entropy."""

    def __init__(self, validate_args: bool | None = None) -> None:
        super().__init__()
        self.body, self.mean, self.deviation = (
            nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8)),
            nn.Linear(8, 3),
            nn.Linear(8, 3),
        )
        self.validate_args = validate_args

    def forward(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.tanh(self.body(x))
        deviation = nn.functional.softplus(self.deviation(h)) + 0.1
        normal = distributions.Normal(self.mean(h), deviation, validate_args=self.validate_args)
        return normal.mean, normal.log_prob(action).sum(-1), normal.entropy()


class Classes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        classes = distributions.Categorical(logits=self.head(self.norm(x)))
        return classes.probs, classes.mode


@pytest.mark.parametrize(
    ("model", "args", "names"),
    [(Policy(), (torch.randn(3, 6), torch.randn(3, 3)), "Normal"), (Classes(), (torch.randn(3, 6),), "Categorical")],
)
def test_distributions_are_traced_and_what_they_do_not_check_is_told(
    model: nn.Module, args: tuple[Tensor, ...], names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(distributions.Distribution, "_validate_args", True)  # dynamo switches it off for a process
    result = nd.export(model.eval(), args, tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass"
    assert result.notes == [f"the file does not check what {names} of torch.distributions takes, as eager torch does"]
    assert distributions.Distribution._validate_args
    with pytest.raises(ValueError, match="invalid values"):  # nothing is left exchanged
        distributions.Normal(torch.zeros(2), -torch.ones(2))


def test_checks_that_a_module_asks_for_itself_stay_its_decision(tmp_path: Path):
    with pytest.raises(TraceError, match="depends on tensor values"):
        nd.export(Policy(validate_args=True).eval(), (torch.randn(3, 6), torch.randn(3, 3)), tmp_path / "net.onnx")
    result = nd.export(
        Policy(validate_args=False).eval(), (torch.randn(3, 6), torch.randn(3, 3)), tmp_path / "net.onnx"
    )
    assert result.notes == []
