"""Under which runtime a file is judged, by name: what is made ready before, and taken away behind."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from normdeploy.errors import MissingDependencyError, UsageError
from normdeploy.ort.ort_format import conversions_kept
from normdeploy.ort.providers import gpu_provider
from normdeploy.ort.settings import GPU_PROVIDERS, WEB
from normdeploy.verification.sides.sessions import RUNTIMES, Setting


@contextmanager
def judged_under(
    runtime: str,
    *,
    web_runtime: str | os.PathLike[str] | None = None,
    browser: str | os.PathLike[str] | None = None,
) -> Iterator[Sequence[Setting]]:
    """Yield the settings that a file is judged under; inside the block sessions can be opened under them.

    Args:
        runtime: "cpu": onnxruntime's CPU provider here; "cuda", "tensorrt": its providers for GPUs, in float32; "web":
            onnxruntime-web's WebAssembly in a headless browser; "mobile": the file in the ORT format, as phones load
            it, by the CPU provider here.
        web_runtime: the package onnxruntime-web, where not the pinned one from npm.
        browser: the program, where not the first one found.

    Raises:
        UsageError: an unknown runtime, or options of the browser without it.
        InputError: what is named is not there, or not what it should be.
        MissingDependencyError: nothing is named and nothing found, or the GPU's provider is not usable here.
    """
    if runtime not in RUNTIMES:
        raise UsageError(f"the runtime is {runtime!r}; expected one of {', '.join(RUNTIMES)}")
    provider = RUNTIMES[runtime]
    if provider in GPU_PROVIDERS and not (found := gpu_provider(provider)).usable:
        raise MissingDependencyError(
            f"the runtime {runtime} is not usable here ({found.reason}); expected a GPU and onnxruntime-gpu: "
            "normdeploy sys lists what is, docs/howto/gpu.md says how to install it"
        )
    if provider != WEB:
        if web_runtime is not None or browser is not None:
            raise UsageError(
                f"a browser or onnxruntime-web is given and the runtime is {runtime!r}; expected --runtime web"
            )
        with conversions_kept():
            yield (Setting(provider=provider),)
        return
    from normdeploy.web.host import web_host

    with web_host(web_runtime, browser):
        yield (Setting(provider=provider),)
