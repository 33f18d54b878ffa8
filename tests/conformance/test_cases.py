"""The cases themselves: their formulas against the graphs, their damages real, ours right on all of them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from normdeploy.conformance.adapters import BUILT_IN
from normdeploy.conformance.case import GROUPS, Damage, Problem
from normdeploy.conformance.case_outcome import judge
from normdeploy.conformance.cases import all_cases, chosen_cases
from normdeploy.errors import UsageError
from normdeploy.graph import Evaluator

CASES = all_cases()
GRAPHS = [name for name in CASES if name.startswith("traps/") and CASES[name].build().graph is not None]
MODULES = [name for name in CASES if not name.startswith("damages/") and name not in GRAPHS]
DAMAGES = [name for name in CASES if name.startswith("damages/")]


def test_there_are_cases_of_every_group_and_the_conventions_are_twelve():
    assert {case.group for case in CASES.values()} == set(GROUPS)
    assert sum(case.group == "conventions" for case in CASES.values()) == 12
    assert len(CASES) == len({case.name for case in CASES.values()})
    assert all(case.about for case in CASES.values())


@pytest.mark.parametrize("name", GRAPHS)
def test_what_a_graph_is_expected_to_give_is_what_it_computes(name: str):
    problem = CASES[name].build()
    assert isinstance(problem, Problem)
    assert problem.graph is not None
    onnx.checker.check_model(problem.graph)
    got = Evaluator(ir.from_proto(problem.graph)).run(problem.feeds)["y"].numpy()
    np.testing.assert_allclose(got, problem.expected[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_case_is_built_the_same_every_time(name: str):
    first, second = CASES[name].build(), CASES[name].build()
    assert first.graph.SerializeToString() == second.graph.SerializeToString()
    np.testing.assert_array_equal(first.feeds["x"], second.feeds["x"])


@pytest.mark.parametrize("name", GRAPHS)
def test_our_folding_is_right(name: str):
    assert judge(CASES[name], BUILT_IN["normdeploy fold"]).result == "right"


@pytest.mark.parametrize("name", MODULES)
def test_our_export_is_right(name: str):
    outcome = judge(CASES[name], BUILT_IN["normdeploy export"])
    assert outcome.result == "right", outcome


def outputs(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([item.name for item in session.get_outputs()], session.run(None, feeds), strict=True))


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_damage_and_the_rest_is_not(name: str):
    """On some of these inputs a damaged file is off by more than rounding; a right one on none."""
    damage = CASES[name].build()
    assert isinstance(damage, Damage)
    rng = np.random.default_rng(0)
    if damage.reference.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.INT64:
        inputs = [np.arange(400).reshape(4, 100)]
    else:
        image = rng.standard_normal((12, 3, 8, 8)).astype(np.float32)
        inputs = [image, np.zeros_like(image), image * np.float32(1e-3)]
    off = []
    for x in inputs:
        right, got = outputs(damage.reference, {"x": x}), outputs(damage.file, {"x": x})
        if set(right) != set(got):
            off.append(np.inf)
            continue
        with np.errstate(invalid="ignore"):
            error = max(np.abs(right[key] - got[key]).max() / np.abs(right[key]).max() for key in right)
        off.append(np.inf if np.isnan(error) else error)
    assert (max(off) < 5e-6) == damage.same, off


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_our_verifier_is_right(name: str):
    outcome = judge(CASES[name], BUILT_IN["normdeploy verify"])
    assert outcome.result == "right", outcome


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["conventions"], 12),
        (["traps/zero padding"], 1),
        (["*zero in float16"], 1),
        (["L1", "damages/none"], 2),
        ([], len(CASES)),
    ],
)
def test_cases_are_chosen_by_name(patterns: list[str], expected: int):
    found = chosen_cases(patterns)
    assert len(found) == expected
    assert found == [case for case in CASES.values() if case in found]


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(UsageError, match="no case matches 'trops'"):
        chosen_cases(["trops"])
