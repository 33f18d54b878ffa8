"""State that a model updates in evaluation mode is told of, by module and name."""

import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.exporting.module.state_updates import Updated
from normdeploy.exporting.trace import trace


class Counter(nn.Module):
    """Counts its calls; the count may take part in the output."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("peak", torch.full((4,), 100.0))

    def forward(self, x):
        if self.how == "in place":
            self.calls.add_(1)
        elif self.how == "assigned":
            self.calls = self.calls + 1
        elif self.how == "same value":  # the run on the example does not move it
            self.peak.copy_(torch.maximum(self.peak, x.amax(0)))
        elif self.how == "read":
            self.calls += x.sum()
            return x + self.calls
        return x * 2


class Net(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.fc, self.seen = nn.Linear(3, 4), Counter(how)

    def forward(self, x):
        return self.seen(self.fc(x))


@pytest.mark.parametrize(
    ("how", "name"), [("in place", "calls"), ("assigned", "calls"), ("same value", "peak"), ("read", "calls")]
)
def test_what_is_updated_is_named(how, name):
    model = Net(how).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    traced = trace(model, torch.randn(2, 3))
    assert traced.updated == (Updated("seen", "Counter", name),)
    (note,) = [note for note in traced.notes if "updates" in note]
    assert "'seen' (Counter)" in note
    assert f"{name!r}" in note
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    found = nd.inspect(model, torch.randn(2, 3)).of_kind("updated-in-evaluation")
    assert [finding.where for finding in found] == [f"seen.{name}"]


def test_running_statistics_kept_by_hand_in_a_plain_attribute():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.drift = torch.zeros(3)

        def forward(self, x):
            self.drift = 0.9 * self.drift + 0.1 * x.mean(0)
            return x - 1

    assert [str(row) for row in trace(Mean().eval(), torch.randn(2, 3)).updated] == [
        "the model itself (Mean) updates 'drift' in evaluation mode"
    ]


def test_nothing_is_said_of_state_at_rest():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    traced = trace(model, torch.randn(2, 3))
    assert traced.updated == ()
    assert not nd.inspect(model, torch.randn(2, 3)).of_kind("updated-in-evaluation")


class Moving(nn.Module):
    """What each call adds to its state takes part in its output."""

    def __init__(self, held):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        if held == "buffer":
            self.register_buffer("moving", torch.zeros(4))
        else:
            self.moving = torch.zeros(4)

    def forward(self, x):
        self.moving.add_(1)
        return self.fc(x) + self.moving


@pytest.mark.parametrize("held", ["buffer", "plain tensor"])
def test_every_run_of_the_reference_finds_the_state_that_the_file_holds(held, tmp_path):
    model = Moving(held).eval()
    x = torch.randn(2, 3)
    result = nd.export(model, x, tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.passed, result.verdict.summary()
    assert any("updates 'moving'" in note for note in result.notes)
    assert not model.moving.any()  # given back
    found = nd.load(tmp_path / "net.onnx")(x.numpy())
    torch.testing.assert_close(torch.from_numpy(found), model(x).detach())
    assert model.moving.eq(1).all()
