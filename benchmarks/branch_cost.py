"""What merging linear branches gains or loses: time of one operator over that of several, beside what the rule expects.

Each case is a small graph of convolutions and pools on C channels of S x S, in front of a Relu; it is timed in
onnxruntime as it is and with its branches merged whatever they cost, in turns, one thread, in processor time.
"measured" is the median of the ratios of neighbouring turns with its quartiles; "expected" is the ratio by which
``normdeploy.rewrite.branches.multiply_adds`` decides: branches are merged where it is at most 1.

    python benchmarks/branch_cost.py [--channels 4 16 64] [--sizes 14 56] [--turns 11] [--only "3x3 + avg 5"]
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from normdeploy.rewrite import rewrite
from normdeploy.rewrite.branches import multiply_adds
from normdeploy.rewrite.branches.merge import sites
from normdeploy.rewrite.branches.value_as_maps import Search

SECONDS = 0.01
"""Length of a turn."""


class Net:
    """A graph on ``channels`` of ``size`` x ``size`` that grows operator by operator."""

    def __init__(self, channels: int, size: int) -> None:
        self.channels, self.rng = channels, np.random.default_rng(0)
        self.x = ir.Value(name="x", shape=ir.Shape([1, channels, size, size]), type=ir.TensorType(ir.DataType.FLOAT))
        self.graph = ir.Graph([self.x], [], nodes=[], opset_imports={"": 20}, name="net")

    def op(self, op_type: str, *inputs: ir.Value, stride: int = 1, **attributes: object) -> ir.Value:
        shape = [1, self.channels, *(-(-int(dim) // stride) for dim in inputs[0].shape.numpy()[2:])]
        name = f"{op_type.lower()}{len(self.graph)}"
        result = ir.Value(name=f"{name}.y", shape=ir.Shape(shape), type=self.x.type)
        self.graph.append(ir.node(op_type, inputs, attributes, outputs=[result], name=name))
        return result

    def conv(
        self, x: ir.Value, *kernel: int, wide: bool = False, apart: int = 1, stride: int = 1, bias: bool = False
    ) -> ir.Value:
        """Append a convolution; ``wide``: depthwise."""
        size = kernel if len(kernel) == 2 else kernel * 2
        group = self.channels if wide else 1
        pads = [apart * (taps - 1) // 2 if stride == 1 else 0 for taps in size] * 2
        weights = [self.weight((self.channels, self.channels // group, *size))]
        weights += [self.weight((self.channels,))] if bias else []
        options = {"group": group, "pads": pads, "dilations": [apart] * 2, "strides": [stride] * 2}
        return self.op("Conv", x, *weights, stride=stride, **options)

    def weight(self, shape: tuple[int, ...]) -> ir.Value:
        array = self.rng.standard_normal(shape).astype(np.float32) / math.sqrt(math.prod(shape[1:]))
        name = f"w{len(self.graph.initializers)}"
        value = ir.Value(name=name, shape=ir.Shape(shape), type=self.x.type, const_value=ir.tensor(array, name=name))
        self.graph.register_initializer(value)
        return value

    def pool(self, x: ir.Value, size: int, stride: int = 1) -> ir.Value:
        pads = [size // 2 if stride == 1 else 0] * 4
        shape = {"kernel_shape": [size] * 2, "pads": pads, "strides": [stride] * 2}
        return self.op("AveragePool", x, stride=stride, count_include_pad=1, **shape)

    def add(self, *terms: ir.Value) -> ir.Value:
        total, *rest = terms
        for term in rest:
            total = self.op("Add", total, term)
        return total


Case = Callable[[Net], ir.Value]
CASES: dict[str, Case] = {
    "1x3, then 3x1": lambda n: n.conv(n.conv(n.x, 1, 3), 3, 1),
    "1x1, then 3x3": lambda n: n.conv(n.conv(n.x, 1), 3),
    "1x1, then depthwise 3x3": lambda n: n.conv(n.conv(n.x, 1), 3, wide=True),
    "depthwise 3x3, then 1x1": lambda n: n.conv(n.conv(n.x, 3, wide=True), 1),
    "depthwise 5x5 + 1x1": lambda n: n.add(n.conv(n.x, 5, wide=True), n.conv(n.x, 1)),
    "3x3 + 1x1 + x": lambda n: n.add(n.conv(n.x, 3), n.conv(n.x, 1), n.x),
    "3x3 + average 5x5": lambda n: n.add(n.conv(n.x, 3), n.pool(n.x, 5)),
    "1x5 + 5x1": lambda n: n.add(n.conv(n.x, 1, 5), n.conv(n.x, 5, 1)),
    "3x3 + 3x3 of dilation 2": lambda n: n.add(n.conv(n.x, 3), n.conv(n.x, 3, apart=2)),
    "depthwise 3x3, 1x1 and x": lambda n: n.add(n.conv(n.x, 3, wide=True), n.conv(n.x, 1, wide=True), n.x),
    "depthwise 7x7 + 3x3 of dilation 3": lambda n: n.add(n.conv(n.x, 7, wide=True), n.conv(n.x, 3, wide=True, apart=3)),
    "2x2 of stride 2 + average, 1x1": lambda n: n.add(n.conv(n.x, 2, stride=2), n.conv(n.pool(n.x, 2, 2), 1)),
}


def session(model: ir.Model) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])


def turn(running: ort.InferenceSession, x: np.ndarray, times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        running.run(None, {"x": x})
    return (time.process_time() - start) / times


def measure(case: Case, channels: int, size: int, turns: int) -> tuple[float, list[float], list[float]]:
    """Return the expected ratio, and per turn the seconds of one operator and of several."""
    net = Net(channels, size)
    last = case(net)
    (site, *_) = sites(Search(net.graph), last.producer())
    expected = site.ratio
    net.graph.outputs.append(net.op("Relu", last))
    model = ir.Model(net.graph, ir_version=10)
    limit, multiply_adds.PASS = multiply_adds.PASS, 1e9
    try:
        merged = rewrite(model).model
    finally:
        multiply_adds.PASS = limit
    assert [node.op_type for node in merged.graph] == ["Conv", "Relu"]
    apart, one = session(model), session(merged)
    x = net.rng.standard_normal(net.x.shape.numpy()).astype(np.float32)
    turn(one, x, 2)
    times = max(1, int(SECONDS / max(turn(apart, x, 2), 1e-6)))
    pairs = [(turn(one, x, times), turn(apart, x, times)) for _ in range(turns)]
    return expected, [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--sizes", type=int, nargs="*", default=[14, 56])
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--only", nargs="*", default=[], help="names of cases; all by default")
    chosen = parser.parse_args()
    print(f"onnxruntime {ort.__version__}, one thread: time of one operator over that of several (quartiles)\n")
    print("| branches | C | S | expected | measured |\n|---|---|---|---|---|")
    for name, case in CASES.items():
        for channels in chosen.channels if not chosen.only or name in chosen.only else []:
            for size in chosen.sizes:
                expected, one, apart = measure(case, channels, size, chosen.turns)
                low, middle, high = statistics.quantiles([a / b for a, b in zip(one, apart, strict=True)])
                measured = f"{middle:.2f} ({low:.2f} to {high:.2f})"
                print(f"| {name} | {channels} | {size} | {expected:.2f} | {measured} |", flush=True)


if __name__ == "__main__":
    main()
