"""Which operator does onnxruntime's CPU provider run a normalization fastest as, and how exact is it?

Times equivalent graphs of one normalization, interleaved, one thread, and prints microseconds, the ratio to the first
and the largest error (float32 against float64) on rows of unit spread and on rows with an offset of 1000. ``checker``
says whether onnx.checker accepts the graph.

    python benchmarks/norm_operators.py [--rounds 60] [--rows]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
import onnxruntime as ort
from onnx import parser

from normdeploy.runtime.latency import measure_latency

Body = tuple[int, str]


def vector(name: str, value: float, *dims: int) -> str:
    """Return a float initializer of one value, in ONNX's text form."""
    shape = ",".join(map(str, dims))
    return f"float[{shape}] {name} = {{{','.join([repr(value)] * int(np.prod(dims)))}}}"


def session(shape: tuple[int, ...], opset: int, body: str, constants: str) -> tuple[ort.InferenceSession | None, str]:
    kind = f"float[{','.join(['n', *map(str, shape[1:])])}]"
    head = f'<ir_version: 11, opset_import: ["" : {opset}]> g ({kind} x) => ({kind} y)'
    model = parser.parse_model(f"{head} <{constants}> {{ {body} }}")
    verdict = "valid"
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        verdict = "INVALID"
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]), verdict


def truth(x: np.ndarray, axes: tuple[int, ...], centred: bool, outside: bool) -> np.ndarray:
    x = x.astype(np.float64)
    d = x - x.mean(axis=axes, keepdims=True) if centred else x
    v = np.square(d).mean(axis=axes, keepdims=True)
    return d / (np.sqrt(v) + 1e-6) if outside else d / np.sqrt(v + np.float32(1e-5))


def compare(
    title: str,
    shape: tuple[int, ...],
    constants: str,
    forms: dict[str, Body],
    exact: Callable[[np.ndarray], np.ndarray],
    rounds: int,
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    lifted = (x + 1000).astype(np.float32)
    same = np.full(shape, 1.1, dtype=np.float32)
    print(f"{title}, {shape}")
    loaded = {name: session(shape, opset, body, constants) for name, (opset, body) in forms.items()}
    calls = {name: partial(running.run, None, {"x": x}) for name, (running, _) in loaded.items()}
    timed = measure_latency(calls, rounds=rounds, stretch=2e-3)
    first = next(iter(timed))
    for name, (running, verdict) in loaded.items():
        errors = [np.abs(running.run(None, {"x": data})[0] - exact(data)).max() for data in (x, lifted, same)]
        ratio = timed[name].ratio(timed[first]).value
        print(
            f"   {name:42s} {verdict:8s} {timed[name].median * 1e6:7.0f} us  x{ratio:5.2f}   error {errors[0]:8.1e}"
            f"   offset 1000 {errors[1]:8.1e}   constant rows {errors[2]:8.1e}"
        )


def written(axes: str, scale: str = "g", shift: str = "b") -> str:
    return (
        f"m = ReduceMean <keepdims = 1> (x, {axes}) d = Sub(x, m) q = Pow(d, two) "
        f"v = ReduceMean <keepdims = 1> (q, {axes}) ve = Add(v, e) s = Sqrt(ve) z = Div(d, s) "
        f"zg = Mul(z, {scale}) y = Add(zg, {shift})"
    )


def last_axis(rounds: int) -> None:
    for shape in ((2, 128, 768), (1, 16, 256)):
        rows, c = shape[1:]
        constants = ", ".join(
            [
                vector("g", 1.0, c),
                vector("b", 0.0, c),
                vector("og", 1.0, rows),
                vector("ob", 0.0, rows),
                vector("gn", float(np.sqrt(c)), c),
                vector("one", 1.0, 1),
                vector("ge", 1e6, c),
                "int64[1] ax = {-1}, float e = {0.00001}, float e6 = {0.000001}, float two = {2.0}",
                f"float en = {{{1e-6 * np.sqrt(c):.9g}}}, float per = {{1000000.0}}",
            ]
        )
        compare(
            "LayerNorm over the last axis",
            shape,
            constants,
            {
                "as written (9 operators)": (20, written("ax")),
                "LayerNormalization": (20, "y = LayerNormalization <axis = -1, epsilon = 1e-5> (x, g, b)"),
                "InstanceNormalization, Mul, Add": (
                    20,
                    "z = InstanceNormalization <epsilon = 1e-5> (x, og, ob) zg = Mul(z, g) y = Add(zg, b)",
                ),
            },
            lambda x: truth(x, (-1,), True, False),
            rounds,
        )
        compare(
            "LayerNorm over the last axis, no affine",
            shape,
            constants,
            {
                "LayerNormalization, full scale": (20, "y = LayerNormalization <axis = -1, epsilon = 1e-5> (x, g)"),
                "LayerNormalization, scale of size 1": (
                    20,
                    "y = LayerNormalization <axis = -1, epsilon = 1e-5> (x, one)",
                ),
                "InstanceNormalization": (20, "y = InstanceNormalization <epsilon = 1e-5> (x, og, ob)"),
            },
            lambda x: truth(x, (-1,), True, False),
            rounds,
        )
        rms = "v = ReduceMean <keepdims = 1> (q, ax) ve = Add(v, e) s = Sqrt(ve) z = Div(x, s) y = Mul(z, g)"
        compare(
            "RMSNorm over the last axis",
            shape,
            constants,
            {
                "Pow, mean, Add, Sqrt, Div, Mul (6, fused)": (20, "q = Pow(x, two) " + rms),
                "x x in place of Pow": (20, "q = Mul(x, x) " + rms),
                "Reciprocal in place of Div": (
                    20,
                    "q = Pow(x, two) " + rms.replace("z = Div(x, s)", "r = Reciprocal(s) z = Mul(x, r)"),
                ),
                "without the scale": (
                    20,
                    "q = Pow(x, two) " + rms.replace("z = Div(x, s) y = Mul(z, g)", "y = Div(x, s)"),
                ),
                "RMSNormalization": (23, "y = RMSNormalization <axis = -1, epsilon = 1e-5> (x, g)"),
                "SimplifiedLayerNormalization": (
                    20,
                    "y = SimplifiedLayerNormalization <axis = -1, epsilon = 1e-5> (x, g)",
                ),
            },
            lambda x: truth(x, (-1,), False, False),
            rounds,
        )
        deviation = "m = ReduceMean <keepdims = 1> (x, ax) d = Sub(x, m) "
        compare(
            "LayerNorm, epsilon added to the standard deviation",
            shape,
            constants,
            {
                "as written (9 operators)": (
                    20,
                    deviation + "q = Mul(d, d) v = ReduceMean <keepdims = 1> (q, ax) s = Sqrt(v) se = Add(s, e6) "
                    "z = Div(d, se) zg = Mul(z, g) y = Add(zg, b)",
                ),
                "ReduceL2 (7 operators)": (
                    20,
                    deviation + "s = ReduceL2 <keepdims = 1> (d, ax) se = Add(s, en) z = Div(d, se) zg = Mul(z, gn) "
                    "y = Add(zg, b)",
                ),
                "centred once, one division less (8)": (
                    20,
                    deviation + "q = Mul(d, d) v = ReduceMean <keepdims = 1> (q, ax) s = Sqrt(v) se = Add(s, e6) "
                    "f = Div(g, se) z = Mul(d, f) y = Add(z, b)",
                ),
                "plain LayerNormalization (not exact)": (
                    20,
                    "y = LayerNormalization <axis = -1, epsilon = 1e-12> (x, g, b)",
                ),
                "the same, a product for the division (6)": (
                    20,
                    "z, m, i = LayerNormalization <axis = -1, epsilon = 1e-36> (x, g) t = Mul(i, e6) "
                    "f = Add(t, one) k = Reciprocal(f) r = Mul(z, k) y = Add(r, b)",
                ),
                "the same, divided by epsilon (5)": (
                    20,
                    "z, m, i = LayerNormalization <axis = -1, epsilon = 1e-36> (x, ge) f = Add(i, per) "
                    "k = Reciprocal(f) r = Mul(z, k) y = Add(r, b)",
                ),
                "LayerNormalization and its 1/s (5)": (
                    20,
                    "z, m, i = LayerNormalization <axis = -1, epsilon = 1e-36> (x, g) t = Mul(i, e6) "
                    "f = Add(t, one) r = Div(z, f) y = Add(r, b)",
                ),
            },
            lambda x: truth(x, (-1,), True, True),
            rounds,
        )


def images(rounds: int) -> None:
    for shape in ((2, 64, 32, 32), (1, 96, 56, 56), (1, 256, 14, 14), (8, 32, 8, 8)):
        c, height, width = shape[1:]
        constants = ", ".join(
            [
                vector("g", 1.0, c),
                vector("b", 0.0, c),
                vector("g4", 1.0, 1, c, 1, 1),
                vector("b4", 0.0, 1, c, 1, 1),
                vector("o8", 1.0, 8),
                vector("z8", 0.0, 8),
                vector("flat", 1.0, height, width),
                vector("group", 1.0, c * height * width // 8),
                "float e = {0.00001}, float two = {2.0}, int64[1] ax = {1}, int64[2] hw = {2, 3}, int64[1] ax2 = {2}",
                f"int64[3] s3 = {{0, 8, -1}}, int64[4] s4 = {{0, {c}, {height}, {width}}}",
            ]
        )
        compare(
            "LayerNorm over the channels",
            shape,
            constants,
            {
                "as written (9 operators)": (20, written("ax", "g4", "b4")),
                "Transpose, LayerNormalization, Transpose": (
                    20,
                    "t = Transpose <perm = [0, 2, 3, 1]> (x) "
                    "z = LayerNormalization <axis = -1, epsilon = 1e-5> (t, g, b) "
                    "y = Transpose <perm = [0, 3, 1, 2]> (z)",
                ),
            },
            lambda x: truth(x, (1,), True, False),
            rounds,
        )
        compare(
            "InstanceNorm",
            shape,
            constants,
            {
                "as written (9 operators)": (20, written("hw", "g4", "b4")),
                "InstanceNormalization": (20, "y = InstanceNormalization <epsilon = 1e-5> (x, g, b)"),
                "LayerNormalization, Mul, Add": (
                    20,
                    "z = LayerNormalization <axis = 2, epsilon = 1e-5> (x, flat) zg = Mul(z, g4) y = Add(zg, b4)",
                ),
            },
            lambda x: truth(x, (2, 3), True, False),
            rounds,
        )
        affine = "w = Reshape(z, s4) zg = Mul(w, g4) y = Add(zg, b4)"
        steps = written("ax2").split(" zg =")[0].replace("(x,", "(r,")
        compare(
            "GroupNorm, 8 groups",
            shape,
            constants,
            {
                "as written (11 operators)": (20, f"r = Reshape(x, s3) {steps} {affine}"),
                "GroupNormalization": (21, "y = GroupNormalization <num_groups = 8, epsilon = 1e-5> (x, g, b)"),
                "InstanceNormalization of a view": (
                    20,
                    f"r = Reshape(x, s3) z = InstanceNormalization <epsilon = 1e-5> (r, o8, z8) {affine}",
                ),
                "LayerNormalization of a view": (
                    20,
                    f"r = Reshape(x, s3) z = LayerNormalization <axis = -1, epsilon = 1e-5> (r, group) {affine}",
                ),
            },
            lambda x: truth(x.reshape(x.shape[0], 8, -1), (2,), True, False).reshape(x.shape),
            rounds,
        )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=60, help="calls of each form")
    arguments.add_argument("--rows", action="store_true", help="only statistics over the last axis")
    options = arguments.parse_args()
    rounds = options.rounds
    print(f"onnxruntime {ort.__version__}, CPU provider, 1 thread, float32, {rounds} interleaved rounds")
    last_axis(rounds)
    if not options.rows:
        images(rounds)


if __name__ == "__main__":
    main()
