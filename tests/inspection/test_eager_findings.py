"""The doctor on eager models: what they hold, what they compute, and silence on torch's own modules."""

import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn import functional

from normdeploy.conformance import by_hand
from normdeploy.errors import InputError
from normdeploy.inspection import inspect


def trained_looking(model):
    """Random statistics and scales, as training leaves them."""
    generator = torch.Generator().manual_seed(5)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.2, 3.0, generator=generator)
            if module.weight is not None:
                nn.init.uniform_(module.weight, 0.5, 1.5, generator=generator)
                nn.init.normal_(module.bias, generator=generator)
    return model


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        y = functional.relu(self.norm1(self.first(x)))
        return functional.relu(x + self.norm2(self.second(y)))


def residual_network():
    stem = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(8, 5)]
    return trained_looking(nn.Sequential(*stem, Residual(8), *head)), torch.randn(2, 3, 16, 16)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.table = nn.Embedding(20, 16)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, ids):
        return self.head(self.body(self.table(ids)).mean(1))


def encoder():
    return Encoder(), torch.randint(0, 20, (2, 6))


def every_norm():
    layers = [
        nn.Conv1d(4, 8, 3, bias=False),
        nn.BatchNorm1d(8),
        nn.GroupNorm(2, 8),
        nn.InstanceNorm1d(8, affine=True, track_running_stats=True),
        nn.LayerNorm(6),
        nn.RMSNorm(6),
        nn.InstanceNorm1d(8),
    ]
    return trained_looking(nn.Sequential(*layers)), torch.randn(2, 4, 8)


def normed_weights():
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 3, bias=False))
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 5))
    layers = [conv, nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), spectral]
    return trained_looking(nn.Sequential(*layers)), torch.randn(2, 3, 6, 6)


def volume():
    layers = [
        nn.Conv3d(2, 4, 3, bias=False),
        nn.BatchNorm3d(4),
        nn.ConvTranspose3d(4, 2, 2, bias=False),
        nn.BatchNorm3d(2),
    ]
    return trained_looking(nn.Sequential(*layers)), torch.randn(2, 2, 5, 5, 5)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(4, 8, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(self.cell(x)[0])


def recurrent():
    return Recurrent(), torch.randn(2, 5, 4)


def sequence_to_sequence():
    return nn.Transformer(8, 2, 1, 1, 16, batch_first=True), (torch.randn(2, 4, 8), torch.randn(2, 3, 8))


@pytest.mark.parametrize(
    "build",
    [
        residual_network,
        encoder,
        every_norm,
        normed_weights,
        volume,
        pytest.param(recurrent, marks=pytest.mark.slow),
        pytest.param(sequence_to_sequence, marks=pytest.mark.slow),
    ],
)
def test_no_alarm_on_torchs_own_modules(build):
    torch.manual_seed(0)
    model, args = build()
    assert list(inspect(model, args)) == []
    assert list(inspect(model)) == []
    assert model.training


def test_a_fresh_batchnorm_is_told_as_never_updated():
    (row,) = inspect(nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4)))
    assert (row.severity, row.kind, row.where) == ("warning", "never-updated", "1")


def test_one_kind_at_many_places_is_told_once():
    model = nn.Sequential(*[nn.BatchNorm1d(4) for _ in range(9)])
    (row,) = inspect(model)
    assert row.where == "0, 1, 2, 3 and 5 more"
    assert row.places == tuple("012345678")


class ByHand(nn.Module):
    """Plain objects and plain tensors, in a plain list, a gradient-selected mode, a head for training only."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.plain = [by_hand.B1(4)]
        self.gradient = by_hand.B4(4, 2)
        self.hidden = {"a": nn.Linear(4, 4, bias=False)}
        self.constant = torch.full((4,), 2.0)
        self.auxiliary = nn.Sequential(nn.Linear(4, 2))

    def forward(self, x):
        y = self.gradient(self.hidden["a"](self.plain[0](self.linear(x))))
        return y * self.constant if not self.training else (y, self.auxiliary(y))


@pytest.fixture(scope="module")
def by_hand_findings():
    torch.manual_seed(0)
    model = ByHand()
    for _ in range(3):
        model(torch.randn(8, 6))
    held = {name: id(value) for name, value in vars(model.plain[0]).items()}
    moving = model.gradient.moving_mean.clone()
    findings = inspect(model, torch.randn(3, 6))
    assert {name: id(value) for name, value in vars(model.plain[0]).items()} == held
    assert torch.equal(model.gradient.moving_mean, moving)
    return findings


def where(findings, kind, severity):
    return {place for row in findings.of_kind(kind) if row.severity == severity for place in row.places}


def test_tensors_outside_state_dict(by_hand_findings):
    assert where(by_hand_findings, "outside-state-dict", "warning") == {"plain.0", "gradient", "hidden.a"}
    assert where(by_hand_findings, "outside-state-dict", "note") == {""}  # the constant
    row = next(row for row in by_hand_findings.of_kind("outside-state-dict") if row.where == "plain.0")
    assert {"gain", "shift", "seen_mean", "seen_var"} == set(row.detail["tensors"])


def test_modes_outside_eval(by_hand_findings):
    assert where(by_hand_findings, "outside-eval", "warning") == {"plain.0", "hidden.a"}


def test_a_mode_selected_by_gradients(by_hand_findings):
    (row,) = by_hand_findings.of_kind("gradient-selected-mode")
    assert (row.severity, row.where) == ("warning", "gradient")


def test_what_serves_training_only(by_hand_findings):
    assert where(by_hand_findings, "training-only", "note") == {"auxiliary"}


def test_a_redundant_bias_in_front_of_a_handwritten_norm(by_hand_findings):
    assert where(by_hand_findings, "redundant-bias", "note") == {"linear"}


def test_nothing_else_is_said_of_it(by_hand_findings):
    assert {row.kind for row in by_hand_findings} == {
        "outside-state-dict",
        "outside-eval",
        "gradient-selected-mode",
        "training-only",
        "redundant-bias",
        "training-variance",
    }


def test_untracked_statistics_are_an_error_with_a_demonstration():
    model = nn.Sequential(nn.Linear(6, 4, bias=False), nn.BatchNorm1d(4, track_running_stats=False))
    (row,) = inspect(model, torch.randn(3, 6))
    assert (row.severity, row.kind, row.where) == ("error", "batch-statistics", "1")
    assert "the same sample gives output = [" in row.what
    (row,) = inspect(model)
    assert (row.severity, row.kind, row.where) == ("error", "batch-statistics", "1")


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = trained_looking(nn.BatchNorm1d(4))

    def forward(self, x):
        return functional.batch_norm(x, self.norm.running_mean, self.norm.running_var, training=True)


def test_a_functional_norm_that_stays_in_training():
    model = nn.Sequential(nn.Linear(6, 4), Functional())
    mean = model[1].norm.running_mean.clone()
    (row,) = inspect(model, torch.randn(3, 6))
    assert (row.severity, row.kind, row.where) == ("error", "stuck-in-training", "1")
    assert "the same sample gives" in row.what.lower()
    assert torch.equal(model[1].norm.running_mean, mean)


class TrainingOperator:
    training = property(lambda _: True)


def test_a_mode_that_cannot_be_switched():
    model = nn.Sequential(nn.Linear(6, 4))
    model.part = TrainingOperator()
    (row,) = inspect(model, torch.randn(3, 6)).errors
    assert (row.kind, row.where) == ("stuck-in-training", "part")


@pytest.mark.parametrize("rows", [8, 5], ids=["the batch it saw last", "another batch"])
def test_running_layernorm_statistics(rows):
    model = nn.Sequential(nn.Linear(6, 4), by_hand.L2(4))
    model(torch.randn(8, 6))
    findings = inspect(model, torch.randn(rows, 6))
    (row,) = findings.errors
    assert (row.kind, row.where) == ("running-layernorm", "1")
    assert row.detail["shape"] == [8, 1]


def test_unbiased_layernorm_of_a_plain_class():
    model = nn.Identity()
    model.norm = by_hand.L1(4)
    model.forward = lambda x: model.norm(x)
    (row,) = inspect(model, torch.randn(3, 4)).of_kind("unbiased-variance")
    assert row.detail["count"] == 4


def test_an_unbiased_variance_shows_without_an_epsilon():
    """The scale before any affine says it: sqrt((n - 1) / n)."""

    class Plain(nn.Module):
        def __init__(self, correction):
            super().__init__()
            self.correction, self.gain = correction, nn.Parameter(torch.rand(6) + 0.5)

        def forward(self, x):
            return (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=self.correction, keepdim=True) * self.gain

    (row,) = inspect(Plain(1), torch.randn(3, 6)).of_kind("unbiased-variance")
    assert row.detail["count"] == 6
    assert not inspect(Plain(0), torch.randn(3, 6)).of_kind("unbiased-variance")


def test_an_unbiased_variance_over_a_dynamic_axis_is_told():
    text = """
        <ir_version: 10, opset_import: ["" : 20]>
        net (float[n, w] x) => (float[n, w] y)
        <int64[1] last = {-1}, int64 one = {1}, int64 at = {1}, float e = {0.001}>
        {
            m = ReduceMean <keepdims = 1> (x, last)
            d = Sub (x, m)
            s = ReduceSumSquare <keepdims = 1> (d, last)
            sizes = Shape (x)
            c = Gather (sizes, at)
            r = Sub (c, one)
            f = Cast <to = 1> (r)
            v = Div (s, f)
            u = Add (v, e)
            q = Sqrt (u)
            y = Div (d, q)
        }
    """
    (row,) = inspect(ir.from_onnx_text(text)).of_kind("unbiased-variance")
    assert "n is dynamic" in row.what


class Tied(nn.Module):
    """A table under two names, read under the second; a cache of gathered biases."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Embedding(7, 4)
        self.body = nn.Module()
        self.body.table = self.shared
        self.biases = nn.Parameter(torch.randn(3))
        self.cache = {}

    def forward(self, ids):
        if "cpu" not in self.cache:
            self.cache["cpu"] = self.biases[torch.tensor([0, 1, 1, 2])].detach()
        return self.body.table(ids) + self.cache["cpu"]


def test_tied_weights_and_caches_of_parameters_are_no_findings():
    model, ids = Tied().eval(), torch.tensor([[1, 2], [3, 4]])
    with torch.no_grad():
        model(ids)
    assert list(inspect(model, (ids,))) == []
    model.cache["cpu"] = torch.tensor([5.0, 6.0, 7.0, 8.0])  # no element of the parameter
    assert [row.kind for row in inspect(model, (ids,))] == ["outside-state-dict"]


def test_a_model_that_cannot_be_traced_is_a_finding():
    class Opaque(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    (row,) = inspect(nn.Sequential(Opaque()), torch.randn(3, 4))
    assert (row.severity, row.kind) == ("error", "not-traceable")
    assert "'0' (Opaque" in row.what


def test_wrong_arguments_are_an_error_of_the_caller():
    with pytest.raises(InputError):
        inspect(nn.Linear(3, 3), torch.randn(2, 5))


def test_statistics_in_temporary_buffers():
    model = nn.Linear(3, 3)
    model.register_buffer("running_mean", torch.randn(3), persistent=False)
    model.register_buffer("positions", torch.arange(3.0), persistent=False)
    (row,) = inspect(model)
    assert (row.severity, row.kind, row.detail["tensors"]) == ("warning", "outside-state-dict", ["running_mean"])


class Branching(nn.Module):
    """A normalization inside a branch of torch.cond, which may have no side effects."""

    def __init__(self):
        super().__init__()
        self.norm = trained_looking(nn.BatchNorm1d(4))

    def forward(self, x):
        return torch.cond(x[:, 0].abs().max() > 100, lambda x: self.norm(x), lambda x: -x, (x,))


def test_a_model_with_branches_of_torch_cond():
    assert list(inspect(Branching(), torch.randn(3, 4))) == []
