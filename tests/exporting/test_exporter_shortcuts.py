"""What torch's exporter does beside its trace is left out, and its graphs stay the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import onnx_ir as ir
import pytest
import torch
from onnx_ir.schemas import OpSignature
from onnxscript.values import TracedOnnxFunction
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import PythonKeyTracer
from torch.fx.passes import shape_prop
from torch.onnx._internal.exporter import _registration, _schemas
from torch.onnx._internal.fx.passes import type_promotion

from normdeploy.exporting.torch_exporter import batched, exporter_shortcuts
from normdeploy.exporting.trace import trace


class OtherTypes(nn.Module):
    """Operands of other types than their operators' results: numbers, flags, halves, a body."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.register_buffer("halves", torch.rand(4).half())

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
        spread = (x - x.mean(-1, keepdim=True)).pow(2).mean(-1, keepdim=True)
        shares = places / 3 + (places > 1) * 2
        told = torch.where(places > 0, self.halves, 1) + x.double()
        either = torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y * places.sum(), (x,))
        return self.norm(x) / (spread + 1).sqrt(), shares.sum(), told, either, (x * x.shape[0]).clamp(0, 1)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]] = {
    "other types": (OtherTypes, (torch.randn(3, 4), torch.arange(4))),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (torch.randn(2, 3, 4),)),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)),
        (torch.randn(2, 3, 4, 4),),
    ),
    "steps": (lambda: nn.LSTM(4, 3, batch_first=True), (torch.randn(2, 3, 4),)),
}


def written(model: ir.Model) -> bytes:
    """Return a graph's bytes without what the exporter notes of source files."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)
        node.metadata_props.pop("pkg.torch.onnx.fx_node", None)
    return ir.to_proto(model).SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_graph_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, example = NETWORKS[name]
    module = make().eval()
    ours = trace(module, example).model
    monkeypatch.setattr(batched, "exporter_shortcuts", nullcontext)
    assert written(ours) == written(trace(module, example).model)


def test_operators_are_run_again_only_where_a_type_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    run, torchs = list[str](), Interpreter.run_node

    def noted(self: Interpreter, node: torch.fx.Node) -> object:
        if isinstance(self, type_promotion._TypePromotionInterpreter) and node.op == "call_function":
            run.append(str(node.target))
        return torchs(self, node)

    monkeypatch.setattr(Interpreter, "run_node", noted)
    trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4))
    assert run == []
    trace(OtherTypes(), (torch.randn(3, 4), torch.arange(4)))
    assert {"aten.scalar_tensor.default", "aten.add.Tensor"} <= set(run)
    assert "aten.mean.dim" not in run


def test_neither_lines_of_source_nor_python_code_are_made_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise AssertionError("lines of source are looked up")

    codes, torchs = list[GraphModule](), GraphModule.recompile
    monkeypatch.setattr(PythonKeyTracer, "_filter_traceback_frames", none)
    monkeypatch.setattr(GraphModule, "recompile", lambda self: codes.append(self) or torchs(self))
    trace(nn.Linear(4, 3), torch.randn(2, 4))
    assert len(codes) <= 2
    assert not torch.fx.config.do_not_emit_stack_traces


def test_translations_are_read_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(*_: object) -> None:
        raise AssertionError("a translation is read again")

    trace(nn.Linear(4, 3), torch.randn(2, 4))
    monkeypatch.setattr(TracedOnnxFunction, "function_ir", property(again))
    monkeypatch.setattr(_schemas, "op_signature_from_function", again)
    with pytest.raises(AssertionError, match="read again"):
        _registration.onnxscript_apis.get_torchlib_ops()
    with batched.exporter_shortcuts():
        rows = {row.qualified_name: row.function for row in _registration.onnxscript_apis.get_torchlib_ops()}
        found = _registration.OnnxDecompMeta(rows["aten::relu"], torch.ops.aten.relu.default, None)
    assert found.signature is not None
    assert found.signature.name == "aten_relu"


def test_what_is_kept_of_a_result_is_tried_once_for_each_kind_of_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    made, torchs, kinds = [], FakeTensorMode._output_from_cache_entry, set[object]()

    def noted(self: FakeTensorMode, *args: object) -> object:
        made.append(self)
        return torchs(self, *args)  # type: ignore[arg-type]

    def count(module: nn.Module, x: torch.Tensor) -> int:
        made.clear()
        trace(module, x)
        return len(made)

    monkeypatch.setattr(exporter_shortcuts, "_KINDS", kinds)
    monkeypatch.setattr(FakeTensorMode, "_output_from_cache_entry", noted)
    module, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Sigmoid(), nn.Tanh()), torch.randn(2, 4)
    count(module, x)
    some = count(module, x)  # what is kept is used, and nothing else made of it
    with monkeypatch.context() as patch:
        others = [s for s in exporter_shortcuts._SHORTCUTS if s is not exporter_shortcuts._kept_results_made_once]
        patch.setattr(exporter_shortcuts, "_SHORTCUTS", others)
        assert count(module, x) >= some + 4
    kinds.clear()
    assert some < count(module, x) <= some + len(kinds)


def test_a_signature_of_an_operator_is_read_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    read, kept = list[object](), vars(OpSignature)["from_op_schema"]
    module, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4)
    trace(module, x)
    assert vars(OpSignature)["from_op_schema"] is kept
    monkeypatch.setattr(
        OpSignature, "from_op_schema", lambda schema: read.append(schema) or kept.__func__(OpSignature, schema)
    )
    trace(module, x)
    assert read == []
    monkeypatch.setattr(exporter_shortcuts, "_SIGNATURES", {})
    trace(module, x)
    assert len({schema.name for schema in read}) == len(read) > 0


def test_no_order_in_memory_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise AssertionError("an order in memory is asked for")

    monkeypatch.setattr(shape_prop, "is_contiguous_for_memory_format_or_false", none)
    trace(nn.Conv2d(3, 4, 3), torch.randn(2, 3, 4, 4))


class _Undescribed(nn.Linear):
    def __repr__(self) -> str:
        raise KeyError("alpha")


def test_a_model_that_cannot_describe_itself_is_traced() -> None:
    traced = trace(nn.Sequential(_Undescribed(3, 4), nn.BatchNorm1d(4)), torch.randn(2, 3))
    assert [node.op_type for node in traced.model.graph] == ["Gemm", "BatchNormalization"]


def test_a_torch_that_moved_what_is_exchanged_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.fx.config, "do_not_emit_stack_traces")
    monkeypatch.delattr(type_promotion, "_TypePromotionInterpreter")
    monkeypatch.delattr(FakeTensorMode, "_get_output_info_for_cache_entry")
    monkeypatch.delattr(proxy_tensor, "_extract_tensor_metadata")
    monkeypatch.delattr(OpSignature, "from_op_schema")
    with batched.exporter_shortcuts():
        pass
