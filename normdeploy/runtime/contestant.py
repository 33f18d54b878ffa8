"""Who takes part in a benchmark, and how an ONNX file does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from normdeploy.array_types import Array
from normdeploy.ort.providers import device_number
from normdeploy.ort.settings import GPU_PROVIDERS, Settings
from normdeploy.runtime.backend import OrtBackend, open_backend
from normdeploy.runtime.sample_rows import refusals, run

EAGER, CHANNELS_LAST, COMPILED = "torch eager", "torch eager, channels last", "torch.compile"
PLAIN, SLIM, SIMPLIFIED, OPENVINO, OPENVINO_EXACT = (
    "torch.onnx + onnxruntime",
    "onnxslim + onnxruntime",
    "onnxsim + onnxruntime",
    "OpenVINO",
    "OpenVINO, told float32",
)
PEERS = (EAGER, CHANNELS_LAST, COMPILED, PLAIN, SLIM, SIMPLIFIED, OPENVINO, OPENVINO_EXACT)


@dataclass(frozen=True)
class Prepared:
    """One contestant, loaded and fed.

    Args:
        call: one call; returns when its result is there. On a GPU, inputs and outputs stay on the device.
        fetch: one call, and its outputs as arrays.
    """

    call: Callable[[], object]
    fetch: Callable[[], Sequence[Array]]


@dataclass(frozen=True)
class FileContestant:
    """An ONNX file under settings; the thread count is set per cell of the sweep."""

    name: str
    path: Path
    settings: Settings

    def with_threads(self, threads: int) -> Settings:
        """Return its settings with another thread count."""
        return Settings.from_dict({**self.settings.to_dict(), "threads": threads})

    def prepare(self, feeds: Mapping[str, Array], threads: int) -> Prepared:
        """Load the file and return what runs it on ``feeds``.

        Its ``fetch`` raises InputError where the file refuses them; its ``call``, which is timed, onnxruntime's own.
        """
        backend = open_backend(self.path, self.with_threads(threads))
        if isinstance(backend, OrtBackend) and self.settings.provider in GPU_PROVIDERS:
            bound = backend.bound(feeds, "cuda", device_number(self.settings))

            def fetch() -> Sequence[Array]:
                with refusals(feeds):
                    bound()
                return bound.outputs()

            return Prepared(bound, fetch)
        return Prepared(lambda: backend.run(feeds), lambda: run(backend, feeds))
