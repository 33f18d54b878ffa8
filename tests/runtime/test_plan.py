"""Plan files that nobody of ours wrote: they run nothing but their model and its variants, and end in our errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normdeploy.errors import NormdeployError, OutputExistsError, UsageError
from normdeploy.ort.digest import model_digest
from normdeploy.runtime import Plan, PlanWarning, Settings, Trial, load, retune, this_machine, tune
from normdeploy.runtime.plan import plan_path

X = np.ones((2, 3), np.float32)


def saved(path: Path, file: str, **changes: Any) -> Path:
    """Write the plan of a model by hand, so that it runs ``file``."""
    run = path.parent / file
    digest = model_digest(run) if run.is_file() else "0" * 64
    trial = Trial("fast", "float32", "chosen", file=path.name, settings=Settings(threads=1)).to_dict() | {"file": file}
    fields = {
        "schema": 1, "model": path.name, "model_digest": model_digest(path), "budget": "exact", "data": "none",
        "machine": this_machine().to_dict(), "file_digest": digest, "request": {}, "trials": [trial],
    }  # fmt: skip
    target = plan_path(path)
    target.write_text(json.dumps(fields | changes))
    return target


@pytest.fixture
def other(linear, write_model) -> Path:
    """Another model of the same inputs and outputs, beside the first."""
    return Path(write_model("n (float[batch, 3] x) => (float[batch, 3] y) { y = Neg(x) }", name="other.onnx"))


@pytest.mark.parametrize("place", ["other.onnx", "../other.onnx", "./other.onnx", "sub/other.onnx", "", ".", ".."])
def test_a_plan_that_names_another_file_runs_nothing_else(place: str, linear, other: Path) -> None:
    path = linear[0]
    (path.parent / "sub").mkdir()
    for copy in (path.parent / "sub" / "other.onnx", path.parent.parent / "other.onnx"):
        shutil.copy(other, copy)
    with pytest.raises(UsageError, match="expected"):
        load(path, plan=saved(path, place))
    with pytest.raises(UsageError):
        load(path, plan=saved(path, str(other.absolute())))


def test_a_plan_that_calls_its_model_otherwise_runs_the_model_given(linear, other: Path) -> None:
    path = linear[0]
    untuned = load(path)(X)
    plan = saved(path, other.name, model=other.name)
    np.testing.assert_array_equal(load(path, plan=plan)(X), untuned)


@pytest.mark.parametrize("model", ["../net.onnx", "a/net.onnx", "", "..", "a\0b"])
def test_a_plan_for_a_model_elsewhere_is_none(model: str, linear) -> None:
    with pytest.raises(UsageError, match="expected"):
        Plan.load(saved(linear[0], linear[0].name, model=model))
    with pytest.raises(UsageError):
        retune(plan_path(linear[0]))


def test_a_variant_counts_by_its_digest(linear, other: Path) -> None:
    path = linear[0]
    variant = path.with_name(f"{path.stem}.int8.onnx")
    shutil.copy(other, variant)
    plan = saved(path, variant.name)
    np.testing.assert_array_equal(load(path, plan=plan)(X), -X)
    shutil.copy(path, variant)
    with pytest.warns(PlanWarning, match="changed since the plan was made"):
        load(path, plan=plan)


def _trial(**changes: Any) -> dict[str, Any]:
    return Trial("fast", "float32", "chosen", settings=Settings()).to_dict() | {"file": "linear.onnx"} | changes


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": []}, {"trials": [_trial(status="accepted")]}, {"trials": [_trial(), _trial()]}, {"trials": 5},
        {"trials": [5]}, {"trials": [_trial(settings=None)]}, {"trials": [_trial(settings=3)]},
        {"trials": [_trial(settings={"threads": "many"})]}, {"trials": [_trial(settings={"provider": 4})]},
        {"trials": [_trial(settings={"options": 4})]}, {"trials": [_trial(settings={"fixed_shapes": 4})]},
        {"trials": [_trial(loss=4)]}, {"trials": [_trial(ratio=4)]}, {"trials": [_trial(latency=[1])]},
        {"trials": [_trial(ratio={"value": "fast"})]}, {"trials": [_trial(file=4)]}, {"trials": [_trial(file=None)]},
        {"trials": [_trial(status="best")]}, {"trials": [_trial(unknown=1)]}, {"machine": 4}, {"machine": {}},
        {"machine": None}, {"model": 4}, {"model": None}, {"model_digest": 4}, {"file_digest": None},
        {"budget": []}, {"request": 4}, {"schema": 2}, {"schema": None},
    ],
)  # fmt: skip
def test_a_plan_of_another_shape_is_an_error_of_ours(changes: dict[str, Any], linear) -> None:
    with pytest.raises(UsageError, match="expected"):
        load(linear[0], plan=saved(linear[0], linear[0].name, **changes))


@pytest.mark.parametrize("text", ["", "[]", "5", "null", "{", "\xff", "[" * 100_000, '{"schema": 1}', "NaN"])
def test_a_file_that_is_no_plan_is_an_error_of_ours(text: str, linear) -> None:
    path = plan_path(linear[0])
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match="expected"):
        load(linear[0], plan=path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_place_is_a_plan_or_an_error_of_ours(linear, data: st.DataObject) -> None:
    path = saved(linear[0], linear[0].name)
    values = json.loads(path.read_text())
    place = data.draw(
        st.sampled_from([values, values["trials"][0], values["trials"][0]["settings"], values["machine"]])
    )
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(_JSON)
    path.write_text(json.dumps(values))
    try:
        plan = Plan.load(path)
        assert plan.summary()
        plan.resolve(linear[0])
    except NormdeployError:
        return


def test_a_request_that_tune_did_not_write_is_refused(linear) -> None:
    path = saved(linear[0], linear[0].name, request={"progress": "x"})
    with pytest.raises(UsageError, match="'progress'"):
        retune(path)


# what tuning leaves beside the model --------------------------------------------------------------------------------


def test_a_plan_is_not_replaced_unasked(linear) -> None:
    path = linear[0]
    plan_path(path).write_text("mine")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        tune(path, seconds=0.1, time_limit=1)
    assert plan_path(path).read_text() == "mine"
    tune(path, seconds=0.1, time_limit=1, overwrite=True)
    assert Plan.load(plan_path(path)).model == path.name


def test_a_variant_of_ones_own_is_not_replaced_unasked(linear) -> None:
    path = linear[0]
    mine = path.with_name(f"{path.stem}.int8.onnx")
    mine.write_bytes(b"mine")
    rows = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
    with pytest.raises(OutputExistsError, match=r"int8\.onnx"):
        tune(path, data=rows, budget="rel=50%", seconds=0.1, time_limit=1)
    tune(path, seconds=0.1, time_limit=1)  # an exact budget makes no variant
    assert mine.read_bytes() == b"mine"


def test_a_plan_takes_its_own_variant_away_and_no_other(linear, other: Path) -> None:
    path = linear[0]
    ours, theirs = (path.with_name(f"{path.stem}.{kind}.onnx") for kind in ("int8", "float16"))
    for variant in (ours, theirs):
        shutil.copy(other, variant)
    saved(path, ours.name)
    tune(path, seconds=0.1, time_limit=1, overwrite=True)
    assert not ours.exists()
    assert theirs.exists()


def test_a_variant_that_changed_is_left(linear, other: Path) -> None:
    path = linear[0]
    variant = path.with_name(f"{path.stem}.int8.onnx")
    shutil.copy(other, variant)
    saved(path, variant.name)
    variant.write_bytes(b"mine")
    tune(path, seconds=0.1, time_limit=1, overwrite=True)
    assert variant.read_bytes() == b"mine"


def test_a_model_that_changes_while_it_is_tuned_gets_no_plan(linear, other: Path) -> None:
    path = linear[0]

    def exchange(text: str) -> None:
        if text.startswith("comparing"):
            shutil.copy(other, path)

    with pytest.raises(NormdeployError, match="changed while it was tuned"):
        tune(path, seconds=0.1, time_limit=60, progress=exchange)
    assert not plan_path(path).exists()
