"""Run an eager model in float64 without touching it.

``model.double()`` reaches registered tensors only, copies the weights and stops at the first ``x.float()``. Here every
call into torch is intercepted instead: float16, bfloat16 and float32 arguments are promoted to float64 (complex ones to
complex128), and every request for one of these dtypes asks for it. Weights are promoted one call at a time, so memory
stays flat.

The logarithm of a sigmoid or of a softmax is that of real numbers: float64 loses it where these underflow.

What a program derives from its precision is part of the function it computes: ``nn.RMSNorm`` without an epsilon adds
``finfo(x.dtype).eps``, masks hold ``finfo(x.dtype).min``. Those stay the numbers of the precision the model runs in.

A norm may also ask whether ``x.dtype == torch.float32`` for the epsilon it adds, or refuse any other. The answer is
float64, since what programs keep by dtype (positions, anchors) would be taken for float32's in both directions; where
that makes it another function, it is run again with the answer of its own precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from normdeploy.nn.promoted import PROMOTED, promoted
from normdeploy.nn.wrapped import is_wrapped
from normdeploy.verification.sides.logarithms import Logarithms
from normdeploy.verification.sides.single_only import IN_FLOAT64
from normdeploy.verification.sides.stand_ins import StandIns

_PRECISIONS: dict[Any, torch.dtype] = {
    Tensor.float: torch.float32, Tensor.half: torch.float16, Tensor.bfloat16: torch.bfloat16,
    Tensor.double: torch.float64, getattr(Tensor, "cdouble"): torch.complex128,  # noqa: B009 - unknown to its stubs
    getattr(Tensor, "chalf"): torch.complex32, getattr(Tensor, "cfloat"): torch.complex64,  # noqa: B009
}  # fmt: skip
_OF = {dtype: cast for cast, dtype in _PRECISIONS.items()}
_CASTS = {cast: _OF[PROMOTED[dtype]] for cast, dtype in _PRECISIONS.items() if dtype in PROMOTED}
_TO = frozenset({Tensor.to, Tensor.type})
_IN_PLACE_EXTRA = frozenset({"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"})

Seen = Callable[[Tensor, Sequence[Tensor]], None]
"""Called with a tensor that a call into torch returns, and the tensors that it read."""

_DTYPE = Tensor.dtype.__get__  # type: ignore[attr-defined] # a getter of C, an attribute to its stubs
_BESIDE = frozenset(getattr(Tensor, name).__get__ for name in ("grad", "_base"))
_RMS_NORMS = frozenset({torch.rms_norm, torch.nn.functional.rms_norm})
_EPSILON = 3  # rms_norm(input, normalized_shape, weight, eps)


_LEAVES = frozenset({int, float, bool, str, type(None)})


def _all_promoted(value: Any, one: Callable[[Any], Any] = promoted) -> Any:
    """Return arguments or results with every float in them promoted; torch's own walk takes longer than most calls."""
    kind = type(value)
    if kind is tuple:
        return tuple([_all_promoted(item, one) for item in value])
    if kind is list:
        return [_all_promoted(item, one) for item in value]
    if kind is dict:
        return {key: _all_promoted(item, one) for key, item in value.items()}
    if kind in _LEAVES:
        return value
    return one(value) if isinstance(value, (Tensor, torch.dtype)) else tree_map(one, value)


def is_in_place(name: str) -> bool:
    """Tell by the name of a torch function whether it writes to its first argument."""
    return name in _IN_PLACE_EXTRA or (name.endswith("_") and not name.endswith("__"))


@contextmanager
def _outside_inference() -> Iterator[None]:
    """Leave ``torch.inference_mode()``, which a forward may set: its tensors do not tell whether they were written."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            yield
    else:
        yield


class Float64Mode(TorchFunctionMode):
    """Promote every low-precision float that enters or leaves a torch call to float64.

    Args:
        native: the precision the model runs in, whose epsilon a norm without one adds.
        seen: called with each tensor that a call returns and those that it read (none where it wrote one of them);
            not where torch.func wraps one of them.
        answers: a promoted tensor's dtype is the native one to who asks.

    Attributes:
        written: names of in-place functions that wrote a low-precision tensor (rounded back into it).
    """

    def __init__(self, native: torch.dtype = torch.float32, seen: Seen | None = None, *, answers: bool = False) -> None:
        super().__init__()
        self._native, self._seen = native, seen
        self._lowered = {torch.float64: native, torch.complex128: native.to_complex()} if answers else {}
        self._logarithms, self._stand_ins = Logarithms(), StandIns()
        self.written: set[str] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` with promoted arguments and return its promoted result."""
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":  # attribute reads do not need the promoted copy of a weight
            found = func(*args, **kwargs)
            if self._lowered and func == _DTYPE:
                return self._lowered.get(found, found)
            if isinstance(found, Tensor) and func not in _BESIDE:  # a part of it, or another name
                return func(self._stand_ins.of(args[0], func))
            return promoted(found)  # a low dtype's promoted one
        if name == "__set__":
            return func(*args, **kwargs)
        copies, func = self._casts(func, args, kwargs), _CASTS.get(func, func)
        if func in _RMS_NORMS:
            args, kwargs = self._with_epsilon(args, kwargs)
        target = args[0] if args and isinstance(args[0], Tensor) and args[0].dtype in PROMOTED else None
        in_place = is_in_place(name)
        one = partial(self._stand_ins.of, func=func)
        if isinstance(func, HigherOrderOperator):  # its branches and bodies are called beyond this mode
            one = partial(self._entered, one=one)
        promoted_args, promoted_kwargs = _all_promoted(args, one), _all_promoted(kwargs, one)
        result = self._logarithms.of(func, promoted_args)
        if result is None:
            call: Callable[..., Any] = IN_FLOAT64.get(func, func)
            with _outside_inference():
                result = call(*promoted_args, **promoted_kwargs)
            self._logarithms.note(func, promoted_args, promoted_kwargs, result)
        if target is not None and in_place:
            self.written.add(name)
            with torch._C.DisableTorchFunction():
                self._stand_ins.write(target, promoted_args[0])
        if copies and result is promoted_args[0]:
            result = result.clone()  # in its own precision it is another tensor, which may be written to
        outcome = _all_promoted(result)
        if self._seen is not None:
            given = [] if in_place or "out" in kwargs else tree_flatten((promoted_args, promoted_kwargs))[0]
            read = [item for item in given if isinstance(item, Tensor)]
            made = outcome if isinstance(outcome, (tuple, list)) else (outcome,)
            found = [part for part in made if isinstance(part, Tensor)]
            for part in () if any(map(is_wrapped, (*found, *read))) else found:  # its numbers end with the transform
                self._seen(part, read)
        return outcome

    def _entered(self, value: Any, one: Callable[[Any], Any]) -> Any:
        """Return an argument promoted, a function as one that promotes what it computes with."""
        if isinstance(value, (Tensor, torch.dtype)) or not callable(value):
            return one(value)

        def entered(*args: Any, **kwargs: Any) -> Any:
            with self:
                return value(*args, **kwargs)

        return entered

    def _casts(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Tell whether a call asks for another precision than the module's own, of which it returns a copy."""
        asked = _PRECISIONS.get(func)
        if func in _TO:
            asked = next((a for a in (*args[1:], *kwargs.values()) if isinstance(a, torch.dtype)), None)
        return asked is not None and asked not in (self._native, self._native.to_complex())

    def _with_epsilon(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = args[_EPSILON] if len(args) > _EPSILON else kwargs.get("eps")
        if given is not None:
            return args, kwargs
        return args[:_EPSILON], {**kwargs, "eps": _FINFO(self._native).eps}


_FINFO = torch.finfo


@contextmanager
def float64_mode(
    native: torch.dtype = torch.float32, seen: Seen | None = None, *, answers: bool = False
) -> Iterator[Float64Mode]:
    """Promote all floats to float64 inside the block, new tensors included.

    Args:
        native: the precision the model runs in; ``torch.finfo`` of a promoted dtype answers for it.
        seen: called with each tensor that a call returns and those that it read.
        answers: a promoted tensor's dtype is the native one to who asks.
    """

    def finfo(dtype: torch.dtype | None = None) -> torch.finfo:
        return _FINFO(native if dtype in (None, torch.float64) else dtype)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.finfo = finfo  # type: ignore[assignment, misc] # a class; callers only make instances of it
    try:
        with Float64Mode(native, seen, answers=answers) as mode:
            yield mode
    finally:
        torch.finfo = _FINFO  # type: ignore[misc] # as above
        torch.set_default_dtype(before)
