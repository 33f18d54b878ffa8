"""The files a build writes, and the report among them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from normdeploy.errors import UsageError
from normdeploy.files import write_text
from normdeploy.parsing.recipe import Recipe
from normdeploy.report.build_report import build_page
from normdeploy.report.page import render_page
from normdeploy.unfinished import clear_dead
from normdeploy.verification.record.certificate import certificate_path
from normdeploy.verification.record.kept_derivation import derivation_path

SCHEMA = 1
Stage = Callable[[str], AbstractContextManager[Callable[[str], None]]]
"""Opens what shows a stage of the given name at work; inside it, a function takes what it is at."""


@dataclasses.dataclass(frozen=True)
class Outputs:
    """The files a build writes."""

    onnx: Path
    quantized: Path
    report: Path
    page: Path

    @property
    def proven(self) -> tuple[Path, ...]:
        """The ONNX file and what is written with it: they appear, and go, together."""
        return _with_proof(self.onnx)

    @property
    def proven_quantized(self) -> tuple[Path, ...]:
        """The same of the file in int8, which a recipe with [quantize] has."""
        return _with_proof(self.quantized)

    @classmethod
    def of(cls, recipe: Recipe, out: Path | None) -> Outputs:
        """Name the outputs beside the recipe, or in ``out``.

        Raises:
            UsageError: ``out`` is no folder.
        """
        folder = recipe.folder if out is None else out
        if not folder.is_dir() and (folder.exists() or not folder.parent.is_dir()):
            raise UsageError(f"--out {folder} is no folder and cannot be made one; expected a folder: create it")
        folder.mkdir(exist_ok=True)
        outputs = cls(*(folder / f"{recipe.name}{suffix}" for suffix in _SUFFIXES))
        for path in (outputs.onnx, outputs.quantized, outputs.report, outputs.page):
            clear_dead(path)  # of a build that was killed; what is up to date is not written, which would clear it
        return outputs

    @property
    def _mark(self) -> Path:
        return self.report.with_name(f".{self.report.name}.begun")

    def left_unfinished(self) -> bool:
        """Tell whether a build began here and was killed: what lies at its outputs is its own."""
        try:
            return self._mark.read_text(encoding="utf-8") == _BEGUN
        except (OSError, UnicodeDecodeError):
            return False

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Leave a mark for as long as the block runs: a killed build's outputs may stand there without a report."""
        write_text(self._mark, _BEGUN, overwrite=True)
        try:
            yield
        finally:
            self._mark.unlink(missing_ok=True)


_BEGUN = "a normdeploy build began here; the next one goes on from what lies here and removes this file\n"
_SUFFIXES = (".onnx", ".qat.onnx", ".report.json", ".report.html")


def _with_proof(path: Path) -> tuple[Path, ...]:
    return path, certificate_path(path), derivation_path(path)


def previous_report(outputs: Outputs) -> dict[str, Any] | None:
    """Return the report of the last build, or None where there is none of this version's layout."""
    if not outputs.report.is_file():
        return None
    try:
        report = json.loads(outputs.report.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):  # beside JSON's own: other bytes than UTF-8, endless numbers, depth
        return None
    known = isinstance(report, dict) and report.get("schema") == SCHEMA
    return report if known else None


def write_report(outputs: Outputs, report: dict[str, Any]) -> None:
    """Write the report as data and as a page."""
    write_text(outputs.page, render_page(build_page(report)), overwrite=True)
    # last: by it the next build tells that all is there
    write_text(outputs.report, json.dumps(report, indent=1, allow_nan=False) + "\n", overwrite=True)
