from __future__ import annotations

from pathlib import Path

import pytest

from normdeploy.errors import GraphError
from normdeploy.verification.diagnosis.optimizers import applied_optimizers, guilty


def test_names_are_read_off_the_runtime_itself(small):
    applied = applied_optimizers(small.plain)
    assert "ConstantFolding" in applied.known
    assert set(applied.modified) <= set(applied.known)
    assert applied.modified
    off = applied_optimizers(small.plain, disabled=applied.modified)
    assert not set(off.modified) & set(applied.modified)


def test_a_file_that_cannot_be_loaded_is_an_error(tmp_path: Path):
    (tmp_path / "bad.onnx").write_bytes(b"no")
    with pytest.raises(GraphError, match="cannot load"):
        applied_optimizers(tmp_path / "bad.onnx")


def test_bisection_finds_one_and_the_smallest_pair():
    assert guilty(["a", "b", "c"], lambda off: "b" in off) == ("b",)
    assert set(guilty(["a", "b", "c", "d"], lambda off: {"b", "d"} <= set(off))) == {"b", "d"}
    assert guilty(["a", "b"], lambda _: False) == ()
    assert guilty([], lambda _: True) == ()
