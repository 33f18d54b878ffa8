"""What joining the products of queries, keys and values gains or loses: one MatMul and a Split, for three MatMuls.

Each case is one attention on B x N tokens of D channels, in onnxruntime, in turns, one thread, processor time. "apart"
has three MatMuls with their biases; "split" one, of 3 D columns, and a Split of what it writes; "turned" one, and the
parts cut off behind one Reshape and one Transpose of all, as ViT spells it. "static" files say all sizes, so that
onnxruntime makes a Gemm of each MatMul with its bias. Numbers are medians of the ratios of neighbouring turns, with
quartiles: below 1 joining is faster.

    python benchmarks/joined_products.py [--turns 41] [--only "1 x 197 x 384"]
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
import onnxruntime as ort
from branch_cost import SECONDS, turn
from onnx import ModelProto, TensorProto, helper, numpy_helper

SHAPES = ((1, 12, 128, 4), (1, 64, 192, 3), (1, 197, 192, 3), (1, 197, 384, 6), (1, 128, 768, 12), (8, 64, 256, 4))
"""Batch, tokens, channels and heads: small BERT, MobileViT, ViT-tiny, ViT-small, BERT-base, several rows."""


class Net:
    """An attention that grows operator by operator."""

    def __init__(self, batch: int, tokens: int, channels: int, heads: int, *, static: bool) -> None:
        self.rng, self.nodes, self.constants = np.random.default_rng(0), list[object](), list[object]()
        self.shape, self.heads = (batch, tokens, channels), heads
        self.sizes = [batch, tokens, channels] if static else ["B", "N", channels]

    def op(self, kind: str, *inputs: str | np.ndarray, outputs: int = 1, **attributes: object) -> list[str]:
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        results = [f"{kind}{len(self.nodes)}.{at}" for at in range(outputs)]
        self.nodes.append(helper.make_node(kind, names, results, **attributes))
        return results

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def linear(self, x: str, width: int) -> str:
        weight = self.rng.standard_normal((self.shape[2], width)).astype(np.float32) / self.shape[2] ** 0.5
        (y,) = self.op("MatMul", x, weight)
        return self.op("Add", y, self.rng.standard_normal(width).astype(np.float32))[0]

    def in_heads(self, x: str, order: tuple[int, ...]) -> str:
        (y,) = self.op("Reshape", x, np.array([0, 0, self.heads, -1]))
        return self.op("Transpose", y, perm=order)[0]

    def proto(self, way: str) -> ModelProto:
        """Return the attention, its products apart or joined."""
        width, rest = self.shape[2], ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        if way == "apart":
            q, k, v = (self.in_heads(self.linear("x", width), order) for order in rest)
        elif way == "split":
            parts = self.op("Split", self.linear("x", 3 * width), outputs=3, axis=-1, num_outputs=3)
            q, k, v = (self.in_heads(part, order) for part, order in zip(parts, rest, strict=True))
        else:
            (y,) = self.op("Reshape", self.linear("x", 3 * width), np.array([0, 0, 3, self.heads, width // self.heads]))
            (y,) = self.op("Transpose", y, perm=(2, 0, 3, 1, 4))
            q, k, v = (self.op("Gather", y, np.array(at), axis=0)[0] for at in range(3))
            (k,) = self.op("Transpose", k, perm=(0, 1, 3, 2))
        (scores,) = self.op("MatMul", q, k)
        (y,) = self.op("MatMul", self.op("Softmax", scores, axis=-1)[0], v)
        (y,) = self.op("Transpose", y, perm=(0, 2, 1, 3))
        (y,) = self.op("Reshape", y, np.array([0, 0, width]))
        y = self.linear(y, width)
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.sizes) for name in ("x", y)]
        graph = helper.make_graph(self.nodes, "attention", ends[:1], ends[1:], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=41)
    parser.add_argument("--only", nargs="*", default=[], help="B x N x D; all by default")
    chosen = parser.parse_args()
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    print(f"onnxruntime {ort.__version__}, one thread: time of one product over that of three (quartiles)\n")
    print("| B x N x D | heads | file | ms apart | split | turned |\n|---|---|---|---|---|---|")
    for batch, tokens, channels, heads in SHAPES:
        name = f"{batch} x {tokens} x {channels}"
        for static in (True, False) if not chosen.only or name in chosen.only else ():
            sessions = {}
            for way in ("apart", "split", "turned"):
                content = Net(batch, tokens, channels, heads, static=static).proto(way).SerializeToString()
                sessions[way] = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            x = np.random.default_rng(1).standard_normal((batch, tokens, channels)).astype(np.float32)
            times = max(1, int(SECONDS / max(turn(sessions["apart"], x, 2), 1e-6)))
            found = [{way: turn(session, x, times) for way, session in sessions.items()} for _ in range(chosen.turns)]
            shown = []
            for way in ("split", "turned"):
                low, middle, high = statistics.quantiles([row[way] / row["apart"] for row in found])
                shown.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
            apart = 1e3 * statistics.median(row["apart"] for row in found)
            print(
                f"| {name} | {heads} | {'static' if static else 'dynamic'} | {apart:.2f} | {' | '.join(shown)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
