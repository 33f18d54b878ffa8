"""What two exact rewritings of LayerNorm would gain on onnxruntime, which neither is done for.

A LayerNorm's scale and shift can go into every linear behind it. Beyond that, if everything that writes to a residual
stream is centred (its weights' columns and its bias minus their mean over the features), the stream's mean is zero and
each LayerNorm on it is an RMSNorm of the same epsilon. Compared, on a stack of pre-norm perceptron blocks:

- plain: LayerNormalization with scale and shift;
- folded: LayerNormalization with scale 1 and no shift, both folded into the linear behind it;
- centred: RMSNormalization (onnxruntime's SimplifiedLayerNormalization) with scale 1 on a centred stream.

The contenders are timed interleaved, in random order within each round; ratios are taken within rounds.

    python benchmarks/layernorm_to_rmsnorm.py [--rounds 40] [--blocks 6]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

WIDTHS = (256, 768)
ROWS = (1, 32, 197)


def weights(width: int, blocks: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Draw scale, shift and the two linears of each block, float64."""
    rng = np.random.default_rng(seed)
    return [
        {
            "scale": rng.uniform(0.5, 1.5, width),
            "shift": rng.normal(size=width),
            "up": rng.normal(size=(width, 4 * width)) / np.sqrt(width),
            "up_bias": rng.normal(size=4 * width),
            "down": rng.normal(size=(4 * width, width)) / np.sqrt(4 * width),
            "down_bias": rng.normal(size=width),
        }
        for _ in range(blocks)
    ]


def folded(block: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a block whose linear took the norm's scale and shift over."""
    bias = block["up_bias"] + block["shift"] @ block["up"]
    return {**block, "up": block["scale"][:, None] * block["up"], "up_bias": bias}


def centred(block: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a folded block that writes to the stream without a mean over the features."""
    block = folded(block)
    down, bias = block["down"], block["down_bias"]
    return {**block, "down": down - down.mean(axis=1, keepdims=True), "down_bias": bias - bias.mean()}


def session(kind: str, width: int, rows: int, blocks: list[dict[str, np.ndarray]]) -> ort.InferenceSession:
    """Build one contender."""
    nodes, constants, value = [], [], "x"

    def constant(name: str, array: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    for index, block in enumerate(blocks):
        name = f"b{index}"
        arrays = {"plain": block, "folded": folded(block), "centred": centred(block)}[kind]
        scale = arrays["scale"] if kind == "plain" else np.ones(width)
        operands = [value, constant(f"{name}.g", scale)]
        if kind == "plain":
            operands.append(constant(f"{name}.b", arrays["shift"]))
        op_type = "SimplifiedLayerNormalization" if kind == "centred" else "LayerNormalization"
        nodes.append(helper.make_node(op_type, operands, [f"{name}.n"], axis=-1, epsilon=1e-5))
        source = f"{name}.n"
        for part, result in (("up", f"{name}.u"), ("down", f"{name}.d")):
            nodes.append(helper.make_node("MatMul", [source, constant(f"{name}.{part}", arrays[part])], [f"{result}m"]))
            bias = constant(f"{name}.{part}_bias", arrays[f"{part}_bias"])
            nodes.append(helper.make_node("Add", [f"{result}m", bias], [result]))
            source = result
            if part == "up":
                nodes.append(helper.make_node("Gelu", [source], [f"{name}.a"]))
                source = f"{name}.a"
        nodes.append(helper.make_node("Add", [value, source], [f"{name}.y"]))
        value = f"{name}.y"
    # the mean of a stream that is not centred moves every feature alike; a head that centres hides it
    nodes.append(helper.make_node("ReduceMean", [value], ["mean"], keepdims=1))
    nodes[-1].input.append(constant_axes(constants))
    nodes.append(helper.make_node("Sub", [value, "mean"], ["y"]))
    shape = [1, rows, width]
    graph = helper.make_graph(
        nodes,
        kind,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def constant_axes(constants: list[TensorProto]) -> str:
    """Add the axes of the head's mean."""
    constants.append(numpy_helper.from_array(np.array([-1]), "axes"))
    return "axes"


def compare(width: int, rows: int, blocks: int, rounds: int) -> None:
    drawn = weights(width, blocks)
    sessions = {kind: session(kind, width, rows, drawn) for kind in ("plain", "folded", "centred")}
    x = np.random.default_rng(1).normal(size=(1, rows, width))
    feeds = {"x": (x - x.mean(axis=-1, keepdims=True)).astype(np.float32)}
    outputs = {kind: made.run(None, feeds)[0] for kind, made in sessions.items()}
    for kind, output in outputs.items():
        distance = float(np.abs(output - outputs["plain"]).max() / np.abs(outputs["plain"]).max())
        if distance > 1e-4:
            raise SystemExit(f"{kind} differs from plain by {distance:.3g} relative; expected the same function")
    repeat = max(1, 200 // rows)
    times: dict[str, list[float]] = {kind: [] for kind in sessions}
    for _ in range(rounds):
        for kind in random.sample(list(sessions), len(sessions)):
            start = time.perf_counter()
            for _ in range(repeat):
                sessions[kind].run(None, feeds)
            times[kind].append((time.perf_counter() - start) / repeat)
    row = f"{width:6} {rows:5} {1e6 * statistics.median(times['plain']):10.0f}"
    for kind in ("folded", "centred"):
        ratios = [mine / plain for mine, plain in zip(times[kind], times["plain"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        row += f"   {middle:6.3f} ({low:.3f} to {high:.3f})"
    print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--blocks", type=int, default=6)
    chosen = parser.parse_args()
    print(f"onnxruntime {ort.__version__}, {chosen.blocks} blocks, 1 thread; time over that of plain (quartiles)")
    print(f"{'width':>6} {'rows':>5} {'plain us':>10}   {'folded':>24}   {'centred':>24}")
    for width in WIDTHS:
        for rows in ROWS:
            compare(width, rows, chosen.blocks, chosen.rounds)


if __name__ == "__main__":
    main()
