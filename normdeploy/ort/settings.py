"""How a model is run: provider, threads, optimization level. One value object for sessions, plans and reports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from normdeploy.errors import UsageError
from normdeploy.ort.levels import OPTIMIZATIONS, Optimization

Spinning = Literal["off", "run", "always"]
SPINNING: tuple[Spinning, ...] = get_args(Spinning)

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
GPU_PROVIDERS = (CUDA, TENSORRT)
OPENVINO_PLUGIN = "OpenVINOExecutionProvider"
OPENVINO_RUNTIME = "OpenVINO"  # OpenVINO's own Python runtime, not an onnxruntime provider
WEB = "onnxruntime-web"  # its WebAssembly in a browser: what verify judges, no provider of this onnxruntime
_PLAIN = {OPENVINO_PLUGIN: "OpenVINO plugin"}  # without its suffix it would be called like the runtime


@dataclass(frozen=True)
class Settings:
    """What a session is made with; hashable, and a plain dict in plan files.

    Args:
        provider: an onnxruntime execution provider's name, or "OpenVINO" for OpenVINO's own runtime.
        options: the provider's own options, as (key, value) pairs of strings.
        threads: threads inside one operator; 0 lets the runtime choose (one per physical core).
        parallel: run independent branches of the graph at once (onnxruntime's parallel execution mode).
        spinning: what idle threads do. "run": spin inside a call, sleep between calls; "always": spin between calls
            too, onnxruntime's own default, which keeps the cores busy that the rest of the program would use; "off":
            sleep.
        optimization: onnxruntime's graph optimization level.
        disabled_optimizers: names of onnxruntime graph transformers to leave out.
        fixed_shapes: (input name, shape) pairs for which a session of its own is made, whose shapes are all static;
            calls of other shapes run in another one. Empty: one session for all shapes.

    Raises:
        UsageError: a value outside its range.
    """

    provider: str = CPU
    options: tuple[tuple[str, str], ...] = ()
    threads: int = 0
    parallel: bool = False
    spinning: Spinning = "run"
    optimization: Optimization = "all"
    disabled_optimizers: tuple[str, ...] = field(default=())
    fixed_shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise UsageError(f"threads={self.threads}; expected 0 (let the runtime choose) or a positive count")
        if self.optimization not in OPTIMIZATIONS:
            raise UsageError(f"optimization={self.optimization!r}; expected one of {', '.join(OPTIMIZATIONS)}")
        if self.spinning not in SPINNING:
            raise UsageError(f"spinning={self.spinning!r}; expected one of {', '.join(SPINNING)}")
        if any(size < 1 for _, shape in self.fixed_shapes for size in shape):
            raise UsageError(
                f"fixed_shapes={dict(self.fixed_shapes)}; expected sizes of at least 1: write the call's shapes"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict; ``from_dict`` inverts it."""
        return {
            "provider": self.provider,
            "options": dict(self.options),
            "threads": self.threads,
            "parallel": self.parallel,
            "spinning": self.spinning,
            "optimization": self.optimization,
            "disabled_optimizers": list(self.disabled_optimizers),
            "fixed_shapes": {name: list(shape) for name, shape in self.fixed_shapes},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Build from ``to_dict``'s form.

        Raises:
            UsageError: a key that is not a setting, or a value of another kind.
        """
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise UsageError(f"unknown setting {unknown[0]!r}; expected some of {', '.join(sorted(known))}")
        for key, kind in (("provider", str), ("threads", int), ("parallel", bool), ("spinning", str)):
            if key in values and not isinstance(values[key], kind):
                raise UsageError(f"setting {key} is {values[key]!r}; expected a value of type {kind.__name__}")
        given = dict(values)
        if "options" in given:
            given["options"] = tuple(sorted((str(key), str(value)) for key, value in given["options"].items()))
        if "disabled_optimizers" in given:
            given["disabled_optimizers"] = tuple(given["disabled_optimizers"])
        if "fixed_shapes" in given:
            shapes = sorted(given["fixed_shapes"].items())
            given["fixed_shapes"] = tuple((str(name), tuple(int(size) for size in shape)) for name, shape in shapes)
        return cls(**given)

    def describe(self) -> str:
        """Return the settings in a few words for one line of a table."""
        threads = "1 thread" if self.threads == 1 else f"{self.threads or 'auto'} threads"
        parts = [_PLAIN.get(self.provider, self.provider.removesuffix("ExecutionProvider")), threads]
        if self.spinning != "run":
            parts.append(f"spinning {self.spinning}")
        if self.parallel:
            parts.append("parallel branches")
        if self.optimization != "all":
            parts.append(f"optimization {self.optimization}")
        parts += [f"{key}={value}" for key, value in _flat(self.options)]
        parts += [f"made for {name} {list(shape)}" for name, shape in self.fixed_shapes]
        return ", ".join(parts)


def _flat(options: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, str]]:
    """Yield options; of the OpenVINO plugin's ``load_config``, JSON by device, what it holds for the CPU."""
    for key, value in options:
        if key == "load_config":
            yield from json.loads(value).get("CPU", {}).items()
        else:
            yield key, value
