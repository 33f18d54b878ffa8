"""Adapters of a user's own: four roles, and everything that they may do."""

from __future__ import annotations

from pathlib import Path

import pytest

from normdeploy.conformance.adapters import BUILT_IN, Adapter, adapter_named
from normdeploy.conformance.case import Case, Outcome
from normdeploy.conformance.case_outcome import judge
from normdeploy.conformance.cases import all_cases
from normdeploy.conformance.run_cases import run
from normdeploy.conformance.table import markdown, rows, totals
from normdeploy.errors import SourceError, UsageError

OPTIMIZERS = {
    "copies": "shutil.copy(source, target)",
    "raises": "raise ValueError('no such operator')",
    "writes nothing": "pass",
    "writes rubbish": "pathlib.Path(target).write_bytes(b'no')",
    "prints": 'print(\'{"case": "x"}\'); shutil.copy(source, target)',
    "forgets the norm": """
    model = onnx.load(source)
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            node.CopyFrom(onnx.helper.make_node("Identity", [node.input[0]], [node.output[0]]))
    onnx.save(model, target)""",
}
HEADER = "import os, pathlib, shutil\nimport onnx\n\n"
CASE, OTHER = all_cases()["traps/depthwise multiplier"], all_cases()["traps/zero padding"]


def adapter(folder: Path, body: str, parameters: str = "source, target") -> Adapter:
    path = folder / "mine.py"
    path.write_text(f"{HEADER}def mine({parameters}):\n    {body}\n", encoding="utf-8")
    return adapter_named(f"{path}:mine")


@pytest.mark.parametrize(
    ("body", "result", "words"),
    [
        ("copies", "left", "BatchNormalization"),
        ("raises", "refused", "ValueError: no such operator"),
        ("writes nothing", "crashed", "no file was written"),
        ("writes rubbish", "crashed", "the file does not run"),
        ("forgets the norm", "wrong", ""),
    ],
)
def test_what_an_optimizer_does(tmp_path: Path, body: str, result: str, words: str):
    outcome = judge(CASE, adapter(tmp_path, OPTIMIZERS[body]))
    assert outcome.result == result
    assert words in outcome.detail
    if result == "wrong":
        assert outcome.error is not None
        assert outcome.error > 0.1


def test_a_tool_that_ends_its_process_is_started_again_for_the_next_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    left = tmp_path / "temporary"
    left.mkdir()
    monkeypatch.setenv("TMPDIR", str(left))
    monkeypatch.setattr("tempfile.tempdir", None)
    body = f"{OPTIMIZERS['prints']}\n    if b'Sigmoid' in pathlib.Path(source).read_bytes(): os._exit(3)"
    cases = [CASE, all_cases()["traps/convolution read twice"], OTHER]
    first, second, third = run([adapter(tmp_path, body)], cases)
    assert (first.result, second.result, third.result) == ("left", "crashed", "right")
    assert second.detail == "the process ended with code 3"
    assert list(left.glob("normdeploy-*")) == []


def test_a_runtime_and_an_exporter_and_a_verifier(tmp_path: Path):
    import numpy as np

    (tmp_path / "own.py").write_text(
        HEADER
        + """import numpy as np
def runtime(path, inputs):
    import onnxruntime as ort
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)

def exporter(model, args, path):
    import torch
    torch.onnx.export(model, args, path, dynamo=True, optimize=False, external_data=False, verbose=False)

def trusting(reference, candidate):
    return True

def suspicious(reference, candidate):
    raise RuntimeError("not the same bytes")
""",
        encoding="utf-8",
    )
    own = {
        name: adapter_named(f"{tmp_path / 'own.py'}:{name}")
        for name in ("runtime", "exporter", "trusting", "suspicious")
    }
    assert [a.role for a in own.values()] == ["runtime", "exporter", "verifier", "verifier"]
    cases = [
        all_cases()[name] for name in ("conventions/B6", "traps/zero padding", "damages/none", "damages/shift dropped")
    ]
    found = {(name, case.name): judge(case, known) for name, known in own.items() for case in cases}
    expected = {
        "runtime": ["right", "right", "does not apply", "does not apply"],
        "exporter": ["left", "does not apply", "does not apply", "does not apply"],
        "trusting": ["does not apply", "does not apply", "right", "wrong"],
        "suspicious": ["does not apply", "does not apply", "refused", "right"],
    }
    for name, results in expected.items():
        assert [found[name, case.name].result for case in cases] == results, name
    error = found["runtime", "traps/zero padding"].error
    assert error is not None
    assert np.isfinite(error)


def test_the_roles_of_the_known_ones_are_those_of_their_parameters():
    import inspect

    from normdeploy.conformance.adapters import PARAMETERS

    for known in BUILT_IN.values():
        assert PARAMETERS[tuple(inspect.signature(known.call).parameters)] == known.role, known.name


def installed(name: str) -> Adapter:
    known = BUILT_IN[name]
    if known.missing:
        pytest.skip(f"{', '.join(known.missing)} is not installed (extra: peers)")
    return known


@pytest.mark.parametrize(
    "name", ["onnxslim", "onnxsim", "onnxoptimizer", "onnxscript", "onnxruntime basic", "onnxruntime all"]
)
def test_the_known_optimizers_write_a_right_file(name: str):
    outcome = judge(CASE, installed(name))
    assert (outcome.result in ("right", "left"), outcome.detail != "") == (True, outcome.result == "left"), outcome


def test_the_known_exporter_and_runtime_compute_what_is_right():
    assert judge(all_cases()["conventions/B6"], installed("torch.onnx")).result in ("right", "left")
    assert judge(CASE, installed("openvino")).result == "right"


@pytest.mark.parametrize("name", ["allclose", "largest difference", "onnxsim check"])
def test_the_known_verifiers_pass_the_file_itself_and_see_a_shift_that_is_gone(name: str):
    for case in ("damages/none", "damages/shift dropped"):
        assert judge(all_cases()[case], installed(name)).result == "right", case


def test_what_is_no_adapter_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"adapter is 'onnxslimm'; expected file\.py:function or one of: normdeploy"):
        adapter_named("onnxslimm")
    (tmp_path / "number.py").write_text("mine = 3\n")
    with pytest.raises(UsageError, match=r"mine is a int; expected a function"):
        adapter_named(f"{tmp_path}/number.py:mine")
    with pytest.raises(
        UsageError, match=r"takes \(a, b\); expected the parameters of one role: exporter\(model, args, path\)"
    ):
        adapter(tmp_path, "pass", "a, b")
    with pytest.raises(SourceError):
        adapter_named(f"{tmp_path / 'absent.py'}:mine")


def test_a_module_that_is_not_there_is_named():
    assert Adapter("x", "optimizer", print, needs=("json", "no_such_module_here")).missing == ["no_such_module_here"]


def outcome(case: Case, name: str, result: str, error: float | None = None) -> Outcome:
    return Outcome(case.name, name, result, error=error)  # type: ignore[arg-type]


def test_the_table_has_a_row_per_case_and_a_column_per_adapter():
    verifier = all_cases()["damages/none"]
    outcomes = [
        outcome(CASE, "a", "wrong", 0.1234),
        outcome(OTHER, "a", "right", 1e-8),
        outcome(verifier, "a", "does not apply"),
        outcome(CASE, "b", "left"),
        outcome(OTHER, "b", "refused"),
        outcome(verifier, "b", "does not apply"),
    ]
    assert rows(outcomes, [CASE, OTHER, verifier], ["a", "b"]) == [
        ["traps/depthwise multiplier", "WRONG 0.12", "left"],
        ["traps/zero padding", "right", "refused"],
    ]
    assert totals(outcomes, "a") == "1 right, 1 wrong"
    text = markdown(outcomes, [CASE, OTHER, verifier], ["a", "b"]).splitlines()
    assert text[:4] == [
        "| traps | a | b |",
        "| --- | --- | --- |",
        "| depthwise multiplier | WRONG 0.12 | left |",
        "| zero padding | right | refused |",
    ]
    assert text[-1] == "| b | 1 left, 1 refused |"


def test_an_outcome_survives_json():
    import json

    for error in (None, 0.5, float("inf")):
        found = outcome(CASE, "a", "wrong", error)
        assert Outcome.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found
