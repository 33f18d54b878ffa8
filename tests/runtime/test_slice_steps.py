"""A Slice whose step ends the process in OpenVINO is refused before OpenVINO sees it, wherever the step stands."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from normdeploy.errors import GraphError
from normdeploy.ort.settings import CPU, OPENVINO_PLUGIN, OPENVINO_RUNTIME, Settings
from normdeploy.runtime.backend import open_backend

LOWEST32, LOWEST64 = -(2**31), -(2**63)
X = np.arange(16, dtype=np.float32).reshape(2, 8)
WEIGHTS = {"start": np.array([-1]), "end": np.array([LOWEST64]), "axis": np.array([1])}
BODY = "{} y = Slice(x, start, end, axis, step)"
FROM_FILE = BODY.format("")


def _step(number, kind=np.int64):
    return {**WEIGHTS, "step": np.array([number], kind)}


def _write(write_model, body=FROM_FILE, weights=WEIGHTS):
    return write_model(f"g (float[n, 8] x) => (float[n, m] y) {{ {body} }}", weights)


CONSTANT = BODY.format("step = Constant <value_ints = [-2147483648]> ()")
TENSOR = BODY.format("step = Constant <value = int64[1] {-4294967296}> ()")
INNER = f"yes = Constant <value = bool {{1}}> () y = If (yes) <then_branch = t () => (float[n, m] a) {{ {CONSTANT} }}, "
INNER = INNER.replace("y = Slice", "a = Slice") + "else_branch = e () => (float[n, m] b) { b = Identity (x) }>"
HOSTILE = {
    "64 bits": (BODY.format(""), _step(LOWEST64)),
    "32 bits": (BODY.format(""), _step(LOWEST32)),
    "32 bits, of their own type": (
        BODY.format(""),
        {name: np.clip(array, LOWEST32, 9).astype(np.int32) for name, array in _step(LOWEST32).items()},
    ),
    "in a Constant's numbers": (CONSTANT, WEIGHTS),
    "in a Constant's tensor": (TENSOR, WEIGHTS),
    "in a branch": (INNER, WEIGHTS),
}


@pytest.mark.parametrize("provider", [OPENVINO_RUNTIME, OPENVINO_PLUGIN])
@pytest.mark.parametrize("what", HOSTILE)
def test_it_is_refused_by_name(what, provider, write_model, monkeypatch):
    monkeypatch.setattr("normdeploy.runtime.backend.openvino_device", lambda: pytest.fail("the file was opened"))
    path = _write(write_model, *HOSTILE[what])
    with pytest.raises(GraphError, match=r"Slice '[ay]' has a step of -[0-9]+, which ends the process in OpenVINO"):
        open_backend(path, Settings(provider=provider))


def test_a_step_beside_the_file_is_read(write_model):
    path = _write(write_model, weights=_step(LOWEST64))
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="net.data", size_threshold=0)
    assert (path.parent / "net.data").stat().st_size > 0
    with pytest.raises(GraphError, match=f"has a step of {LOWEST64}"):
        open_backend(path, Settings(provider=OPENVINO_RUNTIME))


@pytest.mark.parametrize("number", [LOWEST32, LOWEST64])
def test_onnxruntimes_own_kernels_take_it(number, write_model):
    (y,) = open_backend(_write(write_model, weights=_step(number)), Settings(provider=CPU)).run({"x": X})
    np.testing.assert_array_equal(y, X[:, 7:])


@pytest.mark.parametrize("number", [LOWEST32 + 1, -3, -1])
def test_openvino_is_given_what_it_survives(number, write_model):
    pytest.importorskip("openvino", reason="the extra 'peers' is not installed")
    path = _write(write_model, weights=_step(number))
    (y,) = open_backend(path, Settings(provider=OPENVINO_RUNTIME)).run({"x": X})
    np.testing.assert_array_equal(y, X[:, ::-1][:, ::-number])


TUNE = """
import pytest
from short_turns import SHORT
from normdeploy.cli import main
with pytest.MonkeyPatch.context() as patch:
    for name, seconds in SHORT.items():
        patch.setattr(name, seconds)
    main()
"""


def test_tune_survives_and_says_so(write_model, forked, tmp_path):
    """In a process of its own, which would end by a signal."""
    pytest.importorskip("openvino", reason="the extra 'peers' is not installed")
    path = _write(write_model, weights=_step(LOWEST64))
    done = forked.run(TUNE, "tune", str(path), "--seconds", "0.1", "--batch", "1", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    reasons = [trial["reason"] for trial in json.loads(done.stdout)["trials"] if "OpenVINO" in trial["name"]]
    assert any(f"has a step of {LOWEST64}" in reason for reason in reasons), reasons
