"""Error over bound of single operators whose sums cancel: few outputs, constant images, means of mixed sign.

    python benchmarks/calibrate_operators.py [--seeds 20] [NAME ...]

For each small graph, seed and input family, two correct implementations (onnxruntime with all optimizations, torch's
float32 kernels operator by operator) are held against the criterion, with onnxruntime unoptimized as "eager". Printed
per graph: how many judgements, the ratio of error to bound at the median, the 99th percentile and at most, and how many
exceed 1 (each is a false failure); the exit code is 1 if any does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper, parser

from normdeploy.graph import Evaluator
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.family_case import make_case
from normdeploy.verification.judging.outputs import hold_against
from normdeploy.verification.samples.example import example_from_file
from normdeploy.verification.samples.families import make_families
from normdeploy.verification.samples.ranges import input_specs
from normdeploy.verification.sides.flat_values import run_evaluator
from normdeploy.verification.sides.graph_reference import GraphReference
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.sides.subject import Subject

Floats = npt.NDArray[np.float32]


def weights(*shape: int, balanced: tuple[int, ...] = (), seed: int = 3) -> Floats:
    """Return random weights; those of ``balanced`` axes add up to nothing."""
    w = np.random.default_rng(seed).standard_normal(shape)
    return np.asarray(w - (w.mean(balanced, keepdims=True) if balanced else 0), np.float32)


AFFINE = {"s": weights(48) ** 2 + np.float32(0.5), "b": weights(48, seed=4)}
GRAPHS: dict[str, tuple[int, str, dict[str, Floats]]] = {
    "GlobalAveragePool": (12, "g (float[2,3,8,8] x) => (float[2,3,1,1] y) { y = GlobalAveragePool(x) }", {}),
    "GlobalAveragePool, one output": (
        12,
        "g (float[1,1,16,16] x) => (float[1,1,1,1] y) { y = GlobalAveragePool(x) }",
        {},
    ),
    "Upsample 7, GlobalAveragePool": (
        7,
        'g (float[1,3,4,4] x) => (float[1,3,1,1] y) { u = Upsample<mode="nearest", scales=[1.0,1.0,2.0,2.0]>(x) '
        "y = GlobalAveragePool(u) }",
        {},
    ),
    "ReduceMean": (13, "g (float[4,300] x) => (float[4,1] y) { y = ReduceMean<axes=[1]>(x) }", {}),
    "ReduceSum of all": (11, "g (float[2,10,10] x) => (float y) { y = ReduceSum<keepdims=0>(x) }", {}),
    "AveragePool": (
        12,
        "g (float[1,2,8,8] x) => (float[1,2,2,2] y) { y = AveragePool<kernel_shape=[4,4], strides=[4,4]>(x) }",
        {},
    ),
    "Sum of three": (
        13,
        "g (float[2,3] x) => (float[2,3] y) { a = Exp(x) b = Sin(x) c = Neg(a) y = Sum(a, b, c) }",
        {},
    ),
    "Gemm, one output": (13, "g (float[1,64] x) => (float[1,1] y) { y = Gemm(x, w) }", {"w": weights(64, 1)}),
    "Gemm, balanced": (
        13,
        "g (float[2,512] x) => (float[2,3] y) { y = Gemm(x, w) }",
        {"w": weights(512, 3, balanced=(0,))},
    ),
    "Conv, balanced": (
        13,
        "g (float[1,4,9,9] x) => (float[1,2,7,7] y) { y = Conv(x, w) }",
        {"w": weights(2, 4, 3, 3, balanced=(1, 2, 3))},
    ),
    "Conv, Relu, GlobalAveragePool": (
        13,
        "g (float[1,4,9,9] x) => (float[1,2,1,1] y) { c = Conv(x, w) r = Relu(c) y = GlobalAveragePool(r) }",
        {"w": weights(2, 4, 3, 3)},
    ),
    "attention": (
        13,
        "g (float[1,6,16] x) => (float[1,6,16] y) "
        "{ t = Transpose<perm=[0,2,1]>(x) q = MatMul(x, t) p = Softmax(q) y = MatMul(p, x) }",
        {},
    ),
    "LayerNormalization": (
        17,
        "g (float[3,48] x) => (float[3,48] y) { y = LayerNormalization<axis=-1, epsilon=1e-5>(x, s, b) }",
        AFFINE,
    ),
    "InstanceNormalization": (
        17,
        "g (float[2,48,6,6] x) => (float[2,48,6,6] y) { y = InstanceNormalization<epsilon=1e-5>(x, s, b) }",
        AFFINE,
    ),
    "variance": (
        13,
        "g (float[2,100] x) => (float[2,1] y) "
        "{ m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Mul(d, d) y = ReduceMean<axes=[-1]>(q) }",
        {},
    ),
}


def ratios(opset: int, body: str, constants: dict[str, Floats], seeds: int, folder: Path) -> list[float]:
    """Return every ratio of error to bound of the two implementations of one graph."""
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {body}')
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    path = folder / "graph.onnx"
    onnx.save(proto, str(path))
    reference, subject = GraphReference(path, folder), Subject(path)
    assert reference.graph is not None
    noisy, single = NoisyGraph(reference.graph), Evaluator(reference.graph, dtype=torch.float32)
    specs = input_specs(reference.graph, example_from_file(reference.graph))
    found = []
    for seed in range(seeds):
        for family in make_families(specs, seed=seed):
            known = {"runs": 8, "seed": seed, "precision": "float32"}
            case = make_case(reference, noisy, family, subject.output_names, **known)  # type: ignore[arg-type]
            for outputs in (
                subject.run(family.feeds, Setting()),
                list(run_evaluator(single, family.feeds).values()),
            ):
                for result in hold_against(case, outputs):
                    assert result.judgement is not None
                    found.append(float("inf") if result.problems else result.judgement.ratio)
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", nargs="*")
    arguments.add_argument("--seeds", type=int, default=20)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    print("| graph | judgements | median | 99 % | largest | above 1 |\n|---|---|---|---|---|---|")
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, (opset, body, constants) in GRAPHS.items():
            if options.names and name not in options.names:
                continue
            found = np.asarray(ratios(opset, body, constants, options.seeds, Path(folder)))
            bad = int((~(found <= 1)).sum())
            failures += bad
            middle, high = np.percentile(found, [50, 99])
            print(f"| {name} | {found.size} | {middle:.2f} | {high:.2f} | {found.max():.2f} | {bad} |", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
