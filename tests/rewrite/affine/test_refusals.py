"""Every reason for which a map stays, each on a small graph that gives it; a clause without a graph here fails.

Cases are named as in :mod:`refusal_graphs`, which holds those of linear operators.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from rare_refusals import RARE
from refusal_graphs import (
    ABSORBING,
    BODY,
    DOUBLE,
    HALF,
    QUANTIZED,
    SINGLE,
    TURNS,
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
    quantized,
    quantized_bias,
    ranked,
    recurrent,
    some,
    turned,
    unranked,
    window,
    x,
    zero_beside,
)
from refusal_reasons import clauses, pattern

from normdeploy.rewrite import rewrite

CROSSING = {
    "Relu | needs a scale above 0: with another its other side would be cut": Case(
        lambda g: end(g, g.op("Relu", minus(g, images(g), 3, 1)))
    ),
    "LeakyRelu | cuts at 0, which a shift would move": Case(
        lambda g: end(g, g.op("LeakyRelu", add(g, images(g), 3, 1)))
    ),
    "Clip | has bounds that are computed at run time": Case(
        lambda g: mul(g, g.op("Clip", conv(g, images(g)), x(g, name="low")))
    ),
    "Clip | cuts all channels at the same values": Case(
        lambda g: mul(g, g.op("Clip", conv(g, images(g)), np.array(0.5)), 3, 1)
    ),
    "Clip | cuts at 0, which a shift would move": Case(
        lambda g: add(g, g.op("Clip", conv(g, images(g)), np.array(0.0)), 3, 1)
    ),
    "Clip | needs a scale above 0: with another its other side would be cut": Case(
        lambda g: minus(g, g.op("Clip", conv(g, images(g)), np.array(0.0)), 3, 1)
    ),
    "Clip | gives its upper bound, which is below the lower one": Case(
        lambda g: minus(g, g.op("Clip", conv(g, images(g)), np.array(1.0), np.array(0.0)))
    ),
    "Clip | has bounds that are computed at run time | 2": Case(
        lambda g: end(g, g.op("Clip", images(g), mul(g, x(g, 1, name="low"))))
    ),
    "PRelu | reads it as its slope": Case(lambda g: end(g, g.op("PRelu", images(g), mul(g, x(g, 3, 1, name="slope"))))),
    "any | its scale cannot leave: in front of it {} is given; {} is given, and it meets what is behind it in {} by "
    "another scale": Case(lambda g: end(g, g.op("Add", mul(g, images(g), 3, 1), images(g, name="z")))),
    "output | must stay what it is": Case(
        lambda g: mul(g, g.op("Add", conv(g, images(g)), x(g, "N", 1, 4, name="z")), 3, 1)
    ),
    "Add | has an operand of unknown rank, or more elements than are followed": Case(
        lambda g: ranked(g, g.op("Add", add(g, x(g, "N", 3, 4), 3, 1), unranked(g)))
    ),
    "any | its scale cannot leave: in front of it {} is given, and it meets what is behind it in {} by another "
    "scale": Case(
        lambda g: (lambda v: g.op("MatMul", g.op("Add", v, turned(g, v)), some(4, 2)))(mul(g, x(g, "N", 4, 4), 4))
    ),
    "DepthToSpace | turns channels into positions of one channel, which have to agree": Case(
        lambda g: mul(g, g.op("DepthToSpace", conv(g, images(g, 2, 2), some(12, 3, 1, 1)), blocksize=2), 4)
    ),
    "DepthToSpace | rearranges the axis along which it varies": Case(
        lambda g: end(g, g.op("DepthToSpace", mul(g, x(g, "N", 12, 2, 2), 2), blocksize=2), 2)
    ),
    "DepthToSpace | turns channels into positions of one channel, which have to agree | 2": Case(
        lambda g: end(g, g.op("DepthToSpace", mul(g, x(g, "N", 12, 2, 2), 12, 1, 1), blocksize=2), 2)
    ),
    "Concat | moves along the axis where it varies, by what is known at run time only": Case(
        lambda g: end(g, g.op("Concat", mul(g, images(g, "L"), 3, 1), images(g, "M", name="z"), axis=2))
    ),
    "Concat | moves along the axis where it varies, at more places than are followed": Case(
        lambda g: conv(
            g,
            g.op("Concat", mul(g, images(g, 800), 3, 1), mul(g, images(g, 800, name="z"), 800), axis=1),
            some(3, 6, 1),
        )
    ),
    "any | its shift cannot leave: behind it {} cuts at 0, which a shift would move, and in front of it {} cuts at 0, "
    "which a shift would move; {} is given": Case(
        lambda g: g.op(
            "Relu",
            add(g, g.op("Concat", g.op("Relu", conv(g, images(g)), name="front"), images(g, name="z"), axis=1), 6, 1),
        )
    ),
    "any | the other side of a Cast, where {} would take it, holds fewer digits": Case(
        lambda g: (
            (
                g.op("Mul", g.op("Cast", conv(g, images(g)), to=onnx.TensorProto.FLOAT), *constants(g, factor=2.0)),
                SINGLE,
            ),
        ),
        HALF,
    ),
    "Cast | converts to or from something that is no float": Case(
        lambda g: mul(g, g.op("Cast", x(g, "N", 3, dtype=np.int64), to=onnx.TensorProto.DOUBLE), 3)
    ),
    "Cast | rounds, and the next operator goes back to more digits: what it rounds is to stay what it is": Case(
        lambda g: mul(
            g,
            g.op(
                "Cast",
                g.op("Cast", conv(g, images(g)), to=onnx.TensorProto.FLOAT),
                to=onnx.TensorProto.DOUBLE,
            ),
            3,
            1,
        )
    ),
    "Dropout | drops at random (training mode)": Case(
        lambda g: mul(g, g.op("Dropout", conv(g, images(g)), *constants(g, ratio=0.5), np.array(True)), 3, 1)
    ),
    "Mul | multiplies two values, which leaves no place for a shift": Case(
        lambda g: end(g, g.op("Mul", images(g), add(g, images(g, name="z"), 3, 1)))
    ),
    "Mul | averages over the axis along which it varies": Case(
        lambda g: g.op(
            "MatMul",
            g.op(
                "ReduceSum",
                g.op("Mul", g.op("Softmax", x(g, "N", 4, 1), axis=1), add(g, x(g, "N", 4, 3, name="z"), 4, 1)),
                np.array([1]),
            ),
            some(3, 2),
        )
    ),
    "Mul | has an operand of unknown rank, or more elements than are followed": Case(
        lambda g: ranked(g, g.op("Mul", mul(g, x(g, "N", 3, 4), 3, 1), unranked(g)))
    ),
    "output | must stay what it is | 2": Case(
        lambda g: mul(
            g, g.op("Reshape", g.op("Mul", x(g, "N", 3, 1), x(g, "N", 1, 4, name="z")), np.array([-1, 12])), 12
        )
    ),
    "Mul | multiplies two values, which leaves no place for a shift | 2": Case(
        lambda g: add(g, g.op("Mul", conv(g, images(g)), images(g, name="z")), 3, 1)
    ),
    "Pad | pads with what is known at run time only": Case(
        lambda g: mul(g, g.op("Pad", conv(g, images(g)), np.array([0, 0, 1, 0, 0, 1]), x(g, name="v")))
    ),
    "any | the weights of {} would overflow {} | 5": Case(
        lambda g: big(g, g.op("Pad", conv(g, images(g)), np.array([0, 0, 1, 0, 0, 1]), np.array(300.0))), HALF
    ),
    "Pad | pads with zeros, which a shift would change": Case(
        lambda g: add(g, g.op("Pad", conv(g, images(g), some(3, 3, 3)), np.array([0, 0, 1, 0, 0, 1])), 3, 1)
    ),
    "Pad | pads by widths that are known at run time only": Case(
        lambda g: mul(g, g.known(g.op("Pad", conv(g, images(g)), x(g, 6, name="p", dtype=np.int64)), "N", 3, "L"), 3, 1)
    ),
    "Pad | pads along the axis where it varies": Case(
        lambda g: mul(g, g.op("Pad", conv(g, images(g)), np.array([0, 1, 0, 0, 0, 0]), np.array(0.5)), 4, 1)
    ),
    "Pad | pads with zeros, which a shift would change | of channels and places": Case(
        lambda g: add(g, g.op("Pad", conv(g, images(g)), np.array([0, 1, 1, 0, 0, 0])), 4, 1)
    ),
    "Pad | reads it as an option": Case(
        lambda g: end(g, g.op("Pad", images(g), np.array([0, 0, 1, 0, 0, 1]), mul(g, x(g, 1, name="v"))))
    ),
    "MaxPool | takes a maximum or a size, and needs a scale above 0": Case(
        lambda g: minus(g, g.op("MaxPool", conv(g, images(g)), kernel_shape=[2]), 3, 1)
    ),
    "GlobalAveragePool | pools over the axis along which it varies": Case(
        lambda g: end(g, g.op("GlobalAveragePool", mul(g, images(g), 4)))
    ),
    "AveragePool | counts the zeros of its padding, which a shift would change": Case(
        lambda g: end(
            g, g.op("AveragePool", add(g, images(g), 3, 1), kernel_shape=[3], pads=[0, 1], count_include_pad=1)
        )
    ),
    "ReduceSum | sums a number of values that is not known": Case(
        lambda g: end(g, g.op("ReduceSum", add(g, images(g, "L"), 3, 1), np.array([2])))
    ),
    "Conv | has no weights along an axis where it varies | 3": Case(
        lambda g: mul(g, g.op("Resize", conv(g, images(g)), None, *constants(g, scales=[1, 1, 2])), 8)
    ),
    "Resize | has no weights that could change what it writes": Case(
        lambda g: mul(g, g.known(g.op("Resize", unranked(g), None, *constants(g, scales=[1, 1, 2])), "N", 3, 8), 3, 1)
    ),
    "Resize | crops, and may read outside its input": Case(
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
    "ReduceMean | reduces along axes that are known at run time only": Case(
        lambda g: mul(
            g, g.known(g.op("ReduceMean", conv(g, images(g)), x(g, 1, name="at", dtype=np.int64)), "N", 3, "L")
        )
    ),
    "ReduceMean | reduces the axis along which it varies": Case(
        lambda g: end(g, g.op("ReduceMean", mul(g, images(g), 4), np.array([2])))
    ),
    "ReduceMean | reduces along axes that are known at run time only | 2": Case(
        lambda g: (
            (g.op("ReduceMean", mul(g, images(g), 3, 1), x(g, 1, name="at", dtype=np.int64)), DOUBLE, ["N", 3, "L"]),
        )
    ),
    "output | must stay what it is | 3": Case(lambda g: g.op("ReduceMean", mul(g, images(g)), keepdims=0)),
    "Resize | reads it as an option": Case(
        lambda g: g.op("Resize", images(g), None, mul(g, x(g, 3, name="scales"))), SINGLE
    ),
    "Slice | has one scale for several places where it varies": Case(
        lambda g: (
            lambda y: (
                mul(g, window(g, y, 0, 1), 4),
                g.op("Relu", g.op("Slice", y, x(g, 1, name="at", dtype=np.int64), np.array([3]), np.array([1]))),
            )
        )(conv(g, images(g)))
    ),
    "output | must stay what it is | 4": Case(
        lambda g: (lambda y: (mul(g, window(g, y, 0, 1)), g.op("Relu", y)))(conv(g, images(g)))
    ),
    "output | must stay what it is | 5": Case(
        lambda g: (lambda y: (mul(g, window(g, y, 0, 2)), g.op("Relu", window(g, y, 1, 3))))(conv(g, images(g)))
    ),
    "Gather | has one scale for several places where it varies": Case(
        lambda g: (
            lambda y: (mul(g, g.op("Gather", y, np.array([0, 0]), axis=1), 2, 1), g.op("Relu", window(g, y, 1, 3)))
        )(conv(g, images(g)))
    ),
    "Gather | moves along the axis where it varies, by what is known at run time only": Case(
        lambda g: mul(g, g.op("Gather", conv(g, images(g)), x(g, 2, name="at", dtype=np.int64), axis=1), 2, 1)
    ),
    "Gather | moves along the axis where it varies, by what is known at run time only | 2": Case(
        lambda g: end(g, g.op("Gather", mul(g, images(g), 3, 1), x(g, 3, name="at", dtype=np.int64), axis=1))
    ),
    "Expand | has one scale for several places where it varies": Case(
        lambda g: mul(g, g.op("Expand", conv(g, images(g, 1)), np.array([1, 3, 5])), 5)
    ),
}

RECOGNISING = {
    "any | the constant '{}' makes it infinite or NaN": Case(
        lambda g: g.op("Div", images(g), np.arange(3.0).reshape(3, 1))
    ),
    "any | its parameters hold NaN or infinity: train it again or restore them": Case(
        lambda g: batch_norm(g, images(g), np.array([1, np.nan, 1]))
    ),
    "any | its running variance plus epsilon is not positive in channel {} ({} in all): train it again "
    "or restore its statistics": Case(lambda g: batch_norm(g, images(g), None, None, None, np.array([1.0, -1, 1]))),
    "any | it has no channels": Case(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[3,0,4] x) => (float[] y) <int64[1] none = {0}> '
        "{ s = ConstantOfShape (none) y = BatchNormalization (x, s, s, s, s) }"
    ),
    "any | its {} is computed at run time": Case(lambda g: batch_norm(g, images(g), g.op("Exp", x(g, 3, name="s")))),
    "any | its {} is computed at run time, not kept from training: if it is the batch's own, a sample's "
    "result depends on its batch; keep running statistics (track_running_stats)": Case(
        lambda g: batch_norm(g, images(g), None, None, g.op("Exp", x(g, 3, name="s")))
    ),
    "any | its {} is not a constant: a caller of the graph can change it": Case(
        lambda g: batch_norm(g, images(g), None, x(g, 3, name="s"))
    ),
    "any | the rank of its input is not known: onnx infers no shape behind {}; declare that of its result in the "
    "file (value_info)": Case(
        '<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]> g (float[1,1,4,4] x) => (float[1,1,3,3] y) '
        '<float[1,1,2,2] w = {1, 2, 3, 4}, float[1] s = {2}> { c = com.microsoft.FusedConv <activation = "Relu"> '
        "(x, w) y = BatchNormalization (c, s, s, s, s) }"
    ),
}

SEARCHING = {
    "any | it removes an offset {} times the size of its results: without it the sums of {} would lose "
    "that factor of precision; centre the data in front of the network": Case(
        lambda g: end(g, g.op("Sub", images(g), np.full((3, 1), 100.0)))
    ),
    "any | it removes an offset {} times the size of its results: without it the sums of {} would lose "
    "that factor of precision; centre the data in front of the network | 2": Case(
        lambda g: g.op(
            "Sigmoid",
            g.batch_norm(mul(g, g.op("Sub", images(g), np.full((3, 1), 100.0)), 3, 1), 3, np.random.default_rng(0)),
        )
    ),
    "Concat | has one scale for several places where it varies": Case(
        lambda g: (
            lambda y: mul(g, g.op("Concat", g.op("LeakyRelu", y), g.op("Identity", g.op("Relu", y)), axis=1), 6, 1)
        )(conv(g, images(g)))
    ),
    "Sigmoid | sees every scale and every shift": Case(
        lambda g: (lambda y: (mul(g, g.op("Add", g.op("Relu", y), y), 3, 1), g.op("Sigmoid", y)))(conv(g, images(g)))
    ),
    "Relu | reads it inside a control-flow body": Case(TURNS),
    "Sigmoid | sees every scale and every shift | 2": Case(lambda g: end(g, g.op("Sigmoid", mul(g, images(g), 3, 1)))),
    "output | must stay what it is | 6": Case(
        lambda g: (lambda y: (mul(g, y, 3, 1), g.op("Relu", y)))(conv(g, images(g)))
    ),
    "Sigmoid | has no weights that could change what it writes": Case(
        lambda g: mul(g, g.op("Sigmoid", images(g)), 3, 1)
    ),
    "output | must stay what it is | 7": Case(lambda g: mul(g, images(g), 3, 1)),
    "output | must stay what it is | 8": Case(BODY.format(outside="Relu(x)", inside="Mul(v, a)")),
    "output | must stay what it is | 9": Case(lambda g: mul(g, images(g), 3, 1)),
    "output | must stay what it is | 10": Case(lambda g: (lambda y: (y, mul(g, y, 3, 1)))(conv(g, images(g)))),
}

FURTHER = {
    "map | removes a large offset in a step of its own, and stays as it was written": Case(
        lambda g: g.op(
            "Sigmoid",
            g.batch_norm(mul(g, g.op("Sub", images(g), np.full((3, 1), 100.0)), 3, 1), 3, np.random.default_rng(0)),
        )
    ),
    "any | absorbing it would copy or compute more than the pass over its tensor that it saves": Case(
        lambda g: (
            g.constant(some(500, 4), "table"),
            g.op(
                "Gemm", g.op("Sigmoid", mul(g, g.op("Gather", "table", x(g, 2, dtype=np.int64)), 4)), "table", transB=1
            ),
        )[1]
    ),
    "LayerNormalization | averages over the axis along which it varies": Case(
        lambda g: g.op("LayerNormalization", turned(g, add(g, x(g, "N", 4, 3), 4, 1)), some(4), axis=-1), SINGLE
    ),
    "Softmax | compares values along the axis where it varies": Case(lambda g: g.op("Softmax", add(g, images(g), 4))),
    "Softmax | sees every scale": Case(lambda g: g.op("Softmax", mul(g, images(g)))),
    "Max | compares, and needs a scale above 0: with another the other operand would win": Case(
        lambda g: end(g, g.op("Max", minus(g, images(g), 3, 1), some(3, 1)))
    ),
    "Div | divides, which leaves no place for a shift": Case(
        lambda g: end(g, g.op("Div", images(g), add(g, images(g, name="z"), 3, 1)))
    ),
    "RNN | has integer weights without a step per input": Case(
        lambda g: recurrent(g, mul(g, x(g, 4, 5, 3), 3), weight=quantized(g, 1, 2, 3)), SINGLE, 19
    ),
    "Reshape | has more elements than are followed": Case(
        lambda g: end(g, g.op("Reshape", mul(g, x(g, 2048, 1024), 1024), np.array([1, 1, -1])), 1),
    ),
    "ReduceL2 | measures sizes, which a shift would change": Case(
        lambda g: end(g, g.op("ReduceL2", add(g, images(g), 3, 1), np.array([2])))
    ),
    "Reshape | merges or repeats the axis along which it varies": Case(
        lambda g: g.op("Gemm", g.op("Reshape", mul(g, images(g, "L"), 3, 1), np.array([-1, 1])), some(1, 2))
    ),
    "Pad | pads all channels with one number": Case(
        lambda g: end(g, g.op("Pad", mul(g, images(g), 3, 1), np.array([0, 0, 1, 0, 0, 1]), np.array(1.5)))
    ),
    "Resize | resizes the axis along which it varies": Case(
        lambda g: end(g, g.op("Resize", mul(g, images(g), 4), None, *constants(g, scales=[1, 1, 2])))
    ),
    "GridSample | samples along the axis along which it varies": Case(
        lambda g: end(g, g.op("GridSample", mul(g, x(g, "N", 3, 4, 4), 4), x(g, "N", 5, 5, 2, name="places")), 2)
    ),
    "GridSample | takes zeros for what is outside, which a shift would change": Case(
        lambda g: end(g, g.op("GridSample", add(g, x(g, "N", 3, 4, 4), 3, 1, 1), x(g, "N", 5, 5, 2, name="places")), 2)
    ),
    "GridSample | reads there at which places it samples": Case(
        lambda g: end(g, g.op("GridSample", x(g, "N", 3, 4, 4), mul(g, x(g, "N", 5, 5, 2, name="places"), 2)), 2)
    ),
    "Einsum | averages over the axis along which it varies": Case(
        lambda g: g.op(
            "MatMul",
            g.op(
                "Einsum",
                g.op("Softmax", x(g, "N", 5, 4)),
                add(g, x(g, "N", 4, 3, name="z"), 4, 1),
                equation="nij,njk->nik",
            ),
            some(3, 2),
        )
    ),
    "ReduceMax | takes a maximum or a size, and needs a scale above 0": Case(
        lambda g: end(g, g.op("ReduceMax", minus(g, images(g), 3, 1), np.array([2])))
    ),
    "any | the weights of {} would lose digits: numbers so small have fewer of them in {}": Case(
        lambda g: g.op("Mul", conv(g, images(g), 0.05 * some(3, 3, 1)), np.array(1e-4)), HALF
    ),
    "any | what behind it reads its channels of scale 0 would divide by it": Case(
        lambda g: end(
            g,
            g.op(
                "Relu",
                add(
                    g,
                    g.op("Mul", g.op("Add", conv(g, images(g)), images(g, name="z")), np.array([[0.0], [1], [2]])),
                    3,
                    1,
                ),
            ),
        )
    ),
    "any | behind it {} chooses among values that it scales by 0, which are all one": Case(
        lambda g: ((g.op("ArgMax", g.op("Mul", conv(g, images(g)), np.array([[1.0], [0], [2]])), axis=2), np.int64),)
    ),
    "any | {} would have to undo a scale of 0, by which nothing can be divided": Case(
        lambda g: zero_beside(g, lambda v: mul(g, v, 3, 1)), SINGLE
    ),
    "any | {} would have to undo a scale of 0, by which nothing can be divided | 2": Case(
        lambda g: zero_beside(g, lambda v: conv(g, v)), SINGLE
    ),
    "any | channel {} ({} in all) is scaled by 0, and what others read in front of it would have to carry its shift "
    "over 0": Case(lambda g: switched_off(g, [1.0, 0.0, 2.0], [0.1, 0.5, 0.2])),
    "any | what others read in front of it would have to carry {} times the size of its values, and be rounded with "
    "it": Case(
        lambda g: (
            lambda y: g.op(
                "Add",
                g.op(
                    "Conv",
                    g.op(
                        "Sigmoid",
                        g.op(
                            "Conv",
                            batch_norm(g, y, some(3), 9 * some(3), np.zeros(3), np.ones(3)),
                            some(2, 3, 3),
                            pads=[1, 1],
                        ),
                    ),
                    some(3, 2, 1),
                ),
                y,
            )
        )(conv(g, images(g, "L")))
    ),
}

GUARDS = {
    "could not be checked on random inputs": "every operator that is followed here is given inputs that fit",
    "has rows of unknown number": "no map is known to vary along an axis of unknown size",
    "moves what varies along an axis whose size is not known": "the same",
    "it computes the statistics of each batch (training mode), so it is no fixed map: switch the model to evaluation "
    "mode before exporting it": "said in other words by what recognises norms (recognise/test_batch_statistics.py)",
    "it varies along another axis than the steps of {}": "the ties of integer weights keep such a factor away",
    "has a bias stored in integers": "the second try moves shifts into it",
    "reads it as its bias": "what reads integers as a bias is pinned already, so that no proof needs it",
    "reads it as its weight": "the same of a weight",
    "{} pads all channels with one number, which it sends to several": "of a second try, whose first reason is shown",
    "the rank of its input is not known": "recognition asks first",
    "the rank of its input is not known: give the model input shapes": "onnx's checker refuses it, runtimes do not",
    "what the operators around it can take up differs from it by more than {} of its size": "the numbers that are "
    "solved for fit: what becomes of others is tested in gauge/test_check.py",
}
"""Clauses that a user is not meant to see, and why."""

FOLDED = {
    "a shift of broken steps into a bias of whole ones": Case(
        lambda g: add(g, conv(g, images(g), quantized(g, 3, 3, 1), quantized_bias(g)), 3, 1), SINGLE, 19
    ),
    "a quantized bias beside float weights takes a scale": Case(
        lambda g: mul(g, conv(g, images(g), some(3, 3, 1), quantized_bias(g)), 3, 1), SINGLE, 19
    ),
    "the reciprocal of a divisor's scale": Case(
        lambda g: end(g, g.op("Div", images(g), mul(g, images(g, name="z"), 3, 1)))
    ),
    "slices over other axes too": Case(
        lambda g: mul(g, g.op("Slice", conv(g, images(g)), np.array([0, 1]), np.array([3, 4]), np.array([1, 2])), 3, 1)
    ),
    "a value that a sum reads twice, beside another reader": Case(
        lambda g: (lambda y: mul(g, g.op("Add", g.op("Add", y, y), g.op("Relu", y)), 3, 1))(conv(g, images(g)))
    ),
    "x + x": Case(lambda g: (lambda y: mul(g, g.op("Add", y, y), 3, 1))(conv(g, images(g)))),
    "a long chain behind": Case(lambda g: end(g, chain(g, mul(g, x(g, "N", 3, 3), 3, 1)))),
    "a long chain in front": Case(lambda g: mul(g, chain(g, conv(g, images(g, 3))), 3, 1)),
    "a product of a value with itself turned": Case(
        lambda g: (lambda v: g.op("MatMul", g.op("MatMul", v, turned(g, v)), some(5, 2)))(mul(g, x(g, "N", 5, 4)))
    ),
    "parts joined in another order": Case(
        lambda g: mul(g, g.op("Concat", *halves(g, conv(g, images(g)))[::-1], axis=1), 3, 1)
    ),
}
"""What the engine before this one left, and why it could: no way was searched twice."""

EINSUM = {
    "Einsum | multiplies, which leaves no place for a shift": Case(
        lambda g: g.op(
            "Einsum", g.op("Add", images(g), np.ones((3, 1))), g.input("z", ["N", 3, 4]), equation="nij,nkj->nik"
        )
    ),
    "Einsum | sums over the axis along which it varies, with a value computed at run time": Case(
        lambda g: g.op("Einsum", mul(g, images(g), 4), g.input("z", ["N", 3, 4]), equation="nij,nkj->nik")
    ),
    "Einsum | has an equation that is not followed: a diagonal, or a sum over an ellipsis": Case(
        lambda g: g.op("Einsum", mul(g, images(g), 3, 1), g.input("z", ["N", 3, 4]), equation="...ij,...kj->ik")
    ),
    "Einsum | has an equation that is not followed: a diagonal, or a sum over an ellipsis | 2": Case(
        lambda g: g.op("Einsum", mul(g, g.input("x", ["N", 3, 3]), 3, 1), equation="nii->ni")
    ),
    "Einsum | has an operand of unknown rank": Case(
        lambda g: ranked(g, g.op("Einsum", mul(g, images(g), 3, 1), unranked(g), equation="nij,nkj->nik"))
    ),
}


def switched_off(g, gamma, beta):
    """A residual block of a norm in front of a Relu, as pre-activation networks have it."""
    y = conv(g, images(g, "L"))
    normed = batch_norm(g, y, np.array(gamma), np.array(beta), np.zeros(3), np.ones(3))
    inner = g.op("Conv", g.op("Relu", normed), some(3, 3, 3), pads=[1, 1])
    return g.op("Conv", g.op("Add", y, inner), some(2, 3, 1))


CASES = EINSUM | ABSORBING | QUANTIZED | CROSSING | RECOGNISING | SEARCHING | FURTHER | RARE


def clause_of(name: str) -> str:
    """Return the clause of a case."""
    return name.split(" | ")[1]


def graph_of(case: Case, builder: type) -> onnx.ModelProto:
    if isinstance(case.build, str):
        return parser.parse_model(case.build)
    g = builder(dtype=case.dtype, opset=case.opset)
    made = case.build(g)
    for output in made if isinstance(made, tuple) else [made]:
        g.output(*(output if isinstance(output, tuple) else [output]))
    return g.proto()


def test_every_clause_has_a_case():
    shown = clauses() - set(GUARDS)
    assert set(GUARDS) <= clauses()
    assert not {clause for clause in shown if not any(pattern(clause).fullmatch(clause_of(name)) for name in CASES)}


@pytest.mark.parametrize("name", CASES)
def test_reason(name, graph):
    result = rewrite(ir.from_proto(graph_of(CASES[name], graph)))
    onnx.checker.check_model(ir.to_proto(result.model), full_check=False)
    operator, clause = name.split(" | ")[:2]
    named = "" if operator in ("any", "output") else f"{operator} '[^']*' "
    shape = re.compile(named + pattern(clause).pattern, re.DOTALL)
    reasons = [row.reason for row in result.ledger.kept]
    assert any(shape.search(reason) for reason in reasons), reasons


@pytest.mark.parametrize("name", FOLDED)
def test_what_folds_now(name, graph, fold):
    case, made = FOLDED[name], []

    class Kept(graph):
        def __init__(self, **options):
            super().__init__(**options)
            made.append(self)

    graph_of(case, Kept)
    rng = np.random.default_rng(0)
    assert "kept" not in fold(made[0]).agree(made[0].feeds(rng, N=2), 1e-10 if case.dtype == DOUBLE else 1e-5).actions


def test_an_input_without_a_shape_is_told_to_have_none():
    text = (
        '<ir_version: 10, opset_import: ["": 18]> g (float[] x) => (float[n,1,3] y) <float[1] s = {2}> '
        "{ z = Relu (x) y = BatchNormalization (z, s, s, s, s) }"
    )
    result = rewrite(ir.from_proto(parser.parse_model(text)))
    (row,) = result.ledger.kept
    assert row.reason == "the rank of its input is not known: give the model input shapes"
