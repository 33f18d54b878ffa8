"""Each command does what it says, with its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from typer.testing import Result

from normdeploy.parsing.sources import build

Run = Callable[..., Result]
INPUT = ("--input", "x=float32:batchx3x6x6")


def truth(home: Path) -> np.ndarray:
    """The model in float64, through torch alone."""
    model = build(f"{home}/net.py:Net").double().eval()
    model.load_state_dict(torch.load(home / "net.pt", weights_only=True))
    with torch.no_grad():
        return model(torch.from_numpy(np.load(home / "x.npy")).double()).numpy()


def test_export_folds_the_norm_and_certifies(home: Path) -> None:
    model = onnx.load(home / "net.onnx")
    assert "BatchNormalization" not in {node.op_type for node in model.graph.node}
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert (home / "net.certificate.json").is_file()
    assert str(home) not in (home / "net.onnx").read_bytes().decode("latin-1")


def test_export_as_json_without_fold_and_proof(run: Run, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "plain.onnx"
    result = run(
        "export",
        f"{home}/net.py:Net",
        "--weights",
        home / "net.pt",
        *INPUT,
        "-o",
        out,
        "--json",
        "--no-verify",
        "--no-fold",
    )
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["path"] == str(out)
    assert data["verdict"] is None
    assert "BatchNormalization" in {node.op_type for node in onnx.load(out).graph.node}
    assert [path.name for path in tmp_path.iterdir()] == ["plain.onnx"]


def test_export_takes_constructor_arguments(run: Run, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "wide.onnx"
    result = run("export", f"{home}/net.py:Net", "--arg", "width=9", *INPUT, "-o", out, "--no-verify")
    assert result.exit_code == 0, result.output
    assert "no --weights given" in result.stderr
    assert "folded" in result.stdout
    shapes = [list(tensor.dims) for tensor in onnx.load(out).graph.initializer]
    assert [9, 3, 3, 3] in shapes


def test_run_prints_and_saves(run: Run, home: Path, tmp_path: Path) -> None:
    printed = run("run", home / "net.onnx", "--input", home / "x.npy", "--json")
    assert printed.exit_code == 0, printed.output
    (values,) = json.loads(printed.stdout).values()
    np.testing.assert_allclose(values, truth(home), rtol=0, atol=1e-5)
    for out in (tmp_path / "y.npy", tmp_path / "y.npz"):
        saved = run("run", home / "net.onnx", "--input", f"x={home}/x.npy", "-o", out)
        assert saved.exit_code == 0, saved.output
        assert "float32[7, 4]" in saved.stdout
        if out.suffix == ".npy":
            array = np.load(out)
        else:
            with np.load(out) as saved_arrays:
                (array,) = saved_arrays.values()
        np.testing.assert_allclose(array, truth(home), rtol=0, atol=1e-5)


def test_a_failed_export_prints_its_checks_and_names_its_page(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(model: object, path: Path, **options: object) -> Path:
        proto = onnx.load(home / "net.onnx")
        weight = max(proto.graph.initializer, key=lambda t: len(t.dims))
        array = onnx.numpy_helper.to_array(weight) * np.float32(1.01)
        weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
        onnx.save(proto, path)
        return path

    monkeypatch.setattr("normdeploy.graph.save_graph", damaged)
    page = tmp_path / "verdict.html"
    words = (*INPUT, "--weights", home / "net.safetensors", "--quick", "--html", page)
    failed = run("export", f"{home}/net.py:Net", *words, "-o", tmp_path / "x.onnx")
    assert failed.exit_code == 1, failed.output
    assert not (tmp_path / "x.onnx").exists()
    for word in ("verdict: FAIL", "structure", "rounding", "derivation", f"wrote {page}"):
        assert word in failed.stdout
    assert "<html" in page.read_text(encoding="utf-8")
    (line,) = [line for line in failed.stderr.splitlines() if "not proven equal" in line]
    assert len(line) < 400


def test_a_page_of_nothing_verified_is_refused(run: Run, home: Path, tmp_path: Path) -> None:
    words = ("export", f"{home}/net.py:Net", *INPUT, "-o", tmp_path / "x.onnx", "--no-verify")
    result = run(*words, "--html", tmp_path / "x.html")
    assert result.exit_code == 2
    assert "--no-verify" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_verify_passes_the_right_reference_and_fails_another(run: Run, home: Path, tmp_path: Path) -> None:
    page = tmp_path / "verdict.html"
    words = ("verify", f"{home}/net.py:Net", home / "net.onnx", "--quick", "--weights")
    good = run(*words, home / "net.safetensors", "--data", home / "x.npy", "--html", page)
    assert good.exit_code == 0, good.output
    assert "PASS" in good.stdout
    assert "<html" in page.read_text(encoding="utf-8")
    told = json.loads(run(*words, home / "net.safetensors", "--json").stdout)
    (check,) = [check for check in told["checks"] if check["name"] == "derivation"]
    assert check["measured"]["hints"] == "net.derivation.json"
    assert "derivation" not in told  # a file of its own
    state = torch.load(home / "net.pt", weights_only=True)
    state["norm.running_mean"] += 0.01
    torch.save(state, tmp_path / "other.pt")
    bad = run(*words, tmp_path / "other.pt", "--json")
    assert bad.exit_code == 1, bad.output
    assert json.loads(bad.stdout)["status"] == "fail"


def test_verify_alone_checks_the_certificate(run: Run, home: Path, tmp_path: Path) -> None:
    good = run("verify", home / "net.onnx")
    assert good.exit_code == 0, good.output
    assert "PASS" in good.stdout
    for name in ("net.onnx", "net.certificate.json"):
        (tmp_path / name).write_bytes((home / name).read_bytes())
    model = onnx.load(tmp_path / "net.onnx")
    model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
    onnx.save(model, tmp_path / "net.onnx")
    bad = run("verify", tmp_path / "net.onnx")
    assert bad.exit_code == 1, bad.output
    assert "changed after the verification" in bad.stdout


def test_fold_and_verify_onnx_against_onnx(run: Run, home: Path, tmp_path: Path) -> None:
    plain, folded = tmp_path / "plain.onnx", tmp_path / "folded.onnx"
    made = run(
        "export", f"{home}/net.py:Net", "--weights", home / "net.pt", *INPUT, "-o", plain, "--no-verify", "--no-fold"
    )
    assert made.exit_code == 0, made.output
    result = run("fold", plain, "-o", folded, "--quick", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["ledger"]["counts"]["folded"] == 1
    assert data["verdict"]["status"] == "pass"
    certified = run("verify", plain, folded, "--quick", "--certify", "--overwrite")
    assert certified.exit_code == 0, certified.output
    assert run("verify", folded).exit_code == 0


@pytest.mark.usefixtures("known_footprints")
def test_bench_against_source(run: Run, home: Path) -> None:
    words = ("bench", home / "net.onnx", "--against", f"{home}/net.py:Net", "--weights", home / "net.pt")
    # its own peer alone: torch compiles for seconds
    result = run(*words, "--peer", "torch eager", "--batch", "2", "--threads", "1", "--seconds", "0.2", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["name"] for row in found["rows"]] == ["normdeploy", "torch eager"]
    assert found["footprints"].keys() == {"normdeploy", "torch eager"}


def test_sys_names_versions_and_providers(run: Run) -> None:
    result = run("sys", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    # wheels from PyPI name the build (+cu132) in one of the two alone
    assert data["packages"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert data["providers"]["CPUExecutionProvider"] == "usable"
    assert "CPUExecutionProvider" in run("sys").stdout


def test_inspect_source_and_file(run: Run, home: Path) -> None:
    result = run("inspect", f"{home}/net.py:Net", "--weights", home / "net.pt", *INPUT, "--json")
    assert result.exit_code == 0, result.output
    assert all({"severity", "where", "what", "remedy"} <= set(row) for row in json.loads(result.stdout)["findings"])
    assert run("inspect", home / "net.onnx").exit_code == 0


def test_predict_over_a_file(run: Run, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "y.npy"
    result = run("predict", home / "net.onnx", home / "x.npy", "-o", out, "--batch", "3")
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(np.load(out), truth(home), rtol=0, atol=1e-5)


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_help_lists_every_command(run: Run, words: tuple[str, ...]) -> None:
    shown = run(*words).output
    for name in (
        "init",
        "build",
        "train",
        "inspect",
        "export",
        "fold",
        "verify",
        "diff",
        "tune",
        "bench",
        "run",
        "predict",
        "package",
        "completion",
        "sys",
    ):
        assert f"\n  {name} " in shown


def test_version(run: Run) -> None:
    assert run("--version").stdout.startswith("normdeploy 0.")


def test_run_makes_up_inputs_and_says_which(run: Run, home: Path) -> None:
    words = ("run", home / "net.onnx", "--batch", "2", "--json")
    one, again, other = run(*words), run(*words), run(*words, "--seed", "1")
    assert one.exit_code == 0, one.output
    assert "made-up inputs: x float32[2, 3, 6, 6]; give yours with --input" in one.stderr
    assert one.stdout == again.stdout != other.stdout
    assert np.shape(*json.loads(one.stdout).values()) == (2, 4)


def test_diff_on_the_console_as_json_and_as_markdown(run: Run, home: Path, tmp_path: Path) -> None:
    other = onnx.load(home / "net.onnx")
    tensor = next(t for t in other.graph.initializer if list(t.dims) == [5, 3, 3, 3])
    array = onnx.numpy_helper.to_array(tensor).copy()
    array[0, 0, 0, 0] = np.nextafter(array[0, 0, 0, 0], np.float32(9))
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    onnx.save(other, tmp_path / "other.onnx")
    words = ("diff", home / "net.onnx", tmp_path / "other.onnx", "--data", home / "x.npy")
    shown = run(*words)
    assert shown.exit_code == 0, shown.output
    for text in ("1 weights with other values", tensor.name, "1 of 135", "last places", "100.0%"):
        assert text in shown.stdout
    data = json.loads(run(*words, "--json").stdout)
    assert data["weights"][0]["ulps"] == 1
    assert data["inputs"] == ["x float32[7, 3, 6, 6]"]
    assert "| tensor | type |" in run(*words, "--markdown").stdout
    same = run("diff", home / "net.onnx", home / "net.onnx")
    assert same.stdout.splitlines()[0].endswith("no difference")
    both = run(*words, "--markdown", "--json")
    assert both.exit_code == 2
    assert "--markdown and --json" in both.stderr


def test_export_and_verify_as_markdown(run: Run, home: Path, tmp_path: Path) -> None:
    words = ("--weights", home / "net.pt", "--quick", "--markdown")
    made = run("export", f"{home}/net.py:Net", *INPUT, "-o", tmp_path / "net.onnx", *words)
    assert made.exit_code == 0, made.output
    assert "**PASS**" in made.stdout
    assert "| norm | BatchNormalization | folded | into conv" in made.stdout
    good = run("verify", f"{home}/net.py:Net", tmp_path / "net.onnx", *words)
    assert good.exit_code == 0, good.output
    assert good.stdout.startswith("✅ **PASS**")
    bad = run("verify", f"{home}/net.py:Net", tmp_path / "net.onnx", "--quick", "--markdown")
    assert bad.exit_code == 1
    assert bad.stdout.startswith("❌ **FAIL**")
