"""What torch wraps around a model: compiled, distributed, without numbers, or another kind of program altogether."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import normdeploy as nd
from normdeploy.errors import InputError, ModelError
from normdeploy.exporting.eager import eager_module


class Compilations:
    """A backend of torch.compile that counts what it is asked for."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, _: Any) -> Callable[..., Any]:
        self.count += 1
        return graph.forward


def network() -> nn.Sequential:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    for tensor in (net[1].running_mean, net[1].running_var, net[1].weight, net[1].bias):
        nn.init.uniform_(tensor, 0.5, 2.0)
    return net


class Holding(nn.Module):
    """A part of it compiled, and a function of its forward."""

    def __init__(self, backend: Any) -> None:
        super().__init__()
        self.body = torch.compile(network(), backend=backend)
        self.end = torch.compile(lambda x: x.tanh() + 1, backend=backend)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.body(x))


class Plain(nn.Module):
    """The network, by a forward that torch.compile does not take for one of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def in_place(backend: Any) -> nn.Module:
    net = Plain()
    net.compile(backend=backend)
    return net


@pytest.mark.parametrize(
    "make",
    [lambda backend: torch.compile(network(), backend=backend), in_place, Holding],
    ids=["wrapper", "in place", "a part"],
)
def test_what_is_compiled_is_judged_as_it_was_written(make: Callable[[Any], nn.Module], tmp_path: Path) -> None:
    """torch.export itself may compile; the backend that the user named is asked for nothing."""
    backend, x = Compilations(), torch.randn(2, 3, 6, 6)
    model = make(backend)
    result = nd.export(model, x, tmp_path / "net.onnx")
    assert result.verdict is not None
    assert result.verdict.passed
    assert [row.action for row in result.ledger if row.kind == "BatchNormalization"] == ["folded"]
    assert nd.verify(model, tmp_path / "net.onnx", args=x).passed
    nd.inspect(model, x)
    assert backend.count == 0
    with torch.no_grad():
        model(x)
    assert backend.count > 0  # what was compiled still is


def test_a_forward_in_inference_mode_runs_in_float64(tmp_path: Path) -> None:
    class Inferring(nn.Sequential):
        @torch.inference_mode()
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).sigmoid().log()

    result = nd.export(Inferring(*network()), torch.randn(2, 3, 6, 6), tmp_path / "net.onnx")
    assert result.verdict is not None
    assert result.verdict.passed


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.InstanceNorm2d])
def test_a_model_without_numbers_is_named(kind: Callable[..., nn.Module], tmp_path: Path) -> None:
    model = nn.Sequential(kind(3, affine=True, device="meta"))
    for ask in (
        lambda: nd.export(model, torch.randn(2, 3, 6, 6), tmp_path / "net.onnx"),
        lambda: nd.inspect(model, torch.randn(2, 3, 6, 6)),
    ):
        with pytest.raises(ModelError, match=r"'0\.weight' lies on device 'meta'.*to_empty"):
            ask()


def test_programs_of_other_kinds_say_what_to_hand_over(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 6, 6)
    program = torch.export.export(network().eval(), (x,))
    with pytest.raises(ModelError, match=r"ExportedProgram; .*program\.module\(\)"):
        nd.export(program, x, tmp_path / "net.onnx")  # type: ignore[arg-type] # what the message is about
    result = nd.export(program.module(), x, tmp_path / "net.onnx")
    assert result.verdict is not None
    assert result.verdict.passed
    with pytest.warns(DeprecationWarning, match="jit"):
        scripted = torch.jit.script(network())
    with pytest.raises(ModelError, match=r"RecursiveScriptModule.*scripted or traced from"):
        nd.export(scripted, x, tmp_path / "other.onnx")


@pytest.fixture
def process_group() -> Iterator[None]:
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("form", ["first", "second"])
def test_a_model_sharded_among_processes_is_told_how_to_become_whole(form: str, tmp_path: Path) -> None:
    net, x = network(), torch.randn(2, 3, 6, 6)
    if form == "second":
        fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    else:
        net = nn.Sequential(FullyShardedDataParallel(net, device_id=torch.device("cpu")))
    with pytest.raises(ModelError, match=r"'0(\.weight)?' is sharded .*get_model_state_dict.*full_state_dict=True"):
        nd.export(net, x, tmp_path / "net.onnx")


def test_a_lazy_layer_that_never_ran_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.LazyBatchNorm2d())
    with pytest.raises(ModelError, match=r"'1\.weight' has no size yet.*run the model once"):
        nd.export(model, torch.randn(2, 3, 6, 6), tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"'1\.weight' has no size yet"):
        nd.inspect(model, torch.randn(2, 3, 6, 6))
    model(torch.randn(2, 3, 6, 6))
    assert nd.export(model, torch.randn(2, 3, 6, 6), tmp_path / "net.onnx", verify="quick").verdict.passed


NOT_DENSE: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "sparse": (lambda x: x.to_sparse(), r"of layout torch\.sparse_coo; .*to_dense"),
    "rows of a sparse matrix": (lambda x: x[0, 0].to_sparse_csr(), r"of layout torch\.sparse_csr; .*to_dense"),
    "nested": (
        lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged),
        "is nested; .*to_padded_tensor",
    ),
    "quantized": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "is quantized; .*dequantize"),
    "without numbers": (lambda x: x.to("meta"), "on device 'meta'"),
    "an array": (lambda x: x.numpy(), "hold no tensor; .*torch.from_numpy"),
}


# torch calls these layouts a prototype
@pytest.mark.filterwarnings("ignore:.*(Sparse CSR|nested tensors|quantize):UserWarning")
@pytest.mark.parametrize("kind", NOT_DENSE)
def test_an_example_that_no_file_takes_is_named(kind: str, tmp_path: Path) -> None:
    made, said = NOT_DENSE[kind]
    example = made(torch.rand(2, 3, 6, 6))
    with pytest.raises(InputError, match=said):
        nd.export(network(), (example,), tmp_path / "net.onnx")
    with pytest.raises(InputError, match=said):
        nd.inspect(network(), (example,))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (nn.Linear, r"class type; .*call the class"),
        (nn.Linear(2, 2).state_dict(), r"class OrderedDict; .*load these weights into it"),
        ("net.pt", r"class str; .*load its weights into it"),
        (lambda x: x, r"class function; .*wrap what computes in a module"),
    ],
)
def test_what_is_no_module_is_refused_with_what_to_do(given: object, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        eager_module(given)


@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_a_part_in_torchscript_is_named(kind: str, tmp_path: Path) -> None:
    part = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    x = torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        inner = torch.jit.script(part) if kind == "scripted" else torch.jit.trace(part, x)
    model = nn.Sequential(inner, nn.ReLU()).eval()
    for asked in (lambda: nd.export(model, x, tmp_path / "net.onnx"), lambda: nd.inspect(model, x)):
        with pytest.raises(ModelError, match=r"'0' is of class .*expected an eager torch.nn.Module in its place"):
            asked()
