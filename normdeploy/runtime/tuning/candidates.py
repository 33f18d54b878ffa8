"""What is tried: the ways to run one file, as settings; each round starts from the best of the round before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from normdeploy.ort.machine import Machine, reduced_precision
from normdeploy.ort.providers import Provider, device_number, device_options, float32_options
from normdeploy.ort.settings import CPU, CUDA, GPU_PROVIDERS, OPENVINO_PLUGIN, OPENVINO_RUNTIME, Settings
from normdeploy.runtime.plan import Trial

UNTUNED = "untuned"
_HINTS = {"bfloat16": "bf16", "float16": "f16"}  # OpenVINO's words


@dataclass(frozen=True)
class Candidate:
    """One way to run the model: a file, its precision, and settings."""

    name: str
    precision: str
    file: Path
    settings: Settings


def named(settings: Settings, file: Path, label: str = "float32", precision: str = "float32") -> Candidate:
    """Return a candidate called by its label and settings."""
    return Candidate(f"{label}: {settings.describe()}", precision, file, settings)


def thread_counts(cores: int) -> list[int]:
    """Return one thread, half of the cores and all of them."""
    return sorted({1, max(1, cores // 2), cores})


def levels(base: Settings, cores: int) -> Iterator[Settings]:
    """Yield numbers of threads, each with all optimizations: what gains most, and first."""
    if base.provider == CPU:
        yield from (replace(base, threads=threads) for threads in thread_counts(cores))


def lower_levels(base: Settings, cores: int) -> Iterator[Settings]:
    """Yield layouts (level "all" blocks channels for the CPU, the lower ones keep NCHW) by thread counts."""
    if base.provider != CPU:
        return
    for threads in thread_counts(cores):
        for level in ("extended", "basic"):
            yield replace(base, threads=threads, optimization=level)


def threading(best: Settings, cores: int) -> Iterator[Settings]:
    """Yield ways to wait, and branches in parallel."""
    if best.provider != CPU:
        return
    if best.threads != 1:
        for spinning in ("off", "always"):
            yield replace(best, spinning=spinning)
    if cores > 1:
        yield replace(best, threads=cores, parallel=True)


def other_providers(best: Settings, cores: int, providers: Sequence[Provider]) -> Iterator[Settings | Trial]:
    """Yield settings that keep every other provider in float32; a skipped trial for one that is not usable."""
    for provider in providers:
        if provider.name == CPU:
            if best.provider != CPU:  # a small network is faster without the way to the GPU and back
                yield from (Settings(threads=threads) for threads in thread_counts(cores))
            continue
        if not provider.usable:
            yield Trial(provider.name, "float32", "skipped", provider.reason)
            continue
        exact = float32_options(provider.name)
        if provider.name in GPU_PROVIDERS:
            exact += device_options(device_number(best)) if best.provider in GPU_PROVIDERS else ()
            yield Settings(provider=provider.name, options=exact)
            if provider.name == CUDA:  # cuDNN's tensor cores want channels last
                yield Settings(provider=CUDA, options=(*exact, ("prefer_nhwc", "1")))
            continue
        for count in sorted({best.threads, cores}):
            yield Settings(provider=provider.name, options=exact, threads=count)


def reduced_openvino(
    best: Settings, cores: int, usable: set[str], machine: Machine
) -> Iterator[tuple[str, Settings] | Trial]:
    """Yield (precision, settings) for what the processor computes in; a skipped trial for the others."""
    for precision, hint in _HINTS.items():
        if precision not in reduced_precision(machine):
            reason = f"this processor has no {precision} arithmetic"
            yield Trial(f"{precision}, OpenVINO", precision, "skipped", reason)
            continue
        for provider, options in (
            (OPENVINO_RUNTIME, (("INFERENCE_PRECISION_HINT", hint),)),
            (OPENVINO_PLUGIN, (("load_config", f'{{"CPU": {{"INFERENCE_PRECISION_HINT": "{hint}"}}}}'),)),
        ):
            if provider in usable:
                for threads in sorted({best.threads, cores}):
                    yield precision, Settings(provider=provider, options=options, threads=threads)
