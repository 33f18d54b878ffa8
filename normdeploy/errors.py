"""Every error normdeploy raises on purpose, in one tree.

::

    NormdeployError                 exit code 4
    ├── UsageError                  exit code 2: a wrong option, argument or recipe
    │   ├── RecipeError             a recipe key is missing, unknown or has a wrong value
    │   └── OutputExistsError       the output path exists and overwriting was not asked for
    ├── ModelError                  exit code 4: the model or an input is unusable
    │   ├── SourceError             SOURCE cannot be found, imported or built
    │   ├── WeightsError            the weights do not fit the model
    │   ├── InputError              an input has the wrong name, shape, dtype or content
    │   ├── ModeError               evaluation mode cannot be made certain
    │   ├── TraceError              torch.export or torch.onnx could not trace the model
    │   └── GraphError              the ONNX file is missing, invalid or unsupported
    ├── StorageError                exit code 4: a file cannot be read or written: disk full, read-only, no permission
    ├── BrowserError                exit code 4: the browser that runs onnxruntime-web ended, crashed or does not answer
    ├── MissingDependencyError      exit code 4: an optional extra is needed and not installed
    ├── VerificationError           exit code 1: carries the verdict
    └── RewriteError                exit code 4: a rewrite failed, or changed the function (a bug of ours)

Each message has three parts: the value, what was expected, and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from normdeploy.verification.record.verdict import Verdict


def in_one_line(error: BaseException) -> str:
    """Return the class of someone else's error and the first line of what it says, to be quoted in ours."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


class NormdeployError(Exception):
    """Base of all errors raised on purpose; the message is for the user and needs no traceback."""

    exit_code: ClassVar[int] = 4


class UsageError(NormdeployError):
    """A wrong option, argument or recipe."""

    exit_code: ClassVar[int] = 2


class RecipeError(UsageError):
    """A recipe key is missing, unknown or has a wrong value; the message names the key."""


class OutputExistsError(UsageError):
    """The output path exists and overwriting was not asked for."""


class ModelError(NormdeployError):
    """The model or an input is unusable."""


class SourceError(ModelError):
    """SOURCE (``file.py:Name`` or ``package.module:Name``) cannot be found, imported or built."""


class WeightsError(ModelError):
    """The weights do not fit the model; the message names missing, unexpected and misshapen keys."""


class InputError(ModelError):
    """An input has the wrong name, shape, dtype or content."""


class ModeError(ModelError):
    """Evaluation mode cannot be made certain; the message names what cannot be switched, ``.places`` where it is.

    Args:
        message: for the user.
        places: paths from the model.
    """

    def __init__(self, message: str, places: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.places = places


class TraceError(ModelError):
    """torch.export or torch.onnx could not trace the model."""


class GraphError(ModelError):
    """The ONNX file is missing, invalid or uses something unsupported."""


class StorageError(NormdeployError):
    """A file cannot be read or written: the disk is full, read-only, or not ours; the message holds the cause."""


class BrowserError(NormdeployError):
    """The browser that runs onnxruntime-web does not start, ended, crashed or does not answer."""


class MissingDependencyError(NormdeployError):
    """An optional extra is needed and not installed; the message names the extra."""


class VerificationError(NormdeployError):
    """The exported file is not proven equal to its reference; ``.verdict`` says why.

    Nothing is left at the output path.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, verdict: Verdict) -> None:
        super().__init__(message)
        self.verdict = verdict


class RewriteError(NormdeployError):
    """A rewrite failed, or changed the function it was meant to keep: a bug of normdeploy's own, which never ships.

    Args:
        rule: the rule that misfired.
        site: the module path or node name where it did.
        detail: what was measured.
    """

    def __init__(self, rule: str, site: str, detail: str) -> None:
        super().__init__(
            f"rule {rule!r} went wrong at {site!r}: {detail}. The graph was not written. "
            "This is a bug in normdeploy: report it with the model; meanwhile export with fold=False (--no-fold)."
        )
        self.rule = rule
        self.site = site
        self.detail = detail


@contextmanager
def kept_when_stopped(say: Callable[[], str]) -> Iterator[None]:
    """Note on whatever ends the work from outside (Ctrl-C, a signal) what of it stays and how to go on.

    Args:
        say: asked then; an empty text says nothing.
    """
    try:
        yield
    except BaseException as stop:
        if not isinstance(stop, Exception) and (text := say()):
            stop.add_note(text)
        raise
