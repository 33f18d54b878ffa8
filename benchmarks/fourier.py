"""Error and time of onnxruntime's DFT and of the product with the transform's matrix, by length.

    python benchmarks/fourier.py

Errors are root mean squares against float64, over those of torch's own transform; time is that of the DFT over that of
the product, the least of some calls in turns, on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import torch

LENGTHS = (8, 16, 64, 96, 128, 256, 512, 768, 1000, 1024)
ROWS = 64
CALLS = 9

HEAD = '<ir_version: 10, opset_import: ["": 20]>'


def session(text: str, constants: dict[str, np.ndarray] | None = None) -> ort.InferenceSession:
    """Return a session of a graph as ONNX text."""
    proto = onnx.parser.parse_model(f"{HEAD} {text}")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in (constants or {}).items())
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def row(n: int) -> str:
    """Measure one length."""
    kept = n // 2 + 1
    angles = 2 * np.pi * (np.outer(np.arange(n), np.arange(kept)) % n) / n
    matrix = np.stack([np.cos(angles), -np.sin(angles)], -1).reshape(n, -1).astype(np.float32)
    x = np.random.default_rng(0).standard_normal((ROWS, n)).astype(np.float32)
    dft = session(
        f"g (float[B,{n},1] x) => (float[B,M,2] y) <int64 axis = {{1}}> {{ y = DFT<onesided = 1>(x, , axis) }}"
    )
    product = session(f"g (float[B,{n}] x) => (float[B,M] y) {{ y = MatMul(x, m) }}", {"m": matrix})
    ways: dict[str, Callable[[], np.ndarray]] = {
        "DFT": lambda: dft.run(None, {"x": x[..., None]})[0],
        "product": lambda: product.run(None, {"x": x})[0].reshape(ROWS, kept, 2),
        "torch": lambda: torch.view_as_real(torch.fft.rfft(torch.from_numpy(x))).numpy(),
    }
    want = torch.view_as_real(torch.fft.rfft(torch.from_numpy(x).double())).numpy()
    error = {name: float(np.sqrt(((way() - want) ** 2).mean())) for name, way in ways.items()}
    least = dict.fromkeys(ways, np.inf)
    for _ in range(CALLS):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            least[name] = min(least[name], time.perf_counter() - start)
    over = {name: error[name] / error["torch"] for name in ("DFT", "product")}
    return f"| {n} | {over['DFT']:.1f} | {over['product']:.1f} | {least['DFT'] / least['product']:.1f} |"


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    print("| length | DFT's error over torch's | the product's | DFT's time over the product's |\n|---|---|---|---|")
    for n in LENGTHS:
        print(row(n), flush=True)


if __name__ == "__main__":
    main()
