"""Operators as old operator sets write them: operator, first and last version, inputs, nodes; results are o, o1, ..."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from old_operators import Case, definitions
from onnx import parser

X = "float[2,4,5,6] x"
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
SCALES = "s = Constant <value = float[4] {1.0, 1.0, %s}> ()\n"

SUM = "body = one (float[3] h, float[3] t) => (float[3] g, float[3] u) { g = Add(h, t)\n u = Mul(g, t) }"

Form = tuple[str, int, int, str, str]

FORMS: list[Form] = [
    # axes, shapes and bounds as attributes
    *[
        (f"Reduce{kind}", 7, 12 if kind == "Sum" else 17, "float[2,4,5,6] p", f"o = Reduce{kind} <{attributes}> (p)")
        for kind in REDUCTIONS
        for attributes in ("axes = [1, 3], keepdims = 0", "axes = [2]", "keepdims = 0")
    ],
    *[
        (f"Reduce{kind}", 11, 12 if kind == "Sum" else 17, "float[2,4,5,6] p", f"o = Reduce{kind} <axes = [-1, 1]> (p)")
        for kind in REDUCTIONS
    ],
    *[
        (name, 7, 12, X, f"o = {name} <axis = {axis}> (x)")
        for name in ("Hardmax", "Softmax", "LogSoftmax")
        for axis in range(4)
    ],
    *[(name, 7, 12, X, f"o = {name} (x)") for name in ("Hardmax", "Softmax", "LogSoftmax")],
    *[
        (name, 11, 12, X, f"o = {name} <axis = {axis}> (x)")
        for name in ("Hardmax", "Softmax", "LogSoftmax")
        for axis in (-1, -3)
    ],
    *[(name, 13, 17, X, f"o = {name} <axis = 2> (x)") for name in ("Hardmax", "Softmax", "LogSoftmax")],
    *[(name, 7, 12, "float[6] x", f"o = {name} <axis = 0> (x)") for name in ("Hardmax", "Softmax", "LogSoftmax")],
    ("Hardmax", 7, 12, "int32[2,3,4] ties", "f = Cast <to = 1> (ties)\n o = Hardmax <axis = 1> (f)"),
    ("Hardmax", 7, 12, "float[n,3,m] x", "o = Hardmax <axis = 1> (x)"),
    ("Squeeze", 7, 12, "float[2,1,5,1] x", "o = Squeeze <axes = [1, 3]> (x)"),
    ("Squeeze", 7, 12, "float[2,1,5,1] x", "o = Squeeze (x)"),
    ("Squeeze", 11, 12, "float[2,1,5,1] x", "o = Squeeze <axes = [-1]> (x)"),
    ("Unsqueeze", 7, 12, "float[2,5] x", "o = Unsqueeze <axes = [0, 3]> (x)"),
    ("Unsqueeze", 11, 12, "float[2,5] x", "o = Unsqueeze <axes = [-1]> (x)"),
    ("Split", 7, 12, X, "o, o1 = Split <axis = 1, split = [1, 3]> (x)"),
    ("Split", 7, 17, X, "o, o1 = Split <axis = 1> (x)"),
    ("Split", 11, 12, X, "o, o1, o2 = Split <axis = -1, split = [1, 2, 3]> (x)"),
    ("Split", 13, 17, X, "c = Constant <value_ints = [1, 3]> ()\n o, o1 = Split <axis = 1> (x, c)"),
    ("Slice", 7, 9, X, "o = Slice <axes = [1, 3], starts = [1, -4], ends = [3, -1]> (x)"),
    ("Slice", 7, 9, X, "o = Slice <starts = [0, 1], ends = [1, 100]> (x)"),
    ("Clip", 7, 10, X, "o = Clip <min = -0.5, max = 0.5> (x)"),
    ("Clip", 7, 10, X, "o = Clip <max = 0.25> (x)"),
    ("Clip", 7, 10, X, "o = Clip (x)"),
    ("Pad", 7, 10, X, 'o = Pad <mode = "reflect", pads = [0, 0, 1, 2, 0, 0, 0, 1]> (x)'),
    ("Pad", 7, 10, X, 'o = Pad <mode = "edge", pads = [0, 0, 1, 2, 0, 1, 0, 1]> (x)'),
    ("Pad", 7, 10, X, "o = Pad <pads = [0, 0, 1, -2, 0, 0, 0, 1], value = 2.5> (x)"),
    ("TopK", 7, 9, X, "o, o1 = TopK <axis = 2, k = 3> (x)"),
    ("TopK", 7, 9, X, "o, o1 = TopK <k = 3> (x)"),
    ("TopK", 10, 10, X, "k = Constant <value = int64[1] {2}> ()\n o, o1 = TopK <axis = 1> (x, k)"),
    ("Dropout", 7, 11, X, "o = Dropout <ratio = 0.3> (x)"),
    ("Dropout", 7, 11, X, "o, o1 = Dropout <ratio = 0.3> (x)"),
    ("Dropout", 7, 11, X, "v, o = Dropout (x)"),
    ("Dropout", 12, 12, X, "r = Constant <value = float {0.3}> ()\n o, o1 = Dropout (x, r)"),
    ("Upsample", 7, 8, X, 'o = Upsample <mode = "nearest", scales = [1.0, 1.0, 2.0, 3.0]> (x)'),
    ("Upsample", 7, 8, X, 'o = Upsample <mode = "linear", scales = [1.0, 1.0, 2.0, 3.0]> (x)'),
    ("Upsample", 9, 9, X, SCALES % "2.0, 2.0" + 'o = Upsample <mode = "linear"> (x, s)'),
    ("Upsample", 9, 9, X, SCALES % "1.7, 2.0" + "o = Upsample (x, s)"),
    ("Resize", 10, 10, X, SCALES % "1.7, 1.7" + 'o = Resize <mode = "linear"> (x, s)'),
    ("Resize", 10, 10, X, SCALES % "1.7, 1.7" + "o = Resize (x, s)"),
    ("Resize", 10, 10, X, SCALES % "0.6, 0.6" + "o = Resize (x, s)"),
    ("Resize", 10, 10, X, SCALES % "0.6, 0.6" + 'o = Resize <mode = "linear"> (x, s)'),
    *[
        (
            "Resize",
            11,
            17,
            X,
            f"r = Constant <value = float[0] {{}}> ()\n {SCALES % '1.5, 0.75'}"
            f'o = Resize <mode = "{mode}", coordinate_transformation_mode = "{coordinates}"> (x, r, s)',
        )
        for mode in ("nearest", "linear", "cubic")
        for coordinates in ("half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners")
    ],
    (
        "Resize",
        11,
        17,
        X,
        "r = Constant <value = float[0] {}> ()\n s = Constant <value = float[0] {}> ()\n"
        "z = Constant <value = int64[4] {2, 4, 9, 4}> ()\n o = Resize (x, r, s, z)",
    ),
    (
        "Resize",
        11,
        12,
        X,
        "r = Constant <value = float[8] {0.0, 0.0, 0.1, 0.2, 1.0, 1.0, 0.9, 0.8}> ()\n"
        "s = Constant <value = float[0] {}> ()\n z = Constant <value = int64[4] {2, 4, 3, 4}> ()\n"
        'o = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"> (x, r, s, z)',
    ),
    ("DepthToSpace", 7, 10, X, "o = DepthToSpace <blocksize = 2> (x)"),
    ("DepthToSpace", 11, 12, X, 'o = DepthToSpace <blocksize = 2, mode = "CRD"> (x)'),
    (
        "RoiAlign",
        10,
        15,
        f"{X}, float[3,4] boxes, int64[3] rows",
        "o = RoiAlign <output_height = 3, output_width = 2, sampling_ratio = 2, spatial_scale = 0.5> (x, boxes, rows)",
    ),
    (
        "MaxRoiPool",
        7,
        22,
        f"{X}, float[3,5] roi",
        "o = MaxRoiPool <pooled_shape = [2, 2], spatial_scale = 1.0> (x, roi)",
    ),
    ("GlobalLpPool", 7, 22, X, "o = GlobalLpPool <p = 3> (x)"),
    ("LpPool", 7, 17, X, "o = LpPool <kernel_shape = [2, 3], strides = [1, 2], pads = [1, 0, 0, 1], p = 1> (x)"),
    (
        "GroupNormalization",
        18,
        20,
        f"{X}, float[2] p, float[2] c",
        "o = GroupNormalization <num_groups = 2, epsilon = 0.01> (x, p, c)",
    ),
    (
        "GroupNormalization",
        18,
        20,
        "float[n,4,h,w] x, float[2] p, float[2] c",
        "o = GroupNormalization <num_groups = 2> (x, p, c)",
    ),
    (
        "BatchNormalization",
        7,
        8,
        f"{X}, float[4] p, float[4] c, float[4] m, float[4] v",
        "a = Abs(v)\n o = BatchNormalization <epsilon = 0.1, momentum = 0.5> (x, p, c, m, a)",
    ),
    (
        "BatchNormalization",
        7,
        8,
        "float[2,3] x, float[3] p, float[3] c, float[3] m, float[3] v",
        "a = Abs(v)\n o = BatchNormalization <spatial = 0> (x, p, c, m, a)",
    ),
    (
        "BatchNormalization",
        9,
        14,
        f"{X}, float[4] p, float[4] c, float[4] m, float[4] v",
        "a = Abs(v)\n o = BatchNormalization <epsilon = 0.1> (x, p, c, m, a)",
    ),
    *[
        ("Cast", first, last, X, f"h = Cast <to = {kind}> (x)\n o = Cast <to = 1> (h)")
        for first, last in ((7, 22),)
        for kind in (6, 7, 9, 10, 11)
    ],
    ("Cast", 9, 22, "int64[4] i", "h = Cast <to = 8> (i)\n o = Cast <to = 7> (h)"),
    *[
        ("Cast", 19, 22, X, f"h = Cast <to = {kind}, saturate = {saturate}> (x)\n o = Cast <to = 1> (h)")
        for kind in (17, 19)
        for saturate in (0, 1)
    ],
    ("CastLike", 15, 22, f"{X}, int32[1] i", "o = CastLike(x, i)"),
    ("CastLike", 15, 22, f"{X}, double[1] d", "o = CastLike(x, d)"),
    (
        "AveragePool",
        7,
        22,
        X,
        "o = AveragePool <kernel_shape = [3, 2], strides = [2, 1], pads = [1, 1, 1, 0], count_include_pad = 1> (x)",
    ),
    ("AveragePool", 10, 22, X, "o = AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (x)"),
    (
        "AveragePool",
        10,
        22,
        X,
        "o = AveragePool <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 1, 1], ceil_mode = 1, "
        "count_include_pad = 1> (x)",
    ),
    ("AveragePool", 7, 22, X, 'o = AveragePool <kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_LOWER"> (x)'),
    ("AveragePool", 19, 22, X, "o = AveragePool <kernel_shape = [2, 2], dilations = [2, 1]> (x)"),
    ("MaxPool", 7, 7, X, "o = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 0, 0]> (x)"),
    ("MaxPool", 8, 11, X, "o, o1 = MaxPool <kernel_shape = [2, 2], storage_order = 1> (x)"),
    (
        "MaxPool",
        10,
        11,
        X,
        "o = MaxPool <kernel_shape = [2, 2], strides = [2, 2], dilations = [2, 2], ceil_mode = 1> (x)",
    ),
    *[
        (
            "GridSample",
            first,
            last,
            "float[2,3,5,6] x, float[2,4,4,2] grid",
            f'o = GridSample <mode = "{mode}", padding_mode = "{padding}", align_corners = {corners}> (x, grid)',
        )
        for first, last, modes in (
            (16, 19, ("bilinear", "nearest", "bicubic")),
            (20, 22, ("linear", "nearest", "cubic")),
        )
        for mode in modes
        for padding, corners in (("zeros", 0), ("border", 1), ("reflection", 0))
    ],
    ("GridSample", 16, 22, "float[2,3,5,6] x, float[2,4,4,2] grid", "o = GridSample(x, grid)"),
    ("QuantizeLinear", 10, 22, "float[2,3,4] x, float step, uint8 zero", "o = QuantizeLinear(x, step, zero)"),
    ("QuantizeLinear", 13, 22, "float[2,3,4] x, float[3] steps, int8[3] zeros", "o = QuantizeLinear(x, steps, zeros)"),
    (
        "QuantizeLinear",
        13,
        22,
        "float[2,3,4] x, float[4] steps, int8[4] zeros",
        "o = QuantizeLinear <axis = -1> (x, steps, zeros)",
    ),
    ("QuantizeLinear", 10, 22, "float[2,3,4] x, float step", "o = QuantizeLinear(x, step)"),
    ("DequantizeLinear", 10, 22, "uint8[2,3,4] q, float step, uint8 zero", "o = DequantizeLinear(q, step, zero)"),
    ("DequantizeLinear", 10, 22, "int32[2,3,4] q, float step", "o = DequantizeLinear(q, step)"),
    (
        "DequantizeLinear",
        13,
        22,
        "int8[2,3,4] q, float[4] steps, int8[4] zeros",
        "o = DequantizeLinear <axis = 2> (q, steps, zeros)",
    ),
    ("DequantizeLinear", 13, 22, "int8[2,3,4] q, float[3] steps", "o = DequantizeLinear(q, steps)"),
    (
        "DequantizeLinear",
        21,
        22,
        "int8[2,4] q, float[2,2] steps",
        "o = DequantizeLinear <axis = 1, block_size = 2> (q, steps)",
    ),
    (
        "QuantizeLinear",
        21,
        22,
        "float[2,4] x, float[2,2] steps",
        "o = QuantizeLinear <axis = 1, block_size = 2, output_dtype = 3> (x, steps)",
    ),
    ("DFT", 17, 19, "float[2,6,5,1] x", "o = DFT <axis = 2, onesided = 1> (x)"),
    ("DFT", 17, 19, "float[2,6,5,2] x", "n = Constant <value = int64 {4}> ()\n o = DFT <axis = 1, inverse = 1> (x, n)"),
    ("DFT", 17, 19, "float[2,6,5,1] x", "o = DFT (x)"),
    ("Scatter", 9, 10, "float[3,4] x, int64[2,4] i, float[2,4] u", "o = Scatter <axis = 0> (x, i, u)"),
    ("Scatter", 9, 10, "float[3,4] x, int64[3,2] i, float[3,2] u", "o = Scatter <axis = 1> (x, i, u)"),
    ("ArgMax", 7, 12, X, "o = ArgMax <axis = 2, keepdims = 0> (x)"),
    ("ArgMin", 7, 12, X, "o = ArgMin (x)"),
    ("ArgMax", 7, 12, "int32[2,3,4] ties", "o = ArgMax <axis = 2> (ties)"),
    ("ArgMin", 12, 12, "int32[2,3,4] ties", "o = ArgMin <axis = 1, select_last_index = 1> (ties)"),
    (
        "Gemm",
        7,
        12,
        "float[3,4] x, float[3,2] w, float[2] c",
        "o = Gemm <transA = 1, alpha = 0.5, beta = 2.0> (x, w, c)",
    ),
    ("Reshape", 7, 18, X, "t = Constant <value = int64[3] {0, -1, 6}> ()\n o = Reshape(x, t)"),
    (
        "Reshape",
        14,
        18,
        "float[2,0,3] x",
        "t = Constant <value = int64[2] {0, 6}> ()\n o = Reshape <allowzero = 1> (x, t)",
    ),
    ("Shape", 7, 22, X, "o = Shape(x)"),
    ("Shape", 15, 22, X, "o = Shape <start = 1, end = -1> (x)"),
    ("Flatten", 7, 22, X, "o = Flatten <axis = 2> (x)"),
    ("Concat", 7, 12, X, "o = Concat <axis = 1> (x, x)"),
    ("Gather", 7, 12, f"{X}, int64[3] i", "o = Gather <axis = 2> (x, i)"),
    ("GatherND", 11, 12, "float[3,4,2] x, int64[2,2] i", "o = GatherND(x, i)"),
    ("ScatterElements", 11, 17, "float[3,4] x, int64[2,4] i, float[2,4] u", "o = ScatterElements <axis = 0> (x, i, u)"),
    ("ScatterND", 11, 17, "float[3,4] x, int64[2,1] places, float[2,4] u", "o = ScatterND(x, places, u)"),
    ("Max", 7, 12, f"{X}, float[6] c", "o = Max(x, c)"),
    ("Min", 7, 12, f"{X}, float[6] c", "o = Min(x, c)"),
    ("Mean", 7, 12, f"{X}, float[2,4,5,6] c", "o = Mean(x, c, c)"),
    ("Sum", 7, 12, f"{X}, float[2,4,5,6] c", "o = Sum(x, c, c)"),
    ("PRelu", 7, 15, f"{X}, float[4,1,1] p", "o = PRelu(x, p)"),
    ("Pow", 7, 14, "float[2,3] p, float[3] c", "o = Pow(p, c)"),
    ("Mod", 10, 12, "int32[5] j, int32[5] k", "o = Mod(j, k)"),
    ("Mod", 10, 12, "float[5] x, float[5] p", "o = Mod <fmod = 1> (x, p)"),
    (
        "OneHot",
        9,
        10,
        "int64[4] i",
        "d = Constant <value = int64 {3}> ()\n v = Constant <value = float[2] {0.5, 2.0}> ()\n"
        "o = OneHot <axis = 0> (i, d, v)",
    ),
    (
        "NonMaxSuppression",
        10,
        10,
        "float[1,6,4] boxes, float[1,1,6] scores",
        "k = Constant <value = int64[1] {3}> ()\n o = NonMaxSuppression(boxes, scores, k)",
    ),
    ("LRN", 7, 12, X, "o = LRN <size = 3, alpha = 0.1, beta = 0.5, bias = 2.0> (x)"),
    ("MeanVarianceNormalization", 9, 12, X, "o = MeanVarianceNormalization <axes = [0, 2]> (x)"),
    *[
        (
            name,
            7,
            13,
            f"float[3,2,4] x, float[2,{gates * 5},4] w, float[2,{gates * 5},5] r, float[2,{2 * gates * 5}] c",
            f'o, o1 = {name} <hidden_size = 5, direction = "bidirectional"{extra}> (x, w, r, c)',
        )
        for name, gates, extra in (
            ("RNN", 1, ""),
            ("GRU", 3, ", linear_before_reset = 1"),
            ("GRU", 3, ""),
            ("LSTM", 4, ", clip = 0.5"),
        )
    ],
    # bodies; the Scan of opset 8 has a batch, a length per row and directions
    ("Scan", 8, 8, "float[2,3] h0, float[2,4,3] x", f"o, o1 = Scan <{SUM}, num_scan_inputs = 1> (, h0, x)"),
    (
        "Scan",
        8,
        8,
        "int64[2] lengths, float[2,3] h0, float[2,4,3] x",
        f"o, o1 = Scan <{SUM}, num_scan_inputs = 1, directions = [1]> (lengths, h0, x)",
    ),
    (
        "Scan",
        9,
        10,
        "float[3] h0, float[3,4] x",
        f"o, o1 = Scan <{SUM}, num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], "
        "scan_output_axes = [1], scan_output_directions = [1]> (h0, x)",
    ),
    (
        "Loop",
        7,
        10,
        "float[3,2] x",
        "n = Constant <value = int64 {3}> ()\n go = Constant <value = bool {1}> ()\n"
        "o, o1 = Loop <body = one (int64 i, bool c, float[3,2] h) => (bool d, float[3,2] g, float[3,2] u) "
        "{ d = Identity(c)\n g = Add(h, x)\n u = Hardmax <axis = 0> (g) }> (n, go, x)",
    ),
    (
        "If",
        7,
        10,
        X,
        "t = Constant <value = bool {1}> ()\n"
        "o = If <then_branch = a () => (float p) { p = Hardmax <axis = 1> (x) }, "
        "else_branch = b () => (float p) { p = Identity(x) }> (t)",
    ),
    ("LpPool", 18, 21, X, "o = LpPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (x)"),
    (  # where no limit of scores is given, one below 0 is a score as well
        "NonMaxSuppression",
        10,
        10,
        "float[1,6,4] boxes, float[1,1,6] p",
        "k = Constant <value = int64[1] {3}> ()\n s = Neg(p)\n o = NonMaxSuppression(boxes, s, k)",
    ),
]

_RANGES: dict[str, tuple[int, int]] = {
    "i": (0, 2),
    "rows": (0, 2),
    "q": (0, 100),
    "ties": (0, 2),
    "zero": (1, 5),
    "zeros": (1, 5),
    "j": (-9, 9),
    "k": (1, 4),
    "places": (0, 3),
    "lengths": (2, 4),
}


def _draw(name: str, value: onnx.ValueInfoProto, rng: np.random.Generator) -> Any:
    kind = value.type.tensor_type
    named = {"n": 3, "m": 5, "h": 4, "w": 6}
    shape = [dim.dim_value if dim.HasField("dim_value") else named[dim.dim_param] for dim in kind.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if dtype.kind == "f":
        array = rng.standard_normal(shape)
        if name in ("p", "step", "steps", "boxes", "roi"):
            array = np.abs(array) + 0.1
        if name == "boxes":
            array[..., 2:] += array[..., :2]
        if name == "roi":
            array = np.concatenate([np.floor(array[:, :1]) % 2, np.sort(array[:, 1:], axis=1) * 2], axis=1)
        return np.asarray(array).astype(dtype)
    low, high = _RANGES[name]
    return np.asarray(rng.integers(low, high, shape)).astype(dtype)


def written(op_type: str) -> Iterator[Case]:
    """Return the cases of an operator at each old definition."""
    for index, (name, first, last, inputs, body) in enumerate(FORMS):
        if name != op_type:
            continue
        for version in definitions(op_type):
            if not first <= version <= last:
                continue
            outputs = [item for item in ("o", "o1", "o2", "o3") if re.search(rf"\b{item}\b[^()]*=", body)]
            text = f'<ir_version: {4 if version < 10 else 8}, opset_import: ["" : {version}]>\n'
            text += f"agraph ({inputs}) => ({', '.join('float ' + item for item in outputs)}) {{ {body} }}"
            model = parser.parse_model(text)
            for value in model.graph.output:
                value.ClearField("type")
            model = onnx.shape_inference.infer_shapes(model)
            rng = np.random.default_rng(index)
            feeds = {value.name: _draw(value.name, value, rng) for value in model.graph.input}
            yield Case(f"{name} {index} as of {version}", model, feeds)
