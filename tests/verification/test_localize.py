from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import graph_damage
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime_outputs import run_onnxruntime

from normdeploy.errors import StorageError, UsageError
from normdeploy.graph import load_graph
from normdeploy.verification.diagnosis.bundle import write_bundle
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.sides.subgraph import subgraph


def rerun(bundle: Path, elsewhere: Path) -> subprocess.CompletedProcess[str]:
    """Run a bundle where it was moved to, from another directory still, without this package."""
    moved = elsewhere / "moved"
    shutil.copytree(bundle, moved)
    return subprocess.run(
        [sys.executable, "-I", str(moved / "run.py")], cwd="/", capture_output=True, text=True, check=False
    )


def test_a_wrong_epsilon_is_found_by_module_path_and_named(small, damaged: Callable[..., Path], tmp_path: Path):
    def change(proto: onnx.ModelProto) -> None:
        node = next(n for n in proto.graph.node if n.op_type == "LayerNormalization")
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-6

    path = damaged(small.plain, change)
    verdict = small.verdict(path, bundle=tmp_path / "bundle")
    where = verdict.localization
    assert where is not None
    assert where.side == "export"
    assert where.where == "rows"
    assert "epsilon 1e-06; the module says 1e-05" in where.summary


@pytest.mark.parametrize(
    ("kind", "where"),
    [("neighbour's statistics", "norm"), ("bias dropped", "first"), ("one weight off by 1e-3", "first")],
)
def test_the_first_bad_site_is_the_users_module(small, tmp_path: Path, kind: str, where: str):
    proto = onnx.load(str(small.plain))
    broken = next(graph_damage.damages(proto, kinds=(kind,), first_only=True))
    path = tmp_path / "broken.onnx"
    onnx.save(broken.model, str(path))
    verdict = small.verdict(path)
    assert verdict.localization is not None
    assert verdict.localization.where == where
    assert verdict.localization.side == "export"


def test_the_bundle_of_a_wrong_file_reruns_with_one_command_elsewhere(small, tmp_path: Path):
    proto = onnx.load(str(small.plain))
    broken = next(graph_damage.damages(proto, kinds=("activation leaks",), first_only=True))
    path = tmp_path / "broken.onnx"
    onnx.save(broken.model, str(path))
    bundle = tmp_path / "bundle"
    verdict = small.verdict(path, bundle=bundle)
    assert verdict.localization is not None
    assert [n.op_type for n in onnx.load(str(bundle / "model.onnx")).graph.node] == ["LeakyRelu"]
    assert (bundle / "test_data_set_0" / "input_0.pb").is_file()
    done = rerun(bundle, tmp_path)
    assert done.returncode == 1, done.stderr
    assert "error" in done.stdout


def test_a_precision_drop_is_the_runtimes_fault_and_named(small, tmp_path: Path):
    """Every linear operator and norm passes its result through bfloat16, as an accelerated provider does."""
    proto = onnx.load(str(small.folded))
    for name in [n.output[0] for n in proto.graph.node]:
        node = next(n for n in proto.graph.node if n.output[0] == name)
        graph_damage.KINDS["result in bfloat16"](proto, node)
    path = tmp_path / "low.onnx"
    onnx.save(proto, str(path))
    bundle = tmp_path / "bundle"
    verdict = small.verdict(path, bundle=bundle)
    assert verdict.status == "fail"
    assert verdict.check("logic").status == "pass"  # the graph says float32
    text = verdict.check("rounding").detail
    assert "bits of mantissa (bfloat16 has 8)" in text
    assert verdict.localization is not None
    assert verdict.localization.side == "runtime"
    assert "Cast" in verdict.localization.op
    done = rerun(bundle, tmp_path)
    assert done.returncode == 1, done.stderr


def test_a_bundle_that_holds_exits_with_zero_and_keeps_its_settings(small, tmp_path: Path):
    model = load_graph(small.folded)
    node = next(n for n in model.graph if n.op_type == "LayerNormalization")
    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)

    name = str(node.outputs[0].name)
    part = subgraph(model, [node], [name], {str(node.inputs[0].name): x, name: x})
    bundle = tmp_path / "bundle"
    feeds = {str(node.inputs[0].name): x}
    write_bundle(bundle, part, feeds, {name: x}, {name: 1e-6}, Setting(disabled=("ConstantFolding",)))
    got = run_onnxruntime(bundle / "model.onnx", feeds)[0]
    assert rerun(bundle, tmp_path).returncode == 1  # x is not its own norm
    tensor = numpy_helper.from_array(got, name)
    (bundle / "test_data_set_0" / "output_0.pb").write_bytes(tensor.SerializeToString())
    (tmp_path / "again").mkdir()
    assert rerun(bundle, tmp_path / "again").returncode == 0
    assert json.loads((bundle / "settings.json").read_text())["disabled"] == ["ConstantFolding"]
    with pytest.raises(UsageError, match="not empty"):
        write_bundle(bundle, part, feeds, {name: x}, {name: 1e-6}, Setting())


def test_a_bundle_is_there_whole_or_not_at_all(small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_graph(small.folded)
    (tmp_path / "empty").mkdir()
    real = Path.write_text

    def full(path: Path, *words: str, **more: str) -> int:
        if path.name == "run.py":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, *words, **more)

    for place in ("empty", "new"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_text", full)
            with pytest.raises(StorageError, match="No space left"):
                write_bundle(tmp_path / place, model, {}, {}, {}, Setting())
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    monkeypatch.chdir(tmp_path / "empty")
    write_bundle(".", model, {}, {}, {}, Setting())
    held = sorted(path.name for path in (tmp_path / "empty").iterdir())
    assert held == ["model.onnx", "run.py", "settings.json", "test_data_set_0"]
