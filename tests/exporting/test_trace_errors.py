"""What stops a trace is told by classes and by trying: words in a message decide nothing."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.onnx._internal.exporter import _capture_strategies

import normdeploy as nd
from normdeploy.errors import TraceError
from normdeploy.exporting.torch_exporter import torch_exceptions
from normdeploy.exporting.trace import trace
from normdeploy.rewrite.recognise import ledger_rows

WORDS = "data-dependent, No ONNX function found, Constraints violated, numpy, FakeTensor; inputs['x'].shape[0]"


class Misleading(nn.Module):
    """Fails under the trace alone, with every word that another failure would have."""

    def forward(self, x):
        if torch.compiler.is_compiling():
            raise ValueError(WORDS)
        return x


class Bytes(nn.Module):
    def forward(self, x):
        return x + float(np.frombuffer(x.numpy().tobytes(), np.float32)[0])


class Pointer(nn.Module):
    def forward(self, x):
        return x + x.data_ptr() % 2


class Exchanged(nn.Module):
    def forward(self, x):
        return x * torch.from_numpy(np.from_dlpack(x).copy())


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Decomposed(nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x)[0]


class Refusing(nn.Module):
    """Asks for other sizes where it is traced, and looks at numbers outside of torch before."""

    def forward(self, x):
        assert np.isfinite(float(x.detach().cpu().numpy()[0, 0])) if not torch.compiler.is_compiling() else True
        if torch.compiler.is_compiling() and x.shape[1] != 4:
            raise ValueError(f"a mask of {x.shape[1]}")
        return x


class Fixed(nn.Module):
    def forward(self, x):
        return x.reshape(2, 3) * 2


class Mapped(nn.Module):
    def __init__(self, out: int) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(3), out

    def forward(self, x):
        return torch.func.vmap(self.norm, out_dims=self.out)(x.reshape(2, -1, 3))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Branch(), "control flow depends on tensor values"),
        (Decomposed(), "no ONNX translation"),
        (Bytes(), "leaves torch"),
        (Pointer(), "leaves torch"),
        (Exchanged(), "leaves torch"),
        (Refusing(), "refuses by itself"),
        (Mapped(1).eval(), r"vmap.*leave out_dims at 0"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_cause_is_told_whatever_the_shapes(model, expected):
    for shapes in (None, {"x": {0: "rows"}}):
        with pytest.raises(TraceError, match=expected):
            trace(model, torch.rand(2, 3), dynamic_shapes=shapes)


def test_what_stays_in_front_where_it_is_mapped_is_traced():
    """The remedy that is told."""
    assert trace(Mapped(0).eval(), torch.rand(2, 3)).model.graph.outputs


def test_what_is_not_known_to_stop_a_trace_is_told_no_remedy_that_was_tried(monkeypatch):
    monkeypatch.setattr(torch_exceptions, "import_module", lambda _: np)
    for shapes in (None, {}, {"x": {0: "rows"}}):
        with pytest.raises(TraceError, match="with fixed shapes either") as failed:
            trace(Branch(), torch.rand(2, 3), dynamic_shapes=shapes)
        assert "dynamic_shapes" not in str(failed.value)


def test_what_cannot_be_run_is_not_asked_of_dynamo(monkeypatch):
    """It cannot follow the forward in the model's place, even of what a trace by running follows."""
    asked, ask = set(), _capture_strategies.CaptureStrategy.__call__

    def noted(self, *args, **named):
        asked.add(type(self).__name__)
        return ask(self, *args, **named)

    monkeypatch.setattr(_capture_strategies.CaptureStrategy, "__call__", noted)
    with pytest.raises(TraceError, match="control flow depends"):
        trace(Branch(), torch.rand(2, 3))
    assert asked == {"TorchExportNonStrictStrategy"}


def test_an_attribute_that_would_follow_the_batch_is_told_in_words_of_ours():
    class Grouped(nn.Module):
        """Each sample has a filter of its own, as in StyleGAN: a group of one convolution."""

        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y = nn.functional.conv1d(x.reshape(1, -1, x.shape[2]), w.reshape(-1, 2, 3), groups=x.shape[0])
            return y.reshape(x.shape[0], 4, -1)

    note = " ".join(trace(Grouped(), (torch.rand(2, 2, 5), torch.rand(2, 4, 2, 3))).notes)
    assert "an attribute of an operator of the model (Grouped" in note
    assert "give the example the batch that will be run" in note


NAMES = (*torch_exceptions.CONTROL_FLOW, *torch_exceptions.NO_TRANSLATION, *torch_exceptions.NO_NODE)


@pytest.mark.parametrize("place", [*NAMES, torch_exceptions.USER_ERROR, torch_exceptions.USER_ERROR_TYPE])
def test_torch_has_the_class_that_is_looked_for(place):
    (found,) = torch_exceptions.found(place)
    assert found.__name__ == place[1]


def test_where_torch_has_moved_its_classes_a_trace_fails_with_what_torch_said(monkeypatch):
    monkeypatch.setattr(torch_exceptions, "import_module", lambda _: np)  # which has none of them
    assert torch_exceptions.found(*NAMES) == ()
    trace(nn.Linear(3, 4), torch.rand(2, 3))
    with pytest.raises(TraceError, match=r"Branch.*cannot be traced, .* \(GuardOnDataDependent.*expected a forward"):
        trace(Branch(), torch.rand(2, 3))


def test_words_in_a_message_tell_no_cause():
    for shapes in (None, {"x": {0: "rows"}}):
        with pytest.raises(
            TraceError, match=r"refuses by itself .* \(ValueError: data-dependent.*look at the condition"
        ):
            trace(Misleading(), torch.rand(2, 3), dynamic_shapes=shapes)


def test_a_dimension_that_was_asked_for_and_is_fixed_is_told_of():
    with pytest.raises(TraceError, match=r"fixes a dimension that was asked to be dynamic.*x\.shape"):
        trace(Fixed(), torch.rand(2, 3), dynamic_shapes={"x": {0: "rows"}})


class Companion(nn.Module):
    """Two inputs have the batch of each other, one a table's length, and the message of its failure names none."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(4, 3))

    def forward(self, x, y, table):
        if table.shape[0] != 4:
            raise ValueError("inputs['x'].shape[0]")
        return (x + y) @ (table + self.rows).T


def test_inputs_that_fix_the_batch_are_found_by_running_the_model():
    traced = trace(Companion(), (torch.rand(4, 3), torch.rand(4, 3), torch.rand(4, 3)))
    assert [str(value.shape[0]) for value in traced.model.graph.inputs] == ["batch", "batch", "4"]
    assert [note for note in traced.notes if "batch dimension of 'table' is fixed" in note]


class Recentred(nn.Module):
    def forward(self, x):
        return (x - x.mean(0, keepdim=True)) / torch.sqrt(x.var(0, keepdim=True, unbiased=False) + 1e-5)


def test_a_rows_kind_does_not_follow_the_words_of_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_rows, "REASON", "other words")
    traced = trace(nn.Sequential(nn.Linear(3, 3), Recentred()), torch.rand(4, 3))
    ir.save(traced.model, tmp_path / "source.onnx")
    result = nd.fold(tmp_path / "source.onnx", tmp_path / "net.onnx", verify=False)
    assert [(row.kind, row.reason) for row in result.ledger if row.action == "kept"] == [
        ("batch statistics", "other words")
    ]
