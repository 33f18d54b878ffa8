"""A size that is fed as a number stays what the original checks it against: -1 would take up what does not fit."""

from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.rewrite.weights.sizes_by_data import sized_by_data
from normdeploy.verification.record.measured import in_plain_data

FRAMES, WIDTH = 5, 8


class MaskedByLengths(nn.Module):
    """Attention as encoders of speech write it: the mask is as long as the longest of the lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        longest = int(torch.max(lengths).item())
        padded = torch.arange(longest).expand(lengths.shape[0], longest) >= lengths.unsqueeze(1)
        h = self.norm(x)
        return self.head(x + self.attention(h, h, h, key_padding_mask=padded, need_weights=False)[0])


def test_a_mask_of_another_length_is_refused_as_the_module_refuses_it(tmp_path: Path):
    torch.manual_seed(0)
    model = MaskedByLengths().eval()
    x, lengths = torch.randn(2, FRAMES, WIDTH), torch.tensor([FRAMES, 3])
    result = nd.export(model, (x, lengths), tmp_path / "n.onnx")
    judged = next(check for check in result.verdict.checks if check.name == "derivation")
    measured = in_plain_data(judged.measured)
    assert not measured["by_samples_only"], measured["by_samples_only"]

    run, row, fits = nd.load(tmp_path / "n.onnx"), x[:1], lengths[:1]
    with torch.no_grad():
        expected = model.double()(row.double(), fits)
    (found,) = run({"x": row.numpy(), "lengths": fits.numpy()}).values()
    torch.testing.assert_close(torch.from_numpy(found).double(), expected, rtol=1e-5, atol=1e-6)
    for wrong in (2 * FRAMES, 3 * FRAMES, FRAMES - 1):  # of twice as many rows -1 would make a batch of two
        with pytest.raises(nd.NormdeployError):
            run({"x": row.numpy(), "lengths": torch.tensor([wrong]).numpy()})
        with pytest.raises(Exception, match=f"to be {FRAMES}, but got {wrong}"):
            model(row.double(), torch.tensor([wrong]))


@pytest.mark.parametrize(
    ("made", "by_data"),
    [
        ("n = ReduceMax<keepdims = 0>(lengths) made = Range(zero, n, one)", True),
        ("s = Shape(x) n = Gather(s, zero) made = Range(zero, n, one)", False),
        ("s = Shape(x) e = Gather(s, ones) made = ConstantOfShape(e)", False),
        ("e = Reshape(longest, ones) made = ConstantOfShape(e)", True),
        ("made = Expand(ones, long)", True),
        ("f = Flatten(x) q = ReduceSum<keepdims = 0>(f, ones) made = NonZero(q)", True),
        ("made = Slice(lengths, zeros, long)", True),
        ("made = Abs(lengths)", False),
    ],
)
def test_sizes_that_are_fed_as_numbers_are_told_from_sizes_of_inputs(made: str, by_data: bool):
    rank = 2 if "NonZero" in made else 1
    dims = ("k, n" if rank == 2 else "n") if "Abs" not in made else "batch"
    model = ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["" : 18]> g (float[batch, 4] x, int64[batch] lengths, int64[1] long,
        int64 longest) => (y) <int64 zero = {{0}}, int64 one = {{1}}, int64[1] ones = {{1}}, int64[1] zeros = {{0}}> {{
        {made} y = Cast<to = 1>(made) }}"""
    )
    value = next(out for node in model.graph for out in node.outputs if out.name == "made")
    value.shape = ir.Shape([name.strip() for name in dims.split(",")])
    read = next(node for node in model.graph if node.op_type == "Cast").outputs[0]
    read.shape = value.shape
    assert sized_by_data(value) is by_data
    assert sized_by_data(read) is by_data
