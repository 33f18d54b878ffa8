"""Every reason for which a map stays, each on a small graph that gives it; a reason without a graph here fails.

Cases are named as in :mod:`refusal_graphs`, which holds those of linear operators.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from refusal_graphs import (
    ABSORBING,
    BODY,
    DOUBLE,
    HALF,
    QUANTIZED,
    SINGLE,
    Case,
    add,
    batch_norm,
    big,
    chain,
    constants,
    conv,
    end,
    halves,
    images,
    minus,
    mul,
    ranked,
    some,
    turned,
    unranked,
    window,
    x,
)
from refusal_reasons import pattern, reasons

from normdeploy.rewrite import rewrite
from normdeploy.rewrite.affine.match import NoMatch
from normdeploy.rewrite.affine.region import Refusal

CROSSING = {
    "cross_activation._homogeneous: {} {} and some channels are scaled by negative numbers": Case(
        lambda g: end(g, g.op("Relu", minus(g, images(g), 3, 1)))
    ),
    "cross_activation._homogeneous: {} {} and the shift is not zero": Case(
        lambda g: end(g, g.op("LeakyRelu", add(g, images(g), 3, 1)))
    ),
    "cross_activation._one_number: the bounds of {} are computed at run time": Case(
        lambda g: mul(g, g.op("Clip", conv(g, images(g)), x(g, name="low")))
    ),
    "cross_activation._one_number: {} cuts at fixed values, and its scale is not one positive number": Case(
        lambda g: mul(g, g.op("Clip", conv(g, images(g)), np.array(0.0)), 3, 1)
    ),
    "cross_activation.clip_forward: {} reads it as a bound": Case(
        lambda g: end(g, g.op("Clip", images(g), mul(g, x(g, 1, name="low"))))
    ),
    "cross_activation.forward: {} reads it as its slope": Case(
        lambda g: end(g, g.op("PRelu", images(g), mul(g, x(g, 3, 1, name="slope"))))
    ),
    "cross_add._another: {} adds another branch to it, which its scale does not apply to": Case(
        lambda g: end(g, g.op("Add", mul(g, images(g), 3, 1), images(g, name="z")))
    ),
    "cross_add._plan: an operand of {} is broadcast along the axis where it varies": Case(
        lambda g: mul(g, g.op("Add", conv(g, images(g)), x(g, "N", 1, 4, name="z")), 3, 1)
    ),
    "cross_add._unknown: the rank of the result of {} is not known": Case(
        lambda g: ranked(g, g.op("Add", add(g, x(g, "N", 3, 4), 3, 1), unranked(g)))
    ),
    "cross_add.join: {} adds branches that are scaled differently": Case(
        lambda g: (lambda v: g.op("Conv", g.op("Add", v, turned(g, v)), some(2, 4, 1)))(mul(g, x(g, "N", 4, 4), 4))
    ),
    "cross_blocks._deepen: it varies along an axis that {} rearranges": Case(
        lambda g: mul(g, g.op("DepthToSpace", conv(g, images(g, 2, 2), some(12, 3, 1, 1)), blocksize=2), 4)
    ),
    "cross_blocks._flatten: it varies along an axis that {} rearranges": Case(
        lambda g: end(g, g.op("DepthToSpace", mul(g, x(g, "N", 12, 2, 2), 2), blocksize=2), 2)
    ),
    "cross_blocks._flatten: channels that {} turns into positions of one channel differ": Case(
        lambda g: end(g, g.op("DepthToSpace", mul(g, x(g, "N", 12, 2, 2), 12, 1, 1), blocksize=2), 2)
    ),
    "cross_concat._unknown: the sizes that {} joins are not known": Case(
        lambda g: end(g, g.op("Concat", mul(g, images(g, "L"), 3, 1), images(g, "M", name="z"), axis=2))
    ),
    "cross_identity._refused: the other side of {} holds fewer digits": Case(
        lambda g: (
            (
                g.op("Mul", g.op("Cast", conv(g, images(g)), to=onnx.TensorProto.FLOAT), *constants(g, factor=2.0)),
                SINGLE,
            ),
        ),
        HALF,
    ),
    "cross_identity._refused: {} converts to or from something that is no float": Case(
        lambda g: mul(g, g.op("Cast", x(g, "N", 3, dtype=np.int64), to=onnx.TensorProto.DOUBLE), 3)
    ),
    "cross_identity._refused: {} drops at random (training mode)": Case(
        lambda g: mul(g, g.op("Dropout", conv(g, images(g)), *constants(g, ratio=0.5), np.array(True)), 3, 1)
    ),
    "cross_mul._divides: {} divides by it": Case(
        lambda g: end(g, g.op("Div", images(g), mul(g, images(g, name="z"), 3, 1)))
    ),
    "cross_mul._shifted: {} multiplies it with a computed value and its shift is not zero": Case(
        lambda g: end(g, g.op("Mul", images(g), add(g, images(g, name="z"), 3, 1)))
    ),
    "cross_mul._unknown: the rank of the result of {} is not known": Case(
        lambda g: ranked(g, g.op("Mul", mul(g, x(g, "N", 3, 4), 3, 1), unranked(g)))
    ),
    "cross_mul.backward: the factors of {} are broadcast along the axis where it varies": Case(
        lambda g: mul(
            g, g.op("Reshape", g.op("Mul", x(g, "N", 3, 1), x(g, "N", 1, 4, name="z")), np.array([-1, 12])), 12
        )
    ),
    "cross_mul.backward: {} multiplies two computed values and the shift is not zero": Case(
        lambda g: add(g, g.op("Mul", conv(g, images(g)), images(g, name="z")), 3, 1)
    ),
    "cross_pad._computed: what {} pads with is computed at run time": Case(
        lambda g: mul(g, g.op("Pad", conv(g, images(g)), np.array([0, 0, 1, 0, 0, 1]), x(g, name="v")))
    ),
    "cross_pad._one: what {} pads with would overflow": Case(
        lambda g: big(g, g.op("Pad", conv(g, images(g)), np.array([0, 0, 1, 0, 0, 1]), np.array(300.0))), HALF
    ),
    "cross_pad._one: {} pads all channels with one number, which it sends to several": Case(
        lambda g: add(g, g.op("Pad", conv(g, images(g)), np.array([0, 0, 1, 0, 0, 1])), 3, 1)
    ),
    "cross_pad._refused: how {} pads is not known": Case(
        lambda g: mul(g, g.known(g.op("Pad", conv(g, images(g)), x(g, 6, name="p", dtype=np.int64)), "N", 3, "L"), 3, 1)
    ),
    "cross_pad._refused: it varies along an axis that {} pads": Case(
        lambda g: mul(g, g.op("Pad", conv(g, images(g)), np.array([0, 1, 0, 0, 0, 0])), 4, 1)
    ),
    "cross_pad.forward: {} reads it as an option": Case(
        lambda g: end(g, g.op("Pad", images(g), np.array([0, 0, 1, 0, 0, 1]), mul(g, x(g, 1, name="v"))))
    ),
    "cross_pool._maximum: {} takes a maximum and channel {} ({} in all) is scaled by a negative number": Case(
        lambda g: minus(g, g.op("MaxPool", conv(g, images(g)), kernel_shape=[2]), 3, 1)
    ),
    "cross_pool._pooled: it varies along an axis that {} pools over": Case(
        lambda g: end(g, g.op("GlobalAveragePool", mul(g, images(g), 4)))
    ),
    "cross_pool._pooled: {} counts the zeros of its padding and the shift is not zero": Case(
        lambda g: end(
            g, g.op("AveragePool", add(g, images(g), 3, 1), kernel_shape=[3], pads=[0, 1], count_include_pad=1)
        )
    ),
    "cross_pool._reduction: how many values {} sums is not known and the shift is not zero": Case(
        lambda g: end(g, g.op("ReduceSum", add(g, images(g, "L"), 3, 1), np.array([2])))
    ),
    "cross_pool._resized: it varies along an axis that {} resizes": Case(
        lambda g: mul(g, g.op("Resize", conv(g, images(g)), None, *constants(g, scales=[1, 1, 2])), 8)
    ),
    "cross_pool._resized: the rank of {} is not known": Case(
        lambda g: mul(g, g.known(g.op("Resize", unranked(g), None, *constants(g, scales=[1, 1, 2])), "N", 3, 8), 3, 1)
    ),
    "cross_pool._resized: {} crops and may read outside its input": Case(
        lambda g: mul(
            g,
            g.op(
                "Resize",
                conv(g, images(g)),
                *constants(g, roi=[0, 0, 0.1, 1, 1, 1.2], scales=[1, 1, 2]),
                mode="linear",
                coordinate_transformation_mode="tf_crop_and_resize",
            ),
            3,
            1,
        )
    ),
    "cross_pool.pool_forward: the indices that {} found are read": Case(
        lambda g: (lambda y, at: (end(g, y), (at, np.int64)))(
            *g.op("MaxPool", mul(g, x(g, 1, 3, 4), 3, 1), kernel_shape=[2], outputs=2)
        )
    ),
    "cross_pool.reduce_backward: the axes that {} reduces are not known": Case(
        lambda g: mul(
            g, g.known(g.op("ReduceMean", conv(g, images(g)), x(g, 1, name="at", dtype=np.int64)), "N", 3, "L")
        )
    ),
    "cross_pool.reduce_forward: it varies along an axis that {} reduces": Case(
        lambda g: end(g, g.op("ReduceMean", mul(g, images(g), 4), np.array([2])))
    ),
    "cross_pool.reduce_forward: the axes that {} reduces are not known": Case(
        lambda g: (
            (g.op("ReduceMean", mul(g, images(g), 3, 1), x(g, 1, name="at", dtype=np.int64)), DOUBLE, ["N", 3, "L"]),
        )
    ),
    "cross_pool.reduce_forward: {} reduces everything to one number": Case(
        lambda g: g.op("ReduceMean", mul(g, images(g)), keepdims=0)
    ),
    "cross_pool.resize_forward: {} reads it as a size": Case(
        lambda g: g.op("Resize", images(g), None, mul(g, x(g, 3, name="scales"))), SINGLE
    ),
    "cross_select._overlap: what {} selects beside {} is not known": Case(
        lambda g: (
            lambda y: (
                mul(g, window(g, y, 0, 1), 4),
                g.op("Relu", g.op("Slice", y, x(g, 1, name="at", dtype=np.int64), np.array([3]), np.array([1]))),
            )
        )(conv(g, images(g)))
    ),
    "cross_select._overlap: {} reads the same value as {} in front of it": Case(
        lambda g: (lambda y: (mul(g, window(g, y, 0, 1)), g.op("Relu", y)))(conv(g, images(g)))
    ),
    "cross_select._overlap: {} selects the same part as {}": Case(
        lambda g: (lambda y: (mul(g, window(g, y, 0, 2)), g.op("Relu", window(g, y, 1, 3))))(conv(g, images(g)))
    ),
    "cross_select._overlap: {} selects the same part twice": Case(
        lambda g: (
            lambda y: (mul(g, g.op("Gather", y, np.array([0, 0]), axis=1), 2, 1), g.op("Relu", window(g, y, 1, 3)))
        )(conv(g, images(g)))
    ),
    "cross_select.backward: what {} selects along the axis where it varies is not known": Case(
        lambda g: mul(g, g.op("Gather", conv(g, images(g)), x(g, 2, name="at", dtype=np.int64), axis=1), 2, 1)
    ),
    "cross_select.backward: what {} selects is not known": Case(
        lambda g: mul(g, g.op("Slice", conv(g, images(g)), np.array([0, 1]), np.array([3, 4]), np.array([1, 2])), 3, 1)
    ),
    "cross_select.forward: what {} selects along the axis where it varies is not known": Case(
        lambda g: end(g, g.op("Gather", mul(g, images(g), 3, 1), x(g, 3, name="at", dtype=np.int64), axis=1))
    ),
    "cross_shape._lost: {} merges or repeats the axis along which it varies": Case(
        lambda g: mul(g, g.op("Expand", conv(g, images(g, 1)), np.array([1, 3, 5])), 5)
    ),
}

RECOGNISING = {
    "match._arithmetic: the constant '{}' makes it infinite or NaN": Case(
        lambda g: g.op("Div", images(g), np.arange(3.0).reshape(3, 1))
    ),
    "match._batch_norm: it computes the statistics of each batch (training mode), so it is no fixed map: switch the "
    "model to evaluation mode before exporting it": Case(
        lambda g: batch_norm(g, images(g), outputs=3, training_mode=1)[0], shown=False
    ),
    "match._batch_norm: its parameters hold NaN or infinity: train it again or restore them": Case(
        lambda g: batch_norm(g, images(g), np.array([1, np.nan, 1]))
    ),
    "match._batch_norm: its running variance plus epsilon is not positive in channel {} ({} in all): train it again or "
    "restore its statistics": Case(lambda g: batch_norm(g, images(g), None, None, None, np.array([1.0, -1, 1]))),
    "match._batch_norm: its {} is computed at run time": Case(
        lambda g: batch_norm(g, images(g), g.op("Exp", x(g, 3, name="s")))
    ),
    "match._batch_norm: its {} is computed at run time, not kept from training: if it is the batch's own, a sample's "
    "result depends on its batch; keep running statistics (track_running_stats)": Case(
        lambda g: batch_norm(g, images(g), None, None, g.op("Exp", x(g, 3, name="s")))
    ),
    "match._batch_norm: its {} is not a constant: a caller of the graph can change it": Case(
        lambda g: batch_norm(g, images(g), None, x(g, 3, name="s"))
    ),
    "match._batch_norm: the rank of its input is not known: give the model input shapes": Case(
        lambda g: ranked(g, batch_norm(g, unranked(g)))
    ),
}

SEARCHING = {
    "offset.too_far: it removes an offset {} times the size of its results: without it the sums of {} would lose that "
    "factor of precision; centre the data in front of the network": Case(
        lambda g: end(g, g.op("Sub", images(g), np.full((3, 1), 100.0)))
    ),
    "absorb_affine.backward: {} in front of it removes an offset {} times the size of its results: in one step with it "
    "that would lose precision": Case(
        lambda g: g.op(
            "Sigmoid",
            g.batch_norm(mul(g, g.op("Sub", images(g), np.full((3, 1), 100.0)), 3, 1), 3, np.random.default_rng(0)),
        )
    ),
    "backward._demand: the readers of '{}' in front of it want different maps": Case(
        lambda g: (
            lambda y: mul(g, g.op("Concat", g.op("LeakyRelu", y), g.op("Identity", g.op("Relu", y)), axis=1), 6, 1)
        )(conv(g, images(g))),
        shown=False,
    ),
    "backward._demand: {} reads '{}' twice": Case(
        lambda g: (lambda y: mul(g, g.op("Add", g.op("Add", y, y), g.op("Relu", y)), 3, 1))(conv(g, images(g))),
        shown=False,
    ),
    "backward.plan: '{}' in front of it is read by others too": Case(
        lambda g: (lambda y: (mul(g, g.op("Add", g.op("Relu", y), y), 3, 1), g.op("Sigmoid", y)))(conv(g, images(g))),
        shown=False,
    ),
    "forward._reader: more than {} operators stand between it and the linear operators behind it": Case(
        lambda g: end(g, chain(g, mul(g, x(g, "N", 3, 3), 3, 1)))
    ),
    "forward._reader: {} behind it is reached on two ways": Case(
        lambda g: (lambda v: g.op("MatMul", g.op("MatMul", v, turned(g, v)), some(5, 2)))(mul(g, x(g, "N", 5, 4)))
    ),
    "forward._reader: {} reads it inside a control-flow body": Case(BODY.format(outside="Mul(x, a)", inside="Relu(v)")),
    "forward._reader: {} stands {}": Case(lambda g: end(g, g.op("Sigmoid", mul(g, images(g), 3, 1)))),
    "backward.blocked: the result of {} in front of it is also read by {} ({}{})": Case(
        lambda g: (lambda y: (mul(g, y, 3, 1), g.op("Relu", y)))(conv(g, images(g)))
    ),
    "backward.blocked: {} reads the result of {} twice": Case(
        lambda g: (lambda y: mul(g, g.op("Add", y, y), 3, 1))(conv(g, images(g)))
    ),
    "backward.enter: more than {} operators stand between it and the linear operators in front of it": Case(
        lambda g: mul(g, chain(g, conv(g, images(g, 3))), 3, 1)
    ),
    "backward.enter: {} in front of it is reached on two ways": Case(
        lambda g: mul(g, g.op("Concat", *halves(g, conv(g, images(g)))[::-1], axis=1), 3, 1)
    ),
    "backward.enter: {} stands in front of it": Case(lambda g: mul(g, g.op("Sigmoid", images(g)), 3, 1)),
    "forward.through: the graph output '{}' is behind it": Case(lambda g: mul(g, images(g), 3, 1)),
    "backward.unreachable: '{}' comes from outside this control-flow body": Case(
        BODY.format(outside="Relu(x)", inside="Mul(v, a)")
    ),
    "backward.unreachable: the graph input '{}' is in front of it": Case(lambda g: mul(g, images(g), 3, 1)),
    "backward.unreachable: the result of {} in front of it is the graph output '{}'": Case(
        lambda g: (lambda y: (y, mul(g, y, 3, 1)))(conv(g, images(g)))
    ),
}

CASES = ABSORBING | QUANTIZED | CROSSING | RECOGNISING | SEARCHING


def test_every_reason_has_a_case():
    assert set(CASES) == reasons()


def graph_of(case: Case, builder: type) -> onnx.ModelProto:
    if isinstance(case.build, str):
        return parser.parse_model(case.build)
    g = builder(dtype=case.dtype, opset=case.opset)
    made = case.build(g)
    for output in made if isinstance(made, tuple) else [made]:
        g.output(*(output if isinstance(output, tuple) else [output]))
    return g.proto()


@pytest.mark.parametrize("name", CASES)
def test_reason(name, graph, monkeypatch):
    given: list[tuple[str, str]] = []
    for kind, position in ((Refusal, 0), (NoMatch, 1)):

        def noting(self, *args, position=position, made=kind.__init__):
            made(self, *args)
            frame = sys._getframe(1)
            given.append((f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}", str(args[position])))

        monkeypatch.setattr(kind, "__init__", noting)
    case = CASES[name]
    proto = graph_of(case, graph)
    result = rewrite(ir.from_proto(proto))
    onnx.checker.check_model(ir.to_proto(result.model), full_check=False)
    site, _, text = name.partition(": ")
    shape = pattern(text)
    mine = [reason for where, reason in given if where == site and shape.fullmatch(reason)]
    assert mine, f"not given; given were {given}"
    shown = [row.reason for row in result.ledger.kept]
    assert any(reason in row for reason in mine for row in shown) == case.shown, (mine, shown)
