"""The plan file: what was tried to make one model fast on one machine, and what was chosen.

A plan is bound to three things: the digest of the model it was made for, the digest of the file it runs (the model
itself or a lower-precision variant beside it) and the machine's features. Where one of them differs the measurements
mean nothing and the plan is not used; ``resolve`` says which.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from normdeploy.errors import UsageError
from normdeploy.files import sha256_file, write_text
from normdeploy.runtime.machine import Machine, this_machine
from normdeploy.runtime.settings import Settings

SCHEMA = 1
Status = Literal["chosen", "accepted", "rejected", "failed", "skipped"]


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
        """Build from ``to_dict``'s form."""
        given = dict(values)
        if given.get("settings") is not None:
            given["settings"] = Settings.from_dict(given["settings"])
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
    path: Path | None = None

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
        """
        file = Path(path)
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UsageError(f"{file} does not exist; expected a plan file: run normdeploy tune first") from error
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UsageError(
                f"{file} is not JSON ({error}); expected a plan file: run normdeploy tune again"
            ) from error
        if not isinstance(values, dict) or values.get("schema") != SCHEMA:
            found = values.get("schema") if isinstance(values, dict) else type(values).__name__
            raise UsageError(f"{file} has schema {found!r}; expected a plan of schema {SCHEMA}: tune again")
        try:
            return cls(
                model=values["model"],
                model_digest=values["model_digest"],
                budget=values["budget"],
                data=values["data"],
                machine=Machine.from_dict(values["machine"]),
                trials=tuple(Trial.from_dict(trial) for trial in values["trials"]),
                file_digest=values["file_digest"],
                request=values.get("request", {}),
                path=file,
            )
        except (KeyError, TypeError) as error:
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
        file = Path(model).parent / self.chosen.file
        if not file.is_file():
            raise PlanMismatch(f"{file}, which the plan runs, does not exist")
        if file != Path(model) and model_digest(file) != self.file_digest:
            raise PlanMismatch(f"{file} changed since the plan was made")
        return file, self.settings


class PlanMismatch(UsageError):
    """A plan does not hold for this model or this machine; the message says what differs."""


def model_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 that a model is known by: of the file's bytes, and of ``<name>.onnx.data`` where it has one.

    With weights outside, it is the SHA-256 of the two hexadecimal digests joined by a newline.
    """
    weights = Path(f"{os.fspath(path)}.data")
    digest = sha256_file(path)
    if not weights.is_file():
        return digest
    return hashlib.sha256(f"{digest}\n{sha256_file(weights)}".encode()).hexdigest()


def plan_path(model: str | os.PathLike[str]) -> Path:
    """Return where a model's plan lies: ``<name>.plan.json`` beside it."""
    return Path(model).with_suffix(".plan.json")
