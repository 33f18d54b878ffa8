"""An example for every command's help; tests/cli/test_examples.py runs each of them."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "init": ("normdeploy init net.py:Net --weights net.pt --input x=float32:batchx3x32x32 -o net.toml",),
    "build": ("normdeploy build net.toml", "normdeploy build net.toml --markdown"),
    "train": ("normdeploy train net.toml",),
    "inspect": ("normdeploy inspect net.py:Net --weights net.pt", "normdeploy inspect net.onnx"),
    "export": (
        "normdeploy export net.py:Net --weights net.pt --input x=float32:batchx3x32x32 -o new.onnx",
        "normdeploy export net.py:Net --weights net.pt --dtype float16 -o half.onnx",
    ),
    "fold": ("normdeploy fold net.onnx -o folded.onnx",),
    "verify": ("normdeploy verify net.py:Net net.onnx --weights net.pt", "normdeploy verify net.onnx"),
    "diff": ("normdeploy diff net.onnx other.onnx", "normdeploy diff net.onnx other.onnx --data x.npy --markdown"),
    "tune": ("normdeploy tune net.onnx --batch 8 --seconds 5",),
    "bench": ("normdeploy bench net.onnx --against other.onnx --seconds 2",),
    "run": ("normdeploy run net.onnx", "normdeploy run net.onnx --input x=x.npy -o y.npz"),
    "predict": ("normdeploy predict net.onnx x.npy -o scores.csv",),
    "package": ("normdeploy package net.onnx --triton repository --name net",),
    "completion": ('eval "$(normdeploy completion bash)"',),
    "conformance": (
        'normdeploy conformance --adapter "normdeploy fold" --case "traps/transposed*"',
        "normdeploy conformance --list",
    ),
    "sys": ("normdeploy sys",),
}


def epilog(command: str) -> str:
    """Return what stands under a command's help; the first character keeps its lines as they are."""
    given = EXAMPLES[command]
    return "\b\n" + "\n".join(["Example:" if len(given) == 1 else "Examples:", *(f"  {line}" for line in given)])
