"""OpenVINO on a processor with bfloat16 instructions, for real: it uses them without a word, and we say so."""

from __future__ import annotations

import numpy as np
import pytest
from usable_providers import provider_params

from normdeploy.budget import parse_budget
from normdeploy.ort.providers import float32_options
from normdeploy.ort.settings import OPENVINO_PLUGIN, OPENVINO_RUNTIME
from normdeploy.runtime import Settings, this_machine, tune
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.tuning import tuning_search
from normdeploy.runtime.tuning.judge import Judge

pytest.importorskip("openvino", reason="needs OpenVINO: install normdeploy[peers]")
pytestmark = pytest.mark.skipif(
    not {"avx512_bf16", "amx_bf16"} & set(this_machine().instructions),
    reason="this processor has no bfloat16 instructions",
)


def _rows(count: int) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(count, 3, 16, 16)).astype(np.float32)


PROVIDERS = provider_params(OPENVINO_RUNTIME, OPENVINO_PLUGIN)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_default_is_found_to_be_bfloat16_and_float32_where_it_is_told(convnet, provider):
    judge = Judge(convnet, parse_budget("exact"), {"x": _rows(16)})
    silent = judge.judge(open_backend(convnet, Settings(provider)).run, "float32")
    assert not silent.accepted
    assert silent.precision in ("about 7 bits", "about 8 bits", "about 9 bits")
    assert "bfloat16 has 8" in silent.reason
    assert silent.loss["rounding"] > 100
    told = Settings(provider, options=float32_options(provider))
    exact = judge.judge(open_backend(convnet, told).run, "float32")
    assert exact.accepted, exact.reason
    assert exact.precision == "float32"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_within_a_lossy_budget_it_is_tried_as_what_it_is(convnet, provider, monkeypatch):
    wanted = [entry for entry in tuning_search.find_providers() if entry.name in ("CPUExecutionProvider", provider)]
    monkeypatch.setattr(tuning_search, "find_providers", lambda: wanted)
    plan = tune(convnet, data=_rows(64), budget="rel=3%", seconds=0.2)
    reduced = [trial for trial in plan.trials if trial.name.startswith("bfloat16: OpenVINO")]
    assert reduced
    for trial in reduced:
        assert trial.status in ("accepted", "chosen")
        assert trial.precision == "bfloat16"
        assert 2**-11 < trial.loss["rel"] < 0.03  # bfloat16 rounds by up to 2^-9 per operation
    fixed = [trial for trial in plan.trials if trial.settings and trial.settings.fixed_shapes]
    assert fixed
    assert all(trial.settings.fixed_shapes == (("x", (8, 3, 16, 16)),) for trial in fixed)
    assert all(trial.loss for trial in fixed)
    # one may be hopeless at the first glance, as any way may be on a busy machine
    assert all(trial.latency or (trial.status != "chosen" and trial.reason) for trial in fixed)
    names = [trial.name for trial in plan.trials]
    assert len(names) == len(set(names))
    told = [trial for trial in plan.trials if trial.name.startswith("float32: OpenVINO")]
    assert told
    assert all(trial.precision == "float32" and trial.loss["rounding"] <= 1 for trial in told)
