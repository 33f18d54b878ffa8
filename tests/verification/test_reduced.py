"""Reduced precision: the conversion's loss is judged by its budget, the file by its own weights."""

from __future__ import annotations

from pathlib import Path

import graph_damage
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from normdeploy.errors import UsageError
from normdeploy.runtime.tuning.half_precision import write_float16
from normdeploy.verification import Setting, verify


def halved(source: Path, target: Path) -> Path:
    """Convert weights, inputs and outputs to float16, as converters do."""
    proto = onnx.load(str(source))
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(proto, str(target))
    return target


def rows(count: int = 16) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((count, 3, 8, 8)).astype(np.float32)


def test_a_float16_file_is_judged_by_its_own_weights_and_the_loss_by_the_budget(small, tmp_path: Path):
    path = halved(small.folded, tmp_path / "half.onnx")
    options = {"args": small.args, "data": {"x": rows()}, "traced": small.traced, "level": "quick"}
    verdict = verify(small.model, path, budget="rel=5e-2", **options)
    assert verdict.status == "pass", verdict.summary()
    assert verdict.environment["precision"] == "float16"
    loss = verdict.check("conversion").measured.loss
    assert 1e-5 < loss < 5e-2
    tight = verify(small.model, path, budget=f"rel={loss / 2}", **options)
    assert tight.status == "fail"
    assert tight.check("rounding").status == "pass"  # the runtime computes the rounded weights rightly
    assert tight.check("conversion").status == "fail"


def test_without_a_budget_a_float16_file_fails(small, tmp_path: Path):
    path = halved(small.folded, tmp_path / "half.onnx")
    assert verify(small.model, path, args=small.args, traced=small.traced, level="quick").status == "fail"


def test_a_failure_of_narrow_weights_names_them_and_the_budget(small, tmp_path: Path):
    """As ``export --dtype float16`` writes it, its inputs and outputs in float32."""
    path = tmp_path / "half.onnx"
    write_float16(small.folded, path)
    verdict = verify(small.model, path, args=small.args, traced=small.traced, level="quick")
    assert verdict.status == "fail"
    assert "--budget" in verdict.check("rounding").detail
    assert "float16" in verdict.check("rounding").detail
    wrong = onnx.load(small.folded)
    for tensor in wrong.graph.initializer:
        if tensor.name.endswith("bias"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(1), tensor.name))
    onnx.save(wrong, tmp_path / "wrong.onnx")
    verdict = verify(small.model, tmp_path / "wrong.onnx", args=small.args, traced=small.traced, level="quick")
    assert "--budget" not in verdict.check("rounding").detail


class Reader(CalibrationDataReader):
    def __init__(self) -> None:
        self.batches = iter([{"x": rows()[i : i + 4]} for i in range(0, 16, 4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.batches, None)


def test_an_int8_file_within_its_top1_budget(small, tmp_path: Path):
    path = tmp_path / "int8.onnx"
    # 7 bits: without VNNI the runtime's 8-bit kernels saturate, which the next test is about
    quantize_static(str(small.folded), str(path), Reader(), quant_format=QuantFormat.QDQ, reduce_range=True)
    options = {"args": small.args, "data": {"x": rows()}, "traced": small.traced, "level": "quick"}
    verdict = verify(small.model, path, budget="top1=50%", **options)
    assert verdict.status == "pass", verdict.summary()
    assert any("mutants" in text for text in verdict.not_checked)
    assert verify(small.model, path, budget="rel=1e-6", **options).check("conversion").status == "fail"


def test_an_optimizer_that_saturates_is_found_and_avoided(small, tmp_path: Path):
    """A wrong result of the runtime itself: s8 weights through the u8s8 kernels of a processor without VNNI."""
    path = tmp_path / "int8.onnx"
    quantize_static(str(small.folded), str(path), Reader(), quant_format=QuantFormat.QDQ)
    options = {"args": small.args, "data": {"x": rows()}, "traced": small.traced, "level": "quick", "budget": "rel=0.5"}
    verdict = verify(small.model, path, **options)
    if verdict.status == "pass":
        pytest.skip("this processor's 8-bit kernels do not saturate")
    assert verdict.check("logic").status == "pass"
    where = verdict.localization
    assert where is not None
    assert where.side == "runtime"
    assert where.optimizers, where
    assert f"disabled_optimizers={list(where.optimizers)}" in where.summary
    avoided = verify(small.model, path, settings=[Setting(disabled=tuple(where.optimizers))], **options)
    assert avoided.check("rounding").status == "pass", avoided.summary()


def test_damage_on_top_of_a_conversion_is_loss_beyond_the_budget(small, tmp_path: Path):
    proto = onnx.load(str(halved(small.folded, tmp_path / "half.onnx")))
    broken = next(graph_damage.damages(proto, kinds=("shift dropped",), first_only=True))
    path = tmp_path / "broken.onnx"
    onnx.save(broken.model, str(path))
    verdict = verify(small.model, path, args=small.args, traced=small.traced, level="quick", budget="rel=5e-2")
    assert verdict.check("conversion").status == "fail"


def test_a_budget_that_says_nothing_is_refused(small):
    with pytest.raises(UsageError, match=r"expected exact, top1=0.5% or rel=1e-2"):
        verify(small.model, small.plain, args=small.args, traced=small.traced, level="quick", budget="fast=1")
