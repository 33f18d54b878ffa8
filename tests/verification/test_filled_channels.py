"""Values in blocks whose last channels are filling: such files are confirmed, and what reads the filling is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from optimized_files import operators, optimized
from torch import Tensor, nn

from normdeploy.graph.operators.contrib import BLOCKED_DOMAIN
from normdeploy.graph.operators.contrib.nchwc import block_size
from normdeploy.verification import verify

WIDTHS = (12, 20)


class Net(nn.Module):
    """Convolutions that fill no whole blocks; what stands in the filling is sigmoid(0), a half."""

    def __init__(self) -> None:
        super().__init__()
        first, second = WIDTHS
        self.stem, self.inner = nn.Conv2d(3, first, 3, padding=1), nn.Conv2d(first, second, 3, padding=1)
        self.skip, self.out = nn.Conv2d(first, second, 1), nn.Conv2d(second, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.stem(x).sigmoid(), 2)
        x = (self.inner(x) + self.skip(x)).sigmoid()
        result: Tensor = self.out(x).sigmoid()
        return result


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("filled")
    torch.manual_seed(0)
    torch.onnx.export(Net().eval(), (torch.randn(2, 3, 8, 8),), folder / "a.onnx", verbose=False, external_data=False)
    proto = optimized(folder / "a.onnx", folder / "b.onnx", "all")
    if "Conv" not in operators(proto, BLOCKED_DOMAIN):
        pytest.skip("this processor's onnxruntime lays nothing in blocks")
    return folder / "a.onnx", folder / "b.onnx"


def test_a_file_whose_blocks_are_filled_up_is_confirmed_for_every_input(files: tuple[Path, Path]) -> None:
    for source, file in (files, files[::-1]):
        verdict = verify(source, file, level="quick")
        assert verdict.status == "pass", verdict.summary()
        assert verdict.check("derivation").status == "pass", verdict.summary()


def kernels(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return the kernels of the convolutions that read another one's blocks, filling and all.

    What ReorderInput lays in blocks is filled with zeros, of which a weight changes nothing: so it is in front of the
    others where 12 channels are no whole blocks and MaxPool is left as it was.
    """
    convs = [node for node in proto.graph.node if node.domain == BLOCKED_DOMAIN and node.op_type == "Conv"]
    made = {name for node in convs for name in node.output}
    named = {node.input[1] for node in convs if node.input[0] in made}
    return [t for t in proto.graph.initializer if t.name in named and t.dims[1] >= block_size()]


def change(tensor: onnx.TensorProto, edit: Callable[[np.ndarray], None]) -> None:
    array = numpy_helper.to_array(tensor).copy()
    edit(array)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def last_digits(proto: onnx.ModelProto) -> None:
    def edit(array: np.ndarray) -> None:
        numbers = array.reshape(-1).view(np.int32)
        numbers[np.flatnonzero(array)[7]] += 64

    change(kernels(proto)[0], edit)


def reads_the_filling(proto: onnx.ModelProto) -> None:
    """[O / B, I / B, H, W, B of I, B of O]: a weight of the last operand, which no channel is."""

    def edit(array: np.ndarray) -> None:
        blocks = array.reshape(array.shape[0] // block_size(), -1, *array.shape[2:], block_size(), block_size())
        assert not blocks[0, -1, ..., -1, 0].any()
        blocks[0, -1, ..., -1, 0] = 0.1

    change(kernels(proto)[0], edit)


def fewer_channels(proto: onnx.ModelProto) -> None:
    """The last channel that is given back is the filling behind it."""
    node = next(n for n in proto.graph.node if n.op_type == "ReorderOutput")
    named = next(n for n in proto.graph.node if node.input[0] in n.output)
    tensor = next(t for t in proto.graph.initializer if t.name == named.input[1])

    def edit(array: np.ndarray) -> None:
        blocks = array.reshape(array.shape[0] // block_size(), -1, block_size())
        channel = node.attribute[0].i - 1 if node.attribute[0].name == "channels" else node.attribute[1].i - 1
        blocks[channel // block_size(), :, channel % block_size()] = 0

    change(tensor, edit)


@pytest.mark.parametrize("damage", [last_digits, reads_the_filling, fewer_channels])
def test_a_damaged_kernel_in_blocks_is_found(
    damage: Callable[[onnx.ModelProto], None], files: tuple[Path, Path], tmp_path: Path
) -> None:
    proto = onnx.load(files[1])
    damage(proto)
    onnx.save(proto, tmp_path / "damaged.onnx")
    verdict = verify(files[0], tmp_path / "damaged.onnx", level="quick")
    assert verdict.status == "fail", verdict.summary()
