"""The plan file: what was tried to make one model fast on one machine, and what was chosen.

A plan is bound to three things: the digest of the model it was made for, the digest of the file it runs (the model
itself or a lower-precision variant beside it) and the machine's features. Where one of them differs the measurements
mean nothing and the plan is not used; ``resolve`` says which.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from normdeploy.errors import UsageError
from normdeploy.files import not_a_file, storage, write_text
from normdeploy.ort.digest import model_digest
from normdeploy.ort.machine import Machine, this_machine
from normdeploy.ort.settings import Settings
from normdeploy.runtime.folders import plain_name

SCHEMA = 1
Status = Literal["chosen", "accepted", "rejected", "failed", "skipped"]
VARIANTS = ("int8", "float16", "bfloat16")
"""Precisions of the variants of a model that lie beside it."""


@dataclass(frozen=True)
class Trial:
    """One candidate.

    Args:
        name: what it is, in a few words, unique in its plan.
        precision: the precision it computes in: "float32", "bfloat16", "float16" or "int8".
        status: "chosen"; "accepted" (within the budget, but slower); "rejected" (outside the budget); "failed" (it
            could not be made or run); "skipped" (not usable here).
        reason: why, in a sentence; empty for the chosen one.
        file: the ONNX file it runs, relative to the plan.
        settings: how it runs it; None where it never got that far.
        latency: median, quartiles and rounds in seconds, as ``Latency.to_dict``; None where it was not timed.
        ratio: its time over the untuned model's in the same rounds, as ``Ratio.to_dict``.
        loss: metric name to measured value, against the float64 reference.
    """

    name: str
    precision: str
    status: Status
    reason: str = ""
    file: str = ""
    settings: Settings | None = None
    latency: Mapping[str, Any] | None = None
    ratio: Mapping[str, float] | None = None
    loss: Mapping[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict; ``from_dict`` inverts it."""
        return {
            "name": self.name,
            "precision": self.precision,
            "status": self.status,
            "reason": self.reason,
            "file": self.file,
            "settings": None if self.settings is None else self.settings.to_dict(),
            "latency": None if self.latency is None else dict(self.latency),
            "ratio": None if self.ratio is None else dict(self.ratio),
            "loss": None if self.loss is None else dict(self.loss),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trial:
        """Build from ``to_dict``'s form.

        Raises:
            TypeError: a value of another kind.
        """
        given = dict(values)
        for key in ("name", "precision", "status", "reason", "file"):
            if key in given:
                _text(given, key)
        if given.get("status") not in get_args(Status):
            raise ValueError(f"status is {given.get('status')!r}; expected one of {', '.join(get_args(Status))}")
        if given.get("settings") is not None:
            given["settings"] = Settings.from_dict(given["settings"])
        for key, needed in (("latency", ("median_s",)), ("ratio", ("value", "low", "high")), ("loss", None)):
            if given.get(key) is not None:
                given[key] = dict(given[key])
                for name in given[key] if needed is None else needed:
                    _number(given[key], name)
        return cls(**given)


@dataclass(frozen=True)
class Plan:
    """The fastest way found to run one model on one machine within a budget.

    Args:
        model: the model's file name; the plan lies beside it.
        model_digest: SHA-256 of that file.
        budget: the budget as the user wrote it: "exact", "top1=0.5%", "rel=1e-2".
        data: what the losses were measured on, in words.
        machine: where it was measured.
        trials: everything that was tried, the chosen one included.
        file_digest: SHA-256 of the chosen trial's file.
        request: the options of ``tune`` that made it, so that it can be repeated elsewhere; "data" and "reference" are
            files (relative to the model where they lie beside it) or None.
        company: what other programs did while it was measured, in words; "" where that is nothing.
        path: where the plan was saved; None before.
    """

    model: str
    model_digest: str
    budget: str
    data: str
    machine: Machine
    trials: tuple[Trial, ...]
    file_digest: str
    request: Mapping[str, Any] = field(default_factory=dict)
    company: str = ""
    path: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what names other files than the model's own and what lies beside it for it.

        Raises:
            UsageError: a file of another name or folder, not exactly one chosen trial, or one without settings.
        """
        chosen = [trial for trial in self.trials if trial.status == "chosen"]
        if not plain_name(self.model):
            raise UsageError(f"the plan is for the model {self.model!r}; expected a file name without folders")
        if len(chosen) != 1 or chosen[0].settings is None:
            raise UsageError(f"the plan for {self.model} has {len(chosen)} chosen trials; expected one, with settings")
        if chosen[0].file not in (self.model, *(variant_name(self.model, kind) for kind in VARIANTS)):
            raise UsageError(
                f"the plan for {self.model} runs {chosen[0].file!r}; expected {self.model} or a variant of it, as "
                f"{variant_name(self.model, 'int8')}"
            )

    @property
    def chosen(self) -> Trial:
        """The trial that won."""
        return next(trial for trial in self.trials if trial.status == "chosen")

    @property
    def settings(self) -> Settings:
        """How the chosen file is run."""
        settings = self.chosen.settings
        if settings is None:
            raise UsageError(f"plan for {self.model}: the chosen trial has no settings; expected some: tune again")
        return settings

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the plan file's text."""
        fields = {
            "schema": SCHEMA,
            "model": self.model,
            "model_digest": self.model_digest,
            "budget": self.budget,
            "data": self.data,
            "machine": self.machine.to_dict(),
            "file_digest": self.file_digest,
            "request": dict(self.request),
            "company": self.company,
            "trials": [trial.to_dict() for trial in self.trials],
        }
        return json.dumps(fields, indent=indent) + "\n"

    def summary(self) -> str:
        """Return a table for the console: the winner and its gain, then what each other one took and lost, and why not.

        Times are medians per call; the second number is the time as a multiple of the untuned model's.
        """
        best = self.chosen
        gain = f"{1 / best.ratio['value']:.2f} times the untuned speed" if best.ratio else "not timed"
        lines = [f"{self.model}, budget {self.budget}: {best.name}, {gain}"]
        for trial in self.trials:
            time = "" if trial.latency is None else f"{trial.latency['median_s'] * 1e3:.3g} ms"
            ratio = "" if trial.ratio is None else f"{trial.ratio['value']:.2f}x"
            loss = ", ".join(f"{key} {value:.2g}" for key, value in (trial.loss or {}).items() if " " not in key)
            word, reason = str(trial.status), trial.reason
            if word == "accepted":  # the plan's word for: within the budget, and not the fastest
                word, _, reason = reason.partition(": ")
            name = f"{trial.name}: {reason}" if reason else trial.name
            lines.append(f"  {word:<8} {time:>9} {ratio:>7}  {loss:<14} {name}")
        if self.company:
            lines.append(f"  {self.company}")
        return "\n".join(lines)

    @property
    def command(self) -> str:
        """The command that tunes the model again, on the machine where it is typed."""
        lossy = self.budget != "exact"
        return f"normdeploy tune {self.model} --again" + (
            " --data FILE" if lossy and self.request.get("data") is None else ""
        )

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Plan:
        """Write the plan and return it with its path."""
        write_text(path, self.to_json(), overwrite=overwrite)
        return Plan(**{**self.__dict__, "path": Path(path)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file.

        Raises:
            UsageError: it is missing, not a plan, or of a schema this version does not know.
            StorageError: it cannot be read.
        """
        file = Path(path)
        if not file.is_file():
            raise UsageError(f"{file} {not_a_file(file)}; expected a plan file: run normdeploy tune first")
        try:
            with storage(file, "read"):
                values = json.loads(file.read_bytes())
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{file} is not JSON ({error}); expected a plan file: run normdeploy tune again"
            ) from error
        if not isinstance(values, dict) or values.get("schema") != SCHEMA:
            schema = values.get("schema") if isinstance(values, dict) else type(values).__name__
            raise UsageError(f"{file} has schema {schema!r}; expected a plan of schema {SCHEMA}: tune again")
        try:
            return cls(
                model=_text(values, "model"),
                model_digest=_text(values, "model_digest"),
                budget=_text(values, "budget"),
                data=_text(values, "data"),
                machine=Machine.from_dict(values["machine"]),
                trials=tuple(Trial.from_dict(trial) for trial in values["trials"]),
                file_digest=_text(values, "file_digest"),
                request=dict(values.get("request", {})),
                company=_text({"company": "", **values}, "company"),
                path=file,
            )
        except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
            raise UsageError(f"{file} is not a whole plan ({error}); expected what tune wrote: tune again") from error

    def resolve(self, model: str | os.PathLike[str]) -> tuple[Path, Settings]:
        """Return the file to run and its settings, after checking that the plan holds here.

        Raises:
            PlanMismatch: the model, the variant or the machine is not the one the plan was made for.
        """
        if (digest := model_digest(model)) != self.model_digest:
            raise PlanMismatch(f"{model} has digest {digest[:12]}, the plan was made for {self.model_digest[:12]}")
        if differences := this_machine().differences(self.machine):
            raise PlanMismatch("this machine is not the one it was measured on: " + "; ".join(differences))
        if self.chosen.file == self.model:
            return Path(model), self.settings
        file = Path(model).parent / self.chosen.file
        if not file.is_file():
            raise PlanMismatch(f"{file}, which the plan runs, does not exist")
        if model_digest(file) != self.file_digest:
            raise PlanMismatch(f"{file} changed since the plan was made")
        return file, self.settings


def _text(values: Mapping[str, Any], key: str) -> str:
    if not isinstance(values[key], str):
        raise TypeError(f"{key} is {values[key]!r}; expected text")
    return str(values[key])


def _number(values: Mapping[str, Any], key: str) -> float:
    if isinstance(values[key], bool) or not isinstance(values[key], (int, float)):
        raise TypeError(f"{key} is {values[key]!r}; expected a number")
    return float(values[key])


class PlanMismatch(UsageError):
    """A plan does not hold for this model or this machine; the message says what differs."""


def variant_name(model: str, precision: str) -> str:
    """Return the name of a model's variant of lower precision, beside it: ``<stem>.<precision>.onnx``."""
    return f"{Path(model).stem}.{precision}.onnx"


def plan_path(model: str | os.PathLike[str]) -> Path:
    """Return where a model's plan lies: ``<name>.plan.json`` beside it.

    >>> plan_path("nets/net.onnx").as_posix()
    'nets/net.plan.json'
    """
    return Path(model).with_suffix(".plan.json")
