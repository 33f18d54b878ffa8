"""What rewriting costs, in three numbers; what it does to rounding is fold_numerics.py's question.

1. time: rewriting against torch.onnx.export on the same model (wanted: below 10 %), both as CPU time of this process,
   garbage collected before each; the median of several repetitions of each;
2. growth: chains of convolution, BatchNormalization, ReLU and a residual sum up to 10,000 nodes (wanted: linear);
3. memory: peak resident memory of rewriting beyond the loaded model over the bytes of the weights (wanted: at most
   1.3), each measured in a process of its own, reading the model from a file.

    python benchmarks/fold_cost.py [time growth memory] [--nodes 10000] [--repeat 3]
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import load_graph, save_graph, weight_bytes
from normdeploy.rewrite import rewrite


def conv_bn(ins: int, outs: int, k: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(ins, outs, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(outs))


class Basic(nn.Module):
    def __init__(self, ins: int, outs: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_bn(ins, outs, 3, stride), nn.ReLU(), conv_bn(outs, outs))
        self.shortcut = conv_bn(ins, outs, 1, stride) if ins != outs or stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = [conv_bn(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    ins = 64
    for outs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Basic(ins, outs, stride), Basic(outs, outs)]
        ins = outs
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 1000))
    return nn.Sequential(*layers, *head), torch.randn(1, 3, 224, 224)


class Bottleneck(nn.Module):
    def __init__(self, ins: int, inner: int, stride: int = 1) -> None:
        super().__init__()
        outs = 4 * inner
        self.body = nn.Sequential(
            conv_bn(ins, inner, 1), nn.ReLU(), conv_bn(inner, inner, 3, stride), nn.ReLU(), conv_bn(inner, outs, 1)
        )
        self.shortcut = conv_bn(ins, outs, 1, stride) if ins != outs or stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = [conv_bn(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    ins = 64
    for inner, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(blocks):
            layers.append(Bottleneck(ins, inner, stride if index == 0 else 1))
            ins = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 1000)), torch.randn(
        1, 3, 224, 224
    )


class RepBlock(nn.Module):
    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.dense, self.point = conv_bn(ins, outs, 3, stride), conv_bn(ins, outs, 1, stride)
        self.skip = nn.BatchNorm2d(ins) if ins == outs and stride == 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = self.dense(x) + self.point(x)
        return torch.relu(total if self.skip is None else total + self.skip(x))


def repvgg() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = []
    ins = 3
    for outs, blocks in ((48, 1), (48, 2), (96, 4), (192, 14), (1280, 1)):
        for index in range(blocks):
            layers.append(RepBlock(ins, outs, 2 if index == 0 else 1))
            ins = outs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 1000)), torch.randn(
        1, 3, 224, 224
    )


class TransformerBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gamma1, self.gamma2 = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, 12, c // 12).permute(2, 0, 3, 1, 4).unbind(0)
        out = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        x = x + self.gamma1 * self.proj(out)
        return x + self.gamma2 * self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


def transformer() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(TransformerBlock(768) for _ in range(12))), torch.randn(1, 197, 768)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "repvgg-a0": repvgg,
    "vit-b with layer scale": transformer,
}


def randomized(module: nn.Module) -> nn.Module:
    for part in module.modules():
        if isinstance(part, TransformerBlock):
            part.gamma1.data.uniform_(0.1, 1.0)
            part.gamma2.data.uniform_(0.1, 1.0)
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2.0)
    return module.eval()


def _spent(work: Callable[[], object]) -> float:
    gc.collect()  # what came before is not this one's to clean up
    start = time.process_time()
    work()
    return time.process_time() - start


def measure_time(repeat: int) -> None:
    print(f"{'model':24} {'nodes':>6} {'export s':>9} {'rewrite s':>10} {'ratio':>7}")
    warm = nn.Sequential(conv_bn(3, 8), nn.ReLU()).eval()
    rewrite(trace(warm, (torch.randn(2, 3, 8, 8),)).model)  # imports and caches are nobody's cost
    for name, make in MODELS.items():
        module, x = make()
        module = randomized(module)
        exports = [_spent(functools.partial(trace, module, (x,))) for _ in range(repeat)]
        traced = trace(module, (x,))
        rewrites = [_spent(functools.partial(rewrite, traced.model)) for _ in range(repeat)]
        export, spent = statistics.median(exports), statistics.median(rewrites)
        print(f"{name:24} {len(traced.model.graph):6} {export:9.2f} {spent:10.2f} {spent / export:7.1%}")


def chain(nodes: int) -> ir.Model:
    """Return Conv, BatchNormalization, Relu, Add repeated until there are ``nodes`` of them."""
    rng = np.random.default_rng(0)
    shape, kind = ir.Shape(["n", 4, 6, 6]), ir.TensorType(ir.DataType.FLOAT)
    small = 4 / nodes  # what a block adds to the stream: it stays of one size, however long the chain is
    x = ir.Value(name="x", shape=shape, type=kind)
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 20}, name="chain")

    def constant(name: str, array: np.ndarray) -> ir.Value:
        tensor = ir.tensor(array.astype(np.float32), name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=kind, const_value=tensor)
        graph.register_initializer(value)
        return value

    value, count = x, 0
    while count < nodes:
        block = f"b{count}"
        w = constant(f"{block}.w", rng.standard_normal((4, 4, 3, 3)) / 6)
        drawn = {name: rng.random(4) + 0.5 for name in "gbmv"}
        vectors = [constant(f"{block}.{n}", a * small if n in "gb" else a) for n, a in drawn.items()]
        steps = (("Conv", [value, w], {"pads": [1, 1, 1, 1]}), ("BatchNormalization", [None, *vectors], {}))
        for op_type, inputs, attributes in (*steps, ("Relu", [None], {}), ("Add", [None, value], {})):
            name = f"{block}.{op_type.lower()}"
            output = ir.Value(name=f"{name}.y", shape=shape, type=kind)
            operands = [graph.node(-1).outputs[0] if item is None else item for item in inputs]
            graph.append(ir.node(op_type, operands, attributes, outputs=[output], name=name))
            count += 1
        value = graph.node(-1).outputs[0]
    graph.outputs.append(value)
    return ir.Model(graph, ir_version=10)


def measure_growth(largest: int) -> None:
    print(f"{'nodes':>7} {'rewrite s':>10} {'ms per node':>12}")
    for nodes in (largest // 8, largest // 4, largest // 2, largest):
        model = chain(nodes)
        start = time.process_time()
        result = rewrite(model)
        spent = time.process_time() - start
        assert len(result.ledger) == -(-nodes // 4)
        assert not result.ledger.kept
        print(f"{nodes:7} {spent:10.2f} {1000 * spent / nodes:12.3f}")


def _resident(line: str) -> float:
    """Return a line of /proc/self/status (VmRSS: now; VmHWM: peak since it was reset) in MiB."""
    for entry in Path("/proc/self/status").read_text().splitlines():
        if entry.startswith(line):
            return int(entry.split()[1]) / 1024
    raise SystemExit("memory is measured through /proc/self/status, which this system lacks")


def _memory_of(path: str) -> None:
    """Load, then rewrite, in a process of its own; print the peak beyond the loaded model and the weights, in MiB."""
    rewrite(chain(40))  # imports
    model = load_graph(path)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what parsing freed is no part of the loaded model
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    loaded = _resident("VmRSS")
    result = rewrite(model)
    print(_resident("VmHWM") - loaded, weight_bytes(model) / 2**20)
    del result


def measure_memory() -> None:
    print(f"{'model':24} {'weights MB':>11} {'beyond MB':>10} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in MODELS.items():
            module, x = make()
            path = Path(folder) / "model.onnx"
            save_graph(trace(randomized(module), (x,)).model, path, overwrite=True)
            command = [sys.executable, "-W", "ignore", __file__, "--memory-of", str(path)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
            beyond, weights = map(float, done.stdout.split())
            print(f"{name:24} {weights:11.1f} {beyond:10.1f} {beyond / weights:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["time", "growth", "memory"])
    parser.add_argument("--nodes", type=int, default=10_000, help="length of the longest chain")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of a timing")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if chosen.memory_of:
        _memory_of(chosen.memory_of)
        return
    measures = {
        "time": lambda: measure_time(chosen.repeat),
        "growth": lambda: measure_growth(chosen.nodes),
        "memory": measure_memory,
    }
    for what in chosen.what:
        print(f"\n{what}")
        measures[what]()


if __name__ == "__main__":
    main()
