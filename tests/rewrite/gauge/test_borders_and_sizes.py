"""Maps beside Pads that add channels or cut off, beside sizes that weights alone tell, and infinite masks."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from reference_operators import evaluate

import normdeploy as nd
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

PADS = {
    "cut off alone": ([0, 0, -1, 0, 0, -1], 3, True),
    "channels behind": ([0, 0, 0, 0, 2, 0], 5, False),
    "channels on both sides, and cut off": ([0, 2, -1, 0, 1, 0], 6, False),
    "channels and places": ([0, 1, 1, 0, 0, 1], 4, False),
    "fewer channels": ([0, -1, 0, 0, 0, 0], 2, True),
}
"""Widths; channels behind; whether a shift passes too."""


@pytest.mark.parametrize("kind", PADS)
def test_a_scale_passes_zeros_of_channels_of_their_own(graph, fold, kind):
    widths, channels, shifted = PADS[kind]
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Pad", g.op("Conv", g.input("x", ["N", 3, 6]), rng.normal(size=(3, 3, 1))), np.array(widths))
    y = g.op("Mul", y, rng.uniform(0.5, 2, (channels, 1)))
    g.output(g.op("Add", y, rng.normal(size=(channels, 1))) if shifted else y)
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops == {"Conv": 1, "Pad": 1}


@pytest.mark.parametrize("number", [0.0, 0.5])
def test_a_shift_of_added_channels_goes_to_what_is_added_to_them(graph, fold, number):
    rng = np.random.default_rng(1)
    g = graph()
    x = g.input("x", ["N", 3, 6])
    short = g.op("Conv", x, rng.normal(size=(3, 3, 1)))
    branch = g.op("Conv", g.op("Sigmoid", x), rng.normal(size=(5, 3, 1)))
    y = g.op("Add", g.op("Pad", short, np.array([0, 0, 0, 0, 2, 0]), np.array(number)), branch)
    g.output(g.op("Sigmoid", g.batch_norm(y, 5, rng)))
    found = fold(g).agree(g.feeds(rng, N=2))
    if number:
        found.kept("pads along the axis where it varies")
    else:
        assert found.folded().ops == {"Conv": 2, "Sigmoid": 2, "Pad": 1, "Add": 1}


@pytest.mark.parametrize(
    "norm", ["LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization"]
)
def test_a_norm_of_unknown_sizes_has_those_of_its_scale(graph, fold, norm):
    rng = np.random.default_rng(2)
    g = graph(dtype=np.float32, opset=23)
    gain = rng.uniform(0.5, 2, 4)
    others = [rng.normal(size=4)] if norm != "RMSNormalization" else []
    groups = {"num_groups": 2} if norm == "GroupNormalization" else {}
    y = g.op("Mul", g.input("x", ["N", "C", "L"]), np.array(1.5))
    y = g.op(norm, y, gain, *others, **groups)
    g.output(g.op("Identity", g.known(y, "N", "C", "L")))
    last = norm in ("LayerNormalization", "RMSNormalization")
    found = fold(g)
    assert "kept" not in found.actions, found.reasons
    assert found.ops["Mul"] == 0
    sizes = {"C": 3, "L": 4} if last else {"C": 4, "L": 3}
    found.agree(g.feeds(rng, N=2, **sizes), 1e-5)


@pytest.mark.parametrize("endless", [-np.inf, np.inf, -1e9])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_scale_passes_a_mask_of_other_unknown_sizes(graph, fold, endless, channels):
    """What is masked stays infinite; the names of the mask's sizes are not those of the scores."""
    rng = np.random.default_rng(3)
    g = graph()
    scores = g.op("Conv", g.input("x", ["N", 3, "L"]), rng.normal(size=(3, 3, 1)))
    mask = g.input("m", ["N", 1, "M"], np.bool_)
    y = g.op("Where", mask, scores, np.array(endless))
    g.output(g.op("Mul", y, rng.uniform(0.5, 2, (channels, 1) if channels > 1 else ())))
    feeds = g.feeds(rng, N=2, L=5, M=5) | {"m": rng.random((2, 1, 5)) < 0.5}
    found = fold(g).folded()
    assert found.ops == {"Conv": 1, "Where": 1}
    want, got = (evaluate(proto, feeds)[0] for proto in (found.before, found.after))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_broken_weights_are_named(graph, fold, broken):
    g = graph(dtype=np.float32)
    weight = np.ones((3, 3, 1))
    weight[1, 1] = broken
    g.output(g.op("Mul", g.op("Conv", g.input("x", ["N", 3, 4]), weight, name="conv"), np.array(2.0)))
    fold(g).kept("the weights of Conv 'conv' hold NaN or infinity")


EQUATIONS = {
    "ngcl,goc->ngol": {"MatMul": 1},
    "bhcl,oc->bhol": {"MatMul": 1},
    "bchw,oc->bohw": {"Conv": 1},
    "ngc,goc->ngo": {"Einsum": 1},  # it would need two
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_an_einsum_with_rows_behind_its_sum_needs_no_transpose(equation):
    data, weight = equation.split("->")[0].split(",")
    result = equation.split("->")[1]
    sizes = dict(zip("ngcolbhw", (2, 3, 4, 5, 6, 2, 3, 4), strict=True))
    dims = ",".join(str(sizes[letter]) for letter in data)
    single = "Conv" in EQUATIONS[equation]  # onnxruntime's CPU has no convolution of float64
    dtype = "float" if single else "double"
    text = (
        f'<ir_version: 8, opset_import: ["": 18]> g ({dtype}[{dims}] x) => ({dtype}[{",".join(result)}] y) '
        f'{{ y = Einsum <equation = "{equation}"> (x, w) }}'
    )
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(4)
    x, w = (rng.normal(size=[sizes[letter] for letter in letters]) for letters in (data, weight))
    x, w = (array.astype(np.float32) if single else array for array in (x, w))
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    found = rewrite(ir.from_proto(model)).model
    operators = [node.op_type for node in found.graph]
    assert {name: operators.count(name) for name in operators} == EQUATIONS[equation]
    got = Evaluator(found).run({"x": x})["y"].numpy()  # in float64, whatever the type
    np.testing.assert_allclose(got, np.einsum(equation, x.astype(np.float64), w), rtol=1e-12, atol=1e-12)


class Pyramid(torch.nn.Module):
    """Pre-activation blocks that grow by channels of zeros on the shortcut."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(count) for count in (4, 6, 9))
        self.convs = torch.nn.ModuleList([torch.nn.Conv2d(4, 6, 3, padding=1), torch.nn.Conv2d(6, 9, 3, padding=1)])
        self.head = torch.nn.Linear(9, 2)

    def forward(self, x):
        x = self.stem(x)
        for place, (norm, conv) in enumerate(zip(self.norms, self.convs, strict=False)):
            short = torch.nn.functional.avg_pool2d(x, 2) if place else x
            branch = conv(torch.relu(norm(x)))
            branch = torch.nn.functional.max_pool2d(branch, 2) if place else branch
            x = torch.nn.functional.pad(short, (0, 0, 0, 0, 0, branch.shape[1] - short.shape[1])) + branch
        return self.head(torch.relu(self.norms[-1](x)).mean((2, 3)))


def test_a_pyramid_of_channels_folds_and_is_proven(tmp_path):
    torch.manual_seed(0)
    net = Pyramid().eval()
    for norm in net.norms:
        norm.weight.data.uniform_(0.5, 1.5)
        norm.bias.data.uniform_(-0.5, 0.5)
        norm.running_mean.uniform_(-0.5, 0.5)
        norm.running_var.uniform_(0.5, 2)
    found = nd.export(net, torch.randn(2, 3, 8, 8), tmp_path / "net.onnx")
    assert found.verdict.passed
    assert found.ledger.counts()["folded"] == 3
