"""What torch raises where a trace fails: classes that are not public, looked for here alone.

A release of torch that has moved one still traces; what it would have told is then told by trying, or not at all
(`trace_errors`). `tests/exporting/test_trace_errors.py` fails where one is no longer found.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

CONTROL_FLOW = (
    ("torch.fx.experimental.symbolic_shapes", "GuardOnDataDependentSymNode"),
    ("torch._subclasses.fake_tensor", "DataDependentOutputException"),
)
NO_TRANSLATION = (
    ("torch._subclasses.fake_tensor", "UnsupportedOperatorException"),
    ("torch.onnx._internal.exporter._errors", "DispatchError"),
)
NO_NODE = (("torch.onnx._internal.exporter._errors", "GraphConstructionError"),)
USER_ERROR, USER_ERROR_TYPE = ("torch._dynamo.exc", "UserError"), ("torch._dynamo.exc", "UserErrorType")


def found(*places: tuple[str, str]) -> tuple[Any, ...]:
    """Return the classes, each given by module and name, that this release of torch has."""
    classes = []
    for module, name in places:
        try:
            classes.append(getattr(import_module(module), name))
        except (ImportError, AttributeError):  # moved
            continue
    return tuple(classes)


def is_control_flow(error: BaseException) -> bool:
    """Whether torch says, by class or by the kind it notes, that control flow depends on the values of a tensor."""
    users = found(USER_ERROR, USER_ERROR_TYPE)
    if len(users) == 2 and isinstance(error, users[0]):
        return getattr(error, "error_type", None) is getattr(users[1], "DYNAMIC_CONTROL_FLOW", error)
    return isinstance(error, found(*CONTROL_FLOW))


def is_missing_translation(error: BaseException) -> bool:
    """Whether torch says by the error's class that it has no translation, or no meaning, for an operator."""
    return isinstance(error, found(*NO_TRANSLATION))


def is_unwritten(error: BaseException) -> bool:
    """Whether torch says by the error's class that an operator has a translation, of which no node can be made.

    So it is where an attribute, which a file holds as a number, would follow a size.
    """
    return isinstance(error, found(*NO_NODE))
