"""Error and time of onnxruntime's DFT and STFT, and of the product and the convolution in their place, by length.

    python benchmarks/fourier.py

Of short-time transforms, frames of one second of 16,000 samples, a quarter of the length apart, are taken. Errors are
root mean squares against float64, over those of torch's own transform; time is that of the DFT (STFT) over that of the
product (convolution), the least of some calls in turns, on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import torch

LENGTHS = (8, 16, 64, 96, 128, 256, 512, 768, 1000, 1024)
FRAMES = (64, 200, 256, 400, 512, 800, 1024)
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
    return compared(n, ways, want)


def short_time_row(n: int) -> str:
    """Measure short-time transforms of one length."""
    kept, hop = n // 2 + 1, n // 4
    angles = 2 * np.pi * (np.outer(np.arange(kept), np.arange(n)) % n) / n
    window = torch.hann_window(n)
    rows = np.stack([np.cos(angles), -np.sin(angles)], 1).reshape(2 * kept, 1, n) * window.numpy()
    x = np.random.default_rng(0).standard_normal((1, 16_000)).astype(np.float32)
    operator = session(
        f"g (float[B,T,1] x) => (float[B,K,F,2] y) <int64 hop = {{{hop}}}, int64 n = {{{n}}}>"
        " { s = STFT(x, hop, w, n) y = Transpose<perm = [0, 2, 1, 3]>(s) }",
        {"w": window.numpy()},
    )
    product = session(
        f"g (float[B,1,T] x) => (float[B,K,F,2] y) <int64[4] split = {{0, {kept}, 2, -1}}>"
        f" {{ f = Conv<strides = [{hop}]>(x, m) p = Reshape(f, split) y = Transpose<perm = [0, 1, 3, 2]>(p) }}",
        {"m": rows.astype(np.float32)},
    )
    signal = torch.from_numpy(x)

    def torchs(signal: torch.Tensor) -> np.ndarray:
        made = torch.stft(signal, n, hop, window=window.to(signal), center=False, return_complex=True)
        return torch.view_as_real(made).numpy()

    ways: dict[str, Callable[[], np.ndarray]] = {
        "DFT": lambda: operator.run(None, {"x": x[..., None]})[0],
        "product": lambda: product.run(None, {"x": x[:, None]})[0],
        "torch": lambda: torchs(signal),
    }
    return compared(n, ways, torchs(signal.double()))


def compared(n: int, ways: dict[str, Callable[[], np.ndarray]], want: np.ndarray) -> str:
    """Return a row of the table."""
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
    print("\n| frames of | STFT's error over torch's | the convolution's | STFT's time over the convolution's |")
    print("|---|---|---|---|")
    for n in FRAMES:
        print(short_time_row(n), flush=True)


if __name__ == "__main__":
    main()
