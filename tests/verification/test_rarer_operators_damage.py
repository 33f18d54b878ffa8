"""Operators that random graphs leave out: what is right is confirmed, and no damage at random of it is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper, parser
from random_damage import damaged

from normdeploy.errors import NormdeployError
from normdeploy.graph import Evaluator
from normdeploy.graph.operator_evaluation import OPERATOR_ERRORS
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.hints import unchanged

COPIES = 40
DIFFERENT = 1e-4
"""Difference relative to an output's size that no rounding of a stored weight explains."""

RNG = np.random.default_rng(7)
ONE, LAST = np.array([1]), np.array([-1])


def drawn(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.5, 2, size=shape).astype(np.float32)


ROWS = "(float[b, s, 8] x, float[b, s, 8] z) => (float[b, s, 8] y)"
EDGES = "(float[n, 6] x, int64[m] from, int64[m] to) => (float[n, 4] y)"
RECURRENT = "(float[5, 3, 4] x) => (float[5, 2, 3, 6] y)"
PICTURE = "(float[b, 3, 5, 6] x) => (float[b, 3, h, k] y)"
CASES: dict[str, tuple[str, str, Mapping[str, np.ndarray]]] = {
    "edges of a graph": (
        EDGES,
        """h = MatMul(x, w) g = Gather(h, from) at = Unsqueeze(to, one) empty = Mul(h, zero)
        sum = ScatterND<reduction = "add">(empty, at, g) r = Relu(sum) q = Add(r, c) y = Mul(q, h)""",
        {"w": drawn(6, 4), "zero": np.float32(0), "one": ONE, "c": drawn(4)},
    ),
    "SkipLayerNormalization": (
        ROWS,
        """n, u, v, t = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(x, z, s, c, d)
        m = MatMul(n, w) y = Add(m, t)""",
        {"s": positive(8), "c": drawn(8), "d": drawn(8), "w": drawn(8, 8)},
    ),
    "SkipSimplifiedLayerNormalization": (
        ROWS,
        "n, u, v, t = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 1e-5>(x, z, s, c) y = Mul(n, t)",
        {"s": positive(8), "c": drawn(8)},
    ),
    "gelus": (
        "(float[b, 8] x) => (float[b, 4] y)",
        """m = MatMul(x, w) a = com.microsoft.BiasGelu(m, c) e = com.microsoft.FastGelu(a, d)
        q = com.microsoft.QuickGelu<alpha = 1.702>(e) y = MatMul(q, v)""",
        {"w": drawn(8, 8), "c": drawn(8), "d": drawn(8), "v": drawn(8, 4)},
    ),
    "FusedGemm": (
        "(float[b, 8] x) => (float[b, 4] y)",
        """m = com.microsoft.FusedGemm
        <alpha = 0.7, beta = 1.2, transB = 1, activation = "LeakyRelu", activation_alpha = 0.1>(x, w, c)
        y = Gemm(m, v)""",
        {"w": drawn(8, 8), "c": drawn(8), "v": drawn(8, 4)},
    ),
    **{
        kind: (
            RECURRENT,
            f'y, h = {kind}<hidden_size = 6, direction = "bidirectional">(x, w, r, c, lengths)',
            {
                "w": drawn(2, 6 * gates, 4),
                "r": drawn(2, 6 * gates, 6),
                "c": drawn(2, 12 * gates),
                "lengths": np.array([5, 2, 4], np.int32),
            },
        )
        for kind, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
    },
    "a spectrogram": (
        "(float[b, 32, 1] x) => (float[b, 7, 4] y)",
        """s = STFT<onesided = 1>(x, step, window, length) q = Mul(s, s) p = ReduceSum<keepdims = 0>(q, last)
        m = MatMul(p, mel) c = Max(m, least) y = Log(c)""",
        {
            "step": np.array(4),
            "length": np.array(8),
            "window": positive(8),
            "mel": positive(5, 4),
            "last": LAST,
            "least": np.float32(1e-6),
        },
    ),
    "reductions": (
        "(float[b, 4, 6] x) => (float[b, 1, 6] y)",
        """m = MatMul(x, w) a = ReduceL1(m, one) c = ReduceL2(m, one) d = ReduceLogSumExp(m, one)
        e = ReduceSumSquare(m, one) f = ReduceProd(m, one) g = Sub(a, c) h = Mul(g, d) i = Sub(h, e) y = Add(i, f)""",
        {"w": drawn(6, 6) / 2, "one": ONE},
    ),
    "running sums and triangles": (
        "(float[b, 5, 5] x) => (float[b, 5, 5] y)",
        "h = MatMul(x, w) c = CumSum<exclusive = 1, reverse = 1>(h, one) t = Trilu<upper = 0>(c, one) y = Exp(t)",
        {"w": drawn(5, 5) / 3, "one": np.array(1)},
    ),
    **{
        f"Resize {mode}": (
            PICTURE,
            f'r = Resize<mode = "{mode}", coordinate_transformation_mode = "{how}">(x, , scales) y = Conv(r, w)',
            {"scales": np.array([1, 1, 2, 1.5], np.float32), "w": drawn(3, 3, 1, 1)},
        )
        for mode, how in (("nearest", "asymmetric"), ("linear", "align_corners"), ("cubic", "half_pixel"))
    },
    "GridSample": (
        "(float[b, 3, 5, 6] x, float[b, 4, 4, 2] g) => (float[b, 3, 4, 4] y)",
        't = Tanh(g) s = GridSample<mode = "linear", padding_mode = "border">(x, t) y = Conv(s, w)',
        {"w": drawn(3, 3, 1, 1)},
    ),
    "RoiAlign": (
        "(float[2, 3, 8, 8] x, float[n, 4] r, int64[n] of) => (float[n, 3, 2, 2] y)",
        """s = Sigmoid(r) q = Mul(s, eight)
        a = RoiAlign<output_height = 2, output_width = 2, sampling_ratio = 2>(x, q, of)
        y = Conv(a, w)""",
        {"eight": np.float32(8), "w": drawn(3, 3, 1, 1)},
    ),
}


def model_of(case: str) -> onnx.ModelProto:
    interface, body, constants = CASES[case]
    head = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
    model = parser.parse_model(f"{head} g {interface} {{ {body} }}")
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items())
    return model


def fed(model: onnx.ModelProto, rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    found = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value or size for dim in kind.shape.dim]
        integer = kind.elem_type != onnx.TensorProto.FLOAT
        found[value.name] = rng.integers(0, 2, shape) if integer else rng.normal(size=shape).astype(np.float32)
    return found


def outputs(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> torch.Tensor | None:
    try:
        return Evaluator(ir.from_proto(model)).run(dict(feeds))["y"]
    except (NormdeployError, *OPERATOR_ERRORS):
        return None


def differs(found: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    if found is None or right is None:
        return found is not right
    if found.shape != right.shape:
        return True
    return not float((found - right).abs().max()) <= DIFFERENT * float(right.abs().max())


@pytest.mark.parametrize("case", CASES)
def test_it_is_confirmed_and_no_damaged_copy_is(case: str) -> None:
    model, rng = model_of(case), np.random.default_rng(0)
    source = ir.from_proto(model)
    sizes = [{name: array.shape for name, array in fed(model, rng, n).items()} for n in (3, 4)]
    feeds = [fed(model, rng, n) for n in (3, 4, 4)]
    right = [outputs(model, given) for given in feeds]
    assert all(tensor is not None for tensor in right)
    side = Side(source, sizes)
    assert check_derivation(side, ir.from_proto(model), unchanged(source), sizes).confirmed
    wrong, count = [], 0
    for _ in range(COPIES):
        found = damaged(model, rng)
        if found is None or not any(differs(outputs(found[1], f), y) for f, y in zip(feeds, right, strict=True)):
            continue
        count += 1
        if check_derivation(side, ir.from_proto(found[1]), unchanged(source), sizes).confirmed:
            wrong.append(found[0])
    assert wrong == []
    assert count >= 3
