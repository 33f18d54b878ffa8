"""Norms whose result is multiplied by 0: the rewritten graph holds 0 there, not the tiny number 0 counts as."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from normdeploy.verification import verify

NORMS = {
    "LayerNormalization": "n = LayerNormalization(x, s, b)",
    "LayerNormalization without a shift": "n = LayerNormalization(x, s)",
    "InstanceNormalization": "n = InstanceNormalization(x, t, t)",
    "spelled out": "m = ReduceMean(x, last) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, last) e = Add(v, eps) "
    "r = Sqrt(e) f = Div(d, r) g = Mul(f, s) n = Add(g, b)",
}
BEHIND = {
    "out": "y = Mul(n, z)",
    "product": "p = Mul(n, z) y = MatMul(p, w)",
    "residual": "p = Mul(n, z) y = Add(p, x)",
}
FACTORS = {"one 0": np.float32(0), "zeros": np.zeros(8, np.float32), "negative 0": np.float32(-0.0)}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_times_nought_is_itself(
    graph_of: Callable[[str], ir.Model], tmp_path: Path, norm: str, behind: str, factor: str
):
    model = graph_of(f"g (float[2,4,8] x) => (float[2,4,8] y) {{ {NORMS[norm]} {BEHIND[behind]} }}")
    rng = np.random.default_rng(0)
    values = {
        "s": rng.uniform(0.5, 1.5, 8), "b": rng.normal(size=8), "t": rng.normal(size=4), "eps": np.array(1e-5),
        "z": FACTORS[factor], "w": rng.normal(size=(8, 8)), "last": np.array([-1]),
    }  # fmt: skip
    used = {str(value.name): value for node in model.graph for value in node.inputs if value is not None}
    for name in values.keys() & used.keys():
        array = values[name] if name == "last" else np.asarray(values[name], np.float32)
        new = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        used[name].replace_all_uses_with(new)
        model.graph.register_initializer(new)
    ir.save(model, tmp_path / "g.onnx")
    verdict = verify(tmp_path / "g.onnx", tmp_path / "g.onnx", level="quick")
    assert verdict.status == "not-exercised", verdict.summary()  # what 0 hides, nothing can show
    for name in ("derivation", "logic", "rounding"):
        assert verdict.check(name).status == "pass", verdict.summary()
