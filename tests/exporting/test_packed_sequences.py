"""Packed sequences: a file whose recurrent operators take lengths, equal to eager torch at any length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import rnn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import normdeploy as nd
from normdeploy.errors import TraceError

LENGTHS = torch.tensor([4, 7, 2])
BOTH = {"bidirectional": True, "num_layers": 2}


class Tagger(nn.Module):
    """A norm of each step and one of the last state, behind a layer that stops where its sequence does."""

    def __init__(self, layer: type[nn.RNNBase], given: dict[str, Any]) -> None:
        super().__init__()
        self.layer = layer(5, 4, batch_first=True, **given)
        width = 8 if self.layer.bidirectional else 4
        self.each, self.norm, self.head = nn.LayerNorm(width), nn.BatchNorm1d(width), nn.Linear(width, 3)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        packed, last = self.layer(packed)
        states = last if isinstance(last, tuple) else (last,)
        every, found = pad_packed_sequence(packed, batch_first=True)
        ends = states[0][-2:].transpose(0, 1).flatten(1) if self.layer.bidirectional else states[0][-1]
        return self.head(self.each(every)), self.head(self.norm(ends)), states[-1], found


def agrees(model: nn.Module, path: Path, *args: Any) -> None:
    """Hold a file against the module on other sequences, the longest of them shorter than the padding."""
    session = onnxruntime.InferenceSession(path)
    feeds = dict(zip([each.name for each in session.get_inputs()], (a.numpy() for a in args), strict=True))
    with torch.no_grad():
        expected = model(*args)
    for found, want in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(found, want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("given", [{}, BOTH, {"bidirectional": True, "bias": False}])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_layer_on_packed_sequences_is_one_operator_for_each_of_its_layers(
    layer: type[nn.RNNBase], given: dict[str, Any], tmp_path: Path
):
    model, path = Tagger(layer, given).eval(), tmp_path / "net.onnx"
    result = nd.export(model, (torch.randn(3, 7, 5), LENGTHS), path, verify="quick")
    assert (result.notes, result.verdict and result.verdict.status) == ([], "pass")
    assert [row.reason for row in result.ledger.rows if row.action == "kept"] == []
    operators = [node.op_type for node in onnx.load(path).graph.node]
    assert operators.count(layer.__name__) == model.layer.num_layers
    agrees(model, path, torch.randn(5, 7, 5), torch.tensor([1, 5, 6, 2, 3]))


class Translator(nn.Module):
    """The states at the ends of sequences are what another layer begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.writes = nn.LSTM(5, 4), nn.LSTM(3, 4)

    def forward(self, x: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
        _, states = self.reads(rnn.pack_padded_sequence(x, lengths, enforce_sorted=False))
        return self.writes(y, states)[0]


class Padding(nn.Module):
    """Nothing between packing and unpacking: what stood behind the ends is gone."""

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return pad_packed_sequence(rnn.pack_padded_sequence(x, lengths, enforce_sorted=False), padding_value=-1.0)


class Longer(nn.Module):
    def __init__(self, total: int) -> None:
        super().__init__()
        self.layer, self.total = nn.GRU(5, 4), total

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed, _ = self.layer(pack_padded_sequence(x, lengths, enforce_sorted=False))
        return pad_packed_sequence(packed, total_length=self.total)[0]


TIME = ({0: torch.export.Dim("t"), 1: torch.export.Dim("n")}, {0: torch.export.Dim("n")})


@pytest.mark.parametrize(
    ("model", "more"),
    [(Translator(), (torch.randn(4, 3, 3),)), (Padding(), ()), (Longer(12), ()), (Longer(7), ())],
    ids=["states", "nothing", "longer", "as long"],
)
def test_time_and_batch_stay_dynamic(model: nn.Module, more: tuple[Tensor, ...], tmp_path: Path):
    shapes = (*TIME, *({1: torch.export.Dim("n")} for _ in more))
    args = (torch.randn(7, 3, 5), LENGTHS, *more)
    result = nd.export(model.eval(), args, tmp_path / "net.onnx", dynamic_shapes=shapes, verify="quick")
    assert (result.notes, result.verdict and result.verdict.status) == ([], "pass")


class LooksInto(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(5, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        packed = rnn.PackedSequence(packed.data.tanh(), packed.batch_sizes, packed.sorted_indices)
        return self.layer(packed)[1]


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(5, 4, proj_size=2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.layer(pack_padded_sequence(x, lengths, enforce_sorted=False))[1][0]


@pytest.mark.parametrize(
    ("model", "said"), [(LooksInto(), "compute on what pad_packed_sequence returns"), (Projected(), "proj_size")]
)
def test_what_has_no_form_is_refused_by_name(model: nn.Module, said: str, tmp_path: Path):
    with pytest.raises(TraceError, match=said):
        nd.export(model.eval(), (torch.randn(7, 3, 5), LENGTHS), tmp_path / "net.onnx", verify=False)


def test_torchs_own_functions_are_as_before(tmp_path: Path):
    model, args = Longer(9).eval(), (torch.randn(7, 3, 5), LENGTHS)
    before = model(*args)
    nd.export(model, args, tmp_path / "net.onnx", verify=False)
    packed = pack_padded_sequence(args[0], LENGTHS, enforce_sorted=False)
    assert packed.batch_sizes.tolist() == [3, 3, 2, 2, 1, 1, 1]
    assert torch.equal(model(*args), before)
