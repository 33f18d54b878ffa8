"""What a default verdict costs: seconds per stage for a ResNet-50, memory over weights for a large network.

    python benchmarks/verify_cost.py [--full] [--threads 2] [--parameters N] [--width W] [resnet] [large]

``resnet``: a ResNet-50 (transformers' ResNetModel with its default layout, random weights settled on random images) at
224x224, or with smaller images without --full. Stages of the verdict in seconds.

``large``: a stack of residual blocks (LayerNorm, Linear, GELU, Linear), 1e9 parameters with --full (4 GB of weights,
external data), 3e7 without. Peak resident memory of the process while it verifies, less what the interpreter and its
libraries hold before the network is made, over the bytes of the weights; the network itself is one of these.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.verification import Verdict
from normdeploy.verification.core import verify

_PAGE = resource.getpagesize()


def resident() -> int:
    """Return the memory of this process that no file backs, in bytes (mapped weights can be dropped at any time)."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * _PAGE


class Peak:
    """The largest resident memory seen, sampled every 20 ms."""

    def __init__(self) -> None:
        self.bytes = resident()

    @contextmanager
    def watched(self) -> Iterator[None]:
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                self.bytes = max(self.bytes, resident())

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


class Block(nn.Module):
    """x + W2 gelu(W1 norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(nn.functional.gelu(self.inner(self.norm(x))))


def stack(parameters: float, width: int) -> nn.Module:
    depth = math.ceil(parameters / (8 * width * width))
    return nn.Sequential(*(Block(width) for _ in range(depth)), nn.LayerNorm(width)).eval()


def resnet50() -> nn.Module:
    """Return a ResNet-50 whose statistics are those of random images, as training leaves them."""
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    model = ResNetModel(ResNetConfig())
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(4, 3, 96, 96))
        for norm in norms:
            assert norm.weight is not None
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_(0, 0.2)
    return model.eval()


def stages(verdict: Verdict, seconds: float, processor: float) -> None:
    print("| stage | s |\n|---|---|")
    for name, spent in verdict.seconds.items():
        print(f"| {name} | {spent:.1f} |")
    print(f"| all, the trace included | {seconds:.1f} |")
    print(f"| processor time, all threads | {processor:.1f} |")
    print(f"\n{verdict.summary()}")
    for text in verdict.not_checked:
        print(f"  not checked: {text}")


def cost_of_resnet(folder: Path, size: int) -> None:
    model = resnet50()
    example = torch.randn(1, 3, size, size)
    path = folder / "resnet50.onnx"
    nd.export(model, example, path, verify=False)
    start, used = time.perf_counter(), time.process_time()
    verdict = verify(model, path, args=example)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    print(f"## ResNet-50 at {size}x{size}, {torch.get_num_threads()} threads: {seconds:.1f} s\n")
    stages(verdict, seconds, used)


def cost_of_large(folder: Path, parameters: float, width: int) -> None:
    before = resident()
    torch.manual_seed(0)
    model = stack(parameters, width)
    weights = sum(p.nbytes for p in model.parameters())
    example = torch.randn(1, 4, width)
    path = folder / "large.onnx"
    peak = Peak()
    with peak.watched():
        nd.export(model, example, path, verify=False)
    exported = peak.bytes - before
    peak = Peak()
    start, used = time.perf_counter(), time.process_time()
    with peak.watched():
        verdict = verify(model, path, args=example)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    files = ", ".join(f"{f.name} {f.stat().st_size / 1e9:.2f} GB" for f in sorted(folder.glob("large*")))
    print(f"## {weights / 4e9:.3g} billion parameters, {weights / 1e9:.2f} GB of weights ({files})\n")
    print(
        f"peak while verifying: {(peak.bytes - before) / 1e9:.2f} GB, {(peak.bytes - before) / weights:.2f} x weights"
    )
    print(f"peak while exporting: {exported / 1e9:.2f} GB, {exported / weights:.2f} x weights\n")
    stages(verdict, seconds, used)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("which", nargs="*", choices=["resnet", "large"], default=["resnet", "large"])
    arguments.add_argument("--full", action="store_true")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--parameters", type=float, help="of large; 1e9 with --full, 3e7 without")
    arguments.add_argument("--width", type=int, help="of large; 4096 with --full, 512 without")
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        if "resnet" in options.which:
            cost_of_resnet(Path(folder), 224 if options.full else 64)
        if "large" in options.which:
            parameters, width = (1e9, 4096) if options.full else (3e7, 512)
            cost_of_large(Path(folder), options.parameters or parameters, options.width or width)
    return 0


if __name__ == "__main__":
    sys.exit(main())
