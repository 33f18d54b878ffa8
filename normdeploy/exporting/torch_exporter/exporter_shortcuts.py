"""What torch's exporter does beside its trace and no file shows is left out.

- It has a table of some 1,500 translations, and makes it anew for each export: half a second. To say which domain a
  translation is of, which it then does not read, it parses the translation's source; its signature it reads again.
  So it does the signature of each ONNX operator that it writes.
- Each operator that it traces gets the lines of source that called it, for messages: ours name the module instead.
- A program is written as Python code after every step that changes it: it is once, for who calls it.
- To make implicit changes of type explicit (``x + 1`` of floats), it runs the whole program again on stand-ins for its
  tensors. What each operator returns is known from the trace; only operators that come out changed are run.
- What an operator returned is kept for the next call like it. Each time, the result that would be made of what is kept
  is made and compared in kind: once for each kind of tensor it is, where no size is of the run's values.
- It describes the model that it traces, to nobody, in the words of all its modules, of which an ``__repr__`` may fail.
- Of each result it asks in which of three orders it lies in memory; with a dynamic batch by algebra. A file has one.
- To know the shape of a norm's result it runs a dozen operators (:mod:`.known_results`).

The graphs are the same (`tests/exporting/test_exporter_shortcuts.py`). What is exchanged here is torch 2.13's and not
public; where it has moved, nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.fx import Interpreter, Node

from normdeploy.exporting.torch_exporter.known_results import known_results


@contextmanager
def exporter_shortcuts() -> Iterator[None]:
    """Let ``torch.onnx.export`` in this block leave out what no file shows."""
    with ExitStack() as stack:
        for shortcut in _SHORTCUTS:
            with suppress(ImportError, AttributeError):  # moved
                stack.enter_context(shortcut())
        yield


@contextmanager
def _translations_read_once() -> Iterator[None]:
    from onnxscript.values import TracedOnnxFunction
    from torch.onnx._internal._lazy_import import onnxscript_apis  # type: ignore[attr-defined]  # of torch's, unmarked
    from torch.onnx._internal.exporter import _schemas

    listed, read = onnxscript_apis.get_torchlib_ops, _schemas.op_signature_from_function

    def unparsed() -> Any:
        with _exchanged(TracedOnnxFunction, "function_ir", SimpleNamespace(domain="")):
            return listed()

    def once(function: Any, *args: Any, **named: Any) -> Any:
        known = getattr(function, "_pt_onnx_signature", None)  # where torch puts it
        return read(function, *args, **named) if known is None else known

    with (
        _exchanged(onnxscript_apis, "get_torchlib_ops", unparsed),
        _exchanged(_schemas, "op_signature_from_function", once),
    ):
        yield


@contextmanager
def _operators_read_once() -> Iterator[None]:
    from onnx_ir.schemas import OpSignature

    read = OpSignature.from_op_schema

    def once(schema: Any) -> Any:
        key = schema.domain, schema.name, schema.since_version
        if key not in _SIGNATURES:
            _SIGNATURES[key] = read(schema)
        return _SIGNATURES[key]

    with _exchanged(OpSignature, "from_op_schema", once):
        yield


_SIGNATURES = dict[tuple[str, str, int], Any]()
"""Of ONNX's operators, by domain, name and version."""


@contextmanager
def _no_lines_of_source() -> Iterator[None]:
    with _exchanged(torch.fx.config, "do_not_emit_stack_traces", True):
        yield


@contextmanager
def _code_when_it_is_called() -> Iterator[None]:
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    with _use_lazy_graph_module(True):
        yield


@contextmanager
def _only_changed_operators_run() -> Iterator[None]:
    from torch.onnx._internal.fx.passes import type_promotion

    table_row, torchs = type_promotion.get_type_promotion_rule, type_promotion._TypePromotionInterpreter

    class ChangedAlone(torchs):  # type: ignore[misc, valid-type]  # a class of torch's, found at run time
        """The interpreter of torch's pass; an operator that nothing changes returns what it did in the trace."""

        def run_node(self, node: Node) -> Any:
            with self._set_current_node(node):
                if rule := table_row(node, self.type_promotion_table):
                    self._maybe_promote_node(node, rule)
            known = node.op == "call_function" and "val" in node.meta
            return node.meta["val"] if known else Interpreter.run_node(self, node)

    with _exchanged(type_promotion, "_TypePromotionInterpreter", ChangedAlone):
        yield


_KINDS = set[tuple[Any, ...]]()
"""Of tensors of which one was made of what is kept, and was of its kind."""


@contextmanager
def _kept_results_made_once() -> Iterator[None]:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

    look = FakeTensorMode._get_output_info_for_cache_entry

    def once(self: Any, state: Any, key: Any, func: Any, args: Any, kwargs: Any, output: Any) -> Any:
        if type(output) is not FakeTensor or has_free_unbacked_symbols(output):
            return look(self, state, key, func, args, kwargs, output)
        kind = (
            *(torch._C._dispatch_keys(output).raw_repr(), torch.is_inference_mode_enabled(), output.requires_grad),
            *(output.dtype, output.layout, output.device, output.is_conj(), output.is_neg()),
            getattr(func, "is_view", None),
        )
        if kind not in _KINDS:
            found = look(self, state, key, func, args, kwargs, output)
            _KINDS.add(kind)
            return found
        self._output_from_cache_entry = lambda *_: output  # in front of the class's
        try:
            return look(self, state, key, func, args, kwargs, output)
        finally:
            del self._output_from_cache_entry

    with _exchanged(FakeTensorMode, "_get_output_info_for_cache_entry", once):
        yield


@contextmanager
def _no_order_in_memory() -> Iterator[None]:
    from torch.fx.experimental import proxy_tensor

    described = proxy_tensor._extract_tensor_metadata  # type: ignore[attr-defined]  # of torch's, imported there
    with _exchanged(proxy_tensor, "_extract_tensor_metadata", partial(described, include_contiguity=False)):
        yield


@contextmanager
def _model_not_described() -> Iterator[None]:
    from torch.onnx._internal.exporter._capture_strategies import CAPTURE_STRATEGIES

    with ExitStack() as stack:
        for strategy in CAPTURE_STRATEGIES:
            for name in ("_enter", "_success", "_failure"):
                stack.enter_context(_exchanged(strategy, name, lambda *_: None))
        yield


_SHORTCUTS = (
    _translations_read_once,
    _operators_read_once,
    _no_lines_of_source,
    _code_when_it_is_called,
    _only_changed_operators_run,
    _kept_results_made_once,
    _no_order_in_memory,
    _model_not_described,
    known_results,
)


@contextmanager
def _exchanged(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let an attribute that is there have another value in this block."""
    found = getattr(owner, name)
    before = vars(owner).get(name, found)  # a class method as its class holds it
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
