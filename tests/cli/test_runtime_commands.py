"""tune, bench, package and predict as commands, on a tiny graph."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from normdeploy.cli.app import app

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
net (float[batch, 3, h, w] x) => (float[batch, 4] y) { p = GlobalAveragePool(x) f = Flatten(p) y = Gemm(f, W) }"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(TEXT)
    weight = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "W"))
    onnx.save(model, tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(20, 3, 5, 7)).astype(np.float32))
    return tmp_path


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_tune_then_run_with_the_plan(home: Path) -> None:
    net = home / "net.onnx"
    out = _run("tune", net, "--data", home / "x.npy", "--seconds", "0.3", "--batch", "2", "--json")
    plan = json.loads(out)
    assert plan["budget"] == "exact"
    assert [trial["status"] for trial in plan["trials"]].count("chosen") == 1
    assert "timed at batch 2" in plan["data"]
    _run("run", net, "--input", home / "x.npy", "--plan", home / "net.plan.json", "-o", home / "y.npy")
    weight = numpy_helper.to_array(onnx.load(net).graph.initializer[0])
    expected = np.load(home / "x.npy").astype(np.float64).mean((2, 3)) @ weight
    np.testing.assert_allclose(np.load(home / "y.npy"), expected, rtol=1e-4, atol=1e-5)


def test_tune_again_repeats_what_the_plan_says(home: Path) -> None:
    net = home / "net.onnx"
    asked = ("--seconds", "0.3", "--batch", "2", "--no-precedence")
    _run("tune", net, "--data", home / "x.npy", *asked, "--overwrite")
    plan = json.loads(_run("tune", net, "--again", "--seconds", "0.2", "--json"))
    assert plan["request"] | {"sizes": {}} == {
        "data": "x.npy", "reference": None, "batch_size": 2, "sizes": {}, "seconds": 0.2, "time_limit": 900.0,
        "seed": 0, "precedence": False,
    }  # fmt: skip
    (home / "net.plan.json").unlink()
    refused = CliRunner().invoke(app, ["tune", str(net), "--again"])
    assert refused.exit_code == 2


def test_sizes_of_dynamic_dimensions(home: Path) -> None:
    net = home / "net.onnx"
    refused = CliRunner().invoke(app, ["package", str(net), "--triton", str(home / "repo")])
    assert refused.exit_code == 2
    _run("package", net, "--triton", home / "repo", "--size", "h=5", "--size", "w=7")
    assert (home / "repo" / "net" / "warmup" / "0").stat().st_size == 3 * 5 * 7 * 4
    again = CliRunner().invoke(app, ["package", str(net), "--triton", str(home / "repo"), "--size", "h=5"])
    assert again.exit_code == 2
    out = _run(
        "bench", net, "--size", "h=5", "--size", "w=7", "--batch", "2", "--threads", "1", "--seconds", "0.1", "--json"
    )
    assert [row["name"] for row in json.loads(out)["rows"]] == ["normdeploy"]


def test_predict_on_images(home: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (home / "pictures").mkdir()
    image.new("RGB", (9, 4), (51, 102, 255)).save(home / "pictures" / "a.png")
    _run(
        "predict", home / "net.onnx", home / "pictures", "-o", home / "o.npz",
        "--image-size", "8x6", "--image-mean", "0.2,0.2,0.2", "--image-std", "0.5",
    )  # fmt: skip
    weight = numpy_helper.to_array(onnx.load(home / "net.onnx").graph.initializer[0])
    with np.load(home / "o.npz") as found:
        np.testing.assert_allclose(found["y"], [[0.0, 0.4, 1.6] @ weight.astype(np.float64)], rtol=1e-5)
    wrong = CliRunner().invoke(
        app, ["predict", str(home / "net.onnx"), str(home / "pictures"), "-o", str(home / "p.npz"), "--image-size", "8"]
    )
    assert wrong.exit_code == 2


def test_a_plan_from_elsewhere_is_one_line_of_warning(home: Path) -> None:
    net, plan = home / "net.onnx", home / "net.plan.json"
    _run("tune", net, "--seconds", "0.2", "--size", "h=5", "--size", "w=7", "--overwrite")
    plan.write_text(plan.read_text().replace('"processor": "', '"processor": "another '))
    command = [sys.executable, "-m", "normdeploy", "run", net, "--input", home / "x.npy", "--plan", plan]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line.startswith("warning: the plan for net.onnx is not used: ")
    assert line.endswith("normdeploy tune net.onnx --again")


def test_long_commands_say_what_they_are_at_where_there_is_no_terminal(home: Path) -> None:
    net = home / "net.onnx"
    words = ["tune", net, "--seconds", "0.2", "--size", "h=5", "--size", "w=7", "--overwrite"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    lines = done.stderr.splitlines()
    assert any(re.fullmatch(r"tuning \[\d+:\d\d\] trying untuned", line) for line in lines)
    assert len(lines) > 5
    again = CliRunner().invoke(app, [str(word) for word in words[:-1]])
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr


def test_bench_with_data_one_peer_and_no_memory(home: Path) -> None:
    net = home / "net.onnx"
    words = ["bench", net, "--against", net, "--peer", "torch.onnx + onnxruntime", "--data", home / "x.npy"]
    words += ["--batch", "2", "--threads", "1", "--seconds", "0.2", "--no-memory", "--json"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [row["name"] for row in found["rows"]] == ["normdeploy", "net.onnx"]
    assert found["footprints"] == {}
    assert "bench [0:0" in done.stderr
    wrong = CliRunner().invoke(app, [str(word) for word in [*words, "--peer", "nobody"]])
    assert wrong.exit_code == 2
    assert "nobody" in wrong.stderr


def test_predict_over_several_tables(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> net (float[batch, 2] x) => (float[batch, 2] y) { y = Neg(x) }'
    )
    onnx.save(model, tmp_path / "net.onnx")
    (tmp_path / "a.csv").write_text("id,2019,2020\np,1,2\n")
    (tmp_path / "b.csv").write_text("id,2019,2020\nq,3,4\nr,5,oops\n")
    out = tmp_path / "o.csv"
    arguments = ["--column", "2020", "--column", "2019", "--keep", "id", "--header"]
    told = _run("predict", tmp_path / "net.onnx", tmp_path / "a.csv", tmp_path / "b.csv", "-o", out, *arguments)
    assert "2 of 3 rows" in told
    assert out.read_text().split() == ["row,id,y.0,y.1", '0,"p",-2,-1', '1,"q",-4,-3']
    _run("predict", tmp_path / "net.onnx", tmp_path / "[ab].csv", "-o", out, *arguments, "--overwrite")
    assert out.read_text().count("\n") == 3
    for wrong in (["--image-resize", "zoom"], ["--image-filter", "cubic"]):
        refused = CliRunner().invoke(
            app, ["predict", str(tmp_path / "net.onnx"), str(tmp_path / "a.csv"), "-o", str(tmp_path / "p.csv"), *wrong]
        )
        assert refused.exit_code == 2
