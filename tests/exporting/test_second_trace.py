"""The second trace of torch's exporter is left out where it repeats the first, and nowhere else."""

import itertools

import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.onnx._internal.exporter import _fx_passes

from normdeploy.exporting.torch_exporter import batched
from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator


class Forward(nn.Module):
    """A module of one function and what it reads."""

    def __init__(self, function, **held):
        super().__init__()
        self.function = function
        for name, module in held.items():
            setattr(self, name, module)

    def forward(self, *args):
        return self.function(self, *args)


@pytest.fixture
def traced(monkeypatch):
    """Return (graph, number of second traces) of a module, as it is now and with torch's two traces."""
    seconds = []
    torchs = _fx_passes.decompose_with_registry
    monkeypatch.setattr(
        _fx_passes, "decompose_with_registry", lambda *args, **named: seconds.append(1) or torchs(*args, **named)
    )

    def both(module, *args, **options):
        ours = trace(module.eval(), args, **options).model
        count = len(seconds)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batched, "second_trace_where_needed", lambda: pytest.MonkeyPatch.context())
            two = trace(module.eval(), args, **options).model
        assert len(seconds) == count + 1
        return ours, two, count

    return both


def written(model):
    """Return a graph's bytes; values are named and weights ordered alike, what the exporter notes is left out."""
    numbers, graph = itertools.count(), model.graph
    model.metadata_props.clear()
    graph.metadata_props.clear()
    for node in ir.traversal.RecursiveGraphIterator(graph):
        node.name = None
        node.metadata_props.clear()
        for value in node.outputs:
            value.name = f"value{next(numbers)}"
            value.metadata_props.clear()
    weights = sorted(graph.initializers.items())
    graph.initializers.clear()
    graph.initializers.update(weights)
    return ir.to_proto(model).SerializeToString(deterministic=True)


def tied():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.GELU(), second)


IMAGES = torch.randn(2, 3, 8, 8)
ROWS = torch.randn(3, 4)

ONCE = {
    "convolutions": (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, bias=False)), IMAGES),
    "BatchNorms": (
        nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4)),
        IMAGES,
    ),
    "rows": (nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 5), nn.LayerNorm(5), nn.Softmax(-1)), ROWS),
    "statistics": (nn.Sequential(nn.GroupNorm(3, 3), nn.SiLU(), nn.InstanceNorm2d(3, affine=True)), IMAGES),
    "pooling": (nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Hardswish()), IMAGES),
    "a branch": (
        Forward(lambda net, x: x + net.norm(net.conv(x)), conv=nn.Conv2d(3, 3, 1), norm=nn.BatchNorm2d(3)),
        IMAGES,
    ),
    "several results": (Forward(lambda _net, x: [part * 2 for part in x.unbind(-1)]), ROWS),
    "two outputs": (Forward(lambda net, x: {"norm": net.norm(x), "double": 2 * x}, norm=nn.BatchNorm1d(4)), ROWS),
    "a transpose": (
        Forward(lambda net, x: x.transpose(1, 2) @ net.weight, weight=nn.Parameter(torch.randn(8, 2))),
        IMAGES[0],
    ),
    "a classifier": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(4, 2)),
        IMAGES,
    ),
    "views of two sizes": (
        Forward(lambda _net, x, y: (x.flatten(1), y.flatten(2), y.flatten(1, 2))),
        (IMAGES, IMAGES[:, None]),
    ),
    "a tied weight": (tied(), ROWS),
    "in place": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)), IMAGES),
    "in place of a sum": (Forward(lambda _net, x: (x + 1).mul_(x).add_(2).clamp_(min=0)), ROWS),
    "flattened in another order": (Forward(lambda _net, x: x.transpose(1, 2).flatten(1)), IMAGES),
    "reshaped": (Forward(lambda _net, x: x.reshape(x.shape[0], 3, -1).transpose(1, 2).reshape(x.shape[0], -1)), IMAGES),
    "reshaped to an unknown length": (Forward(lambda _net, x: x.reshape(-1, 8)), IMAGES),
    "cut in pieces": (Forward(lambda net, x: net.norm(sum(x.chunk(2, 1)))[:, :1], norm=nn.BatchNorm1d(2)), ROWS),
    "unflattened": (
        Forward(lambda _net, x: x.unflatten(2, (2, -1)).movedim(1, 3).contiguous().narrow(1, 0, 1)),
        IMAGES,
    ),
    "already in one piece": (Forward(lambda _net, x: (x + 1).contiguous().mT + x.to(torch.float32)), IMAGES),
    "as another": (
        Forward(lambda _net, x: (x.mean(1, keepdim=True).expand_as(x), x.mT.reshape_as(x), (x + 1).view_as(x))),
        IMAGES,
    ),
    "of length one": (Forward(lambda _net, x: nn.functional.normalize(x, dim=-1) @ x.swapaxes(0, 1)), ROWS),
    "turned": (Forward(lambda _net, x: x.movedim((0, 1), (1, 0)).T + x), ROWS),
    "other corrections": (
        Forward(lambda _net, x: x.std(-1, correction=0, keepdim=True) / x.var((0, 1), correction=2)),
        ROWS,
    ),
    "at another place": (
        Forward(lambda _net, x: (x + 1).to(x.device, torch.float64).sum(-1) + x.to("cpu").to(device="cpu").mean(-1)),
        ROWS,
    ),
    "a type and a place by name": (Forward(lambda _net, x: x.to(dtype=torch.float16, device=x.device) * 2), ROWS),
    "another type": (Forward(lambda _net, x: x.to(torch.float64).std(-1) + x.var(-1, keepdim=True)), ROWS),
    "transposed convolutions": (
        nn.Sequential(nn.ConvTranspose2d(3, 2, 2), nn.Flatten(2), nn.ConvTranspose1d(2, 2, 3, stride=2)),
        IMAGES,
    ),
    "an unread operator": (Forward(lambda _net, x: (x.sin(), x.cos())[0]), ROWS),
    "unread parts": (Forward(lambda _net, x: x.split(2, 1)[0].exp()), ROWS),
    "a size": (Forward(lambda _net, x: x * x.shape[0]), ROWS),
    "sizes": (Forward(lambda _net, x: x[: x.shape[0] // 2 + 1] * (x.shape[0] * 2 - 1)), ROWS),
    "a constant": (Forward(lambda _net, x: x + torch.tensor([1.0, 2, 3, 4])), ROWS),
    "a buffer not kept": (Forward(lambda net, x: x + net.inner.kept, inner=nn.Module()), ROWS),
    "an input returned": (Forward(lambda _net, x: (x, x + 1)), ROWS),
    "attention": (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), ROWS[None]),
    "an unread weight": (Forward(lambda _net, x: x.sin(), unread=nn.Linear(2, 2)), ROWS),
}

TWICE = {
    "in place of an input": (Forward(lambda _net, x: x.transpose(0, 1).relu_()), ROWS),
    "in place of what is read": (Forward(lambda _net, x: (y := x + 1, y * 3, y.mul_(2))[1] + y), ROWS),
    "in place of a view": (Forward(lambda _net, x: (y := x + 1, y[:, :2].relu_())[0]), ROWS),
    "in place of what a Dropout returns": (nn.Sequential(nn.Dropout(), nn.ReLU(inplace=True)), ROWS),
    "a pool of four": (nn.Sequential(nn.AdaptiveAvgPool2d(2)), IMAGES),
    "channels flattened with the batch": (nn.Sequential(nn.Flatten(0, 1)), IMAGES),
    "an unknown length in another order": (Forward(lambda _net, x: x.transpose(1, 2).reshape(-1, 24)), IMAGES),
    "as what was joined": (Forward(lambda _net, x: x.sum(0, keepdim=True).expand_as(torch.cat([x, x]))), ROWS),
    "a length of one": (Forward(lambda _net, x: x.unflatten(0, (-1, 1)) + 1), ROWS),
    "no translation": (Forward(lambda _net, x: x.argsort(-1)), ROWS),
    "a result returned twice": (Forward(lambda _net, x: (x + 1,) * 2), ROWS),
    "a BatchNorm of this batch": (nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)), ROWS),
    "a body": (
        Forward(lambda _net, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))),
        ROWS,
    ),
}
ONCE["a buffer not kept"][0].inner.register_buffer("kept", torch.randn(4), persistent=False)


@pytest.mark.parametrize("case", ONCE)
def test_one_trace_gives_the_graph_of_two(traced, case):
    module, x = ONCE[case]
    ours, two, seconds = traced(module, *(x if isinstance(x, tuple) else (x,)))
    assert seconds == 0
    assert written(ours) == written(two)


@pytest.mark.parametrize("case", TWICE)
def test_what_another_trace_changes_is_traced_again(traced, case):
    module, x = TWICE[case]
    ours, two, seconds = traced(module, *(x if isinstance(x, tuple) else (x,)))
    assert seconds == 1
    assert written(ours) == written(two)


def test_a_pool_of_what_lies_with_channels_last_is_a_mean_and_no_more(traced):
    """torch's second trace also writes how the mean lies in memory, place by place; a file has no such thing."""
    module = Forward(lambda _net, x: nn.functional.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 1).flatten(1) * 2)
    x = torch.randn(2, 5, 6, 3)
    ours, two, seconds = traced(module, x)
    assert seconds == 0
    assert "Range" in {node.op_type for node in two.graph}
    assert "Range" not in {node.op_type for node in ours.graph}
    for model in (ours, two):
        (found,) = Evaluator(model).run({str(model.graph.inputs[0].name): x.double()}).values()
        torch.testing.assert_close(found, 2 * x.double().mean((1, 2)), rtol=1e-6, atol=1e-6)


def test_names_are_those_of_two_traces_where_no_size_is_computed(traced):
    module, x = ONCE["a branch"]
    ours, two, seconds = traced(module, *(x if isinstance(x, tuple) else (x,)), dynamic_shapes={})
    assert seconds == 0
    assert ir.to_proto(ours).SerializeToString() == ir.to_proto(two).SerializeToString()


def test_a_torch_that_moved_what_is_asked_traces_twice(traced, monkeypatch):
    monkeypatch.delattr("torch._export.utils._is_preservable_cia_op")
    module, x = ONCE["rows"]
    ours, _, seconds = traced(module, *(x if isinstance(x, tuple) else (x,)))
    assert seconds == 1
    assert len(ours.graph)
