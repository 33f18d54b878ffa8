from __future__ import annotations

import numpy as np
import pytest

from normdeploy.budget import parse_budget
from normdeploy.runtime import Settings
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.tuning.judge import Judge


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(4).normal(size=(16, 3, 16, 16)).astype(np.float32)


def _noisy(path, relative: float, where):
    """Return a run whose outputs carry noise of a size relative to them, on the feeds that ``where`` picks."""
    backend = open_backend(path, Settings())
    draw = np.random.default_rng(0)

    def run(feeds):
        outputs = backend.run(feeds)
        if not where(feeds["x"]):
            return outputs
        size = [np.sqrt(np.mean(value**2)) for value in outputs]
        return [
            (value + relative * scale * draw.normal(size=value.shape)).astype(np.float32)
            for value, scale in zip(outputs, size, strict=True)
        ]

    return run


def test_lower_precision_shows_on_every_input(convnet, rows):
    judge = Judge(convnet, parse_budget("exact"), {"x": rows})
    found = judge.judge(_noisy(convnet, 2.0**-9, lambda _: True), "float32")
    assert not found.accepted
    assert found.precision in ("about 7 bits", "about 8 bits", "about 9 bits")
    assert "without a word of its own" in found.reason


def test_rounding_that_shows_on_some_inputs_only_is_no_lower_precision(convnet, rows):
    judge = Judge(convnet, parse_budget("exact"), {"x": rows})
    found = judge.judge(_noisy(convnet, 2.0**-17, lambda x: np.abs(x).max() > 500), "float32")
    assert not found.accepted
    assert "times the rounding bound; on other inputs it is within that bound" in found.reason
    assert "mantissa" not in found.reason


def test_what_is_no_rounding_at_all_is_out_whatever_the_budget(convnet, rows):
    judge = Judge(convnet, parse_budget("rel=90%"), {"x": rows})
    backend = open_backend(convnet, Settings())
    found = judge.judge(lambda feeds: [value[:, ::-1] for value in backend.run(feeds)], "float32")
    assert not found.accepted
    assert "changes the result" in found.reason


def test_the_loss_by_conversion_is_reported_beside_the_loss(convnet, rows):
    judge = Judge(convnet, parse_budget("rel=50%"), {"x": rows})
    backend = open_backend(convnet, Settings())
    found = judge.judge(lambda feeds: [1.1 * value for value in backend.run(feeds)], "int8", conversion=0.03)
    assert found.accepted
    low, high = found.loss["rel low"], found.loss["rel high"]
    assert low <= found.loss["rel"] <= high
    rest = {key: value for key, value in found.loss.items() if key not in ("rel low", "rel high")}
    assert rest == {"rel": pytest.approx(0.1, rel=1e-4), "rel by conversion": 0.03}
