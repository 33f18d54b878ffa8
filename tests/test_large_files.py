"""The whole path of a model whose weights do not fit into one file, with the limit lowered."""

from __future__ import annotations

from pathlib import Path

import external_models
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from external_models import FEATURES, expected
from torch import nn

import normdeploy as nd
from normdeploy import runtime
from normdeploy.errors import NormdeployError, OutputExistsError
from normdeploy.graph import load_graph, onnx_files, save_graph
from normdeploy.verification.record.certificate import check_certificate

X = np.random.default_rng(1).standard_normal((3, FEATURES)).astype(np.float32)


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_files, "ONE_FILE_LIMIT", 200)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.head(pooled.reshape(-1, 16))


def trained() -> Net:
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(4, 3, 8, 8))
    return net.eval()


def ran(path: Path, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.usefixtures("short_turns")
def test_export_fold_verify_load_tune_and_package(tmp_path: Path) -> None:
    net, x = trained(), torch.randn(2, 3, 8, 8)
    path = tmp_path / "net.onnx"
    result = nd.export(net, (x,), path, verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.reasons
    assert names(tmp_path) == ["net.certificate.json", "net.derivation.json", "net.onnx", "net.onnx.data"]
    assert check_certificate(path).matches
    truth = net(x).detach().numpy()
    np.testing.assert_allclose(ran(path, x.numpy()), truth, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(nd.load(path)(x.numpy()), truth, rtol=1e-4, atol=1e-5)
    assert nd.verify(net, path, level="quick").status == "pass"

    other = tmp_path / "other"
    other.mkdir()
    folded = nd.fold(path, other / "folded.onnx", verify="quick")
    assert folded.verdict is not None
    assert folded.verdict.status not in ("fail", "error")
    assert names(other) == ["folded.certificate.json", "folded.derivation.json", "folded.onnx", "folded.onnx.data"]
    (tmp_path / "net.onnx.data").rename(tmp_path / "away")  # nothing of the source is needed
    np.testing.assert_allclose(ran(other / "folded.onnx", x.numpy()), truth, rtol=1e-4, atol=1e-5)
    assert nd.verify(net, other / "folded.onnx", level="quick").status == "pass"

    plan = runtime.tune(other / "folded.onnx", seconds=0.2, time_limit=1)
    np.testing.assert_allclose(nd.load(other / "folded.onnx", plan=plan)(x.numpy()), truth, rtol=1e-4, atol=1e-5)
    target = runtime.package_triton(other / "folded.onnx", tmp_path / "repository")
    assert names(target) == ["1/model.onnx", "1/model.onnx.data", "config.pbtxt", "warmup/0"]
    np.testing.assert_allclose(ran(target / "1" / "model.onnx", x.numpy()), truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", external_models.FORMS)
def test_every_form_with_its_data_under_any_name(form: str, tmp_path: Path) -> None:
    """The data of Constants, bodies and functions goes into the new file's own data, whatever the old one's name."""
    path = external_models.write(form, tmp_path / "in" / "net.onnx", location="other name.bin")
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "folded.onnx"
    result = nd.fold(path, out, verify="quick")
    assert result.verdict is not None
    assert result.verdict.status not in ("fail", "error")
    assert names(tmp_path / "out") == [
        "folded.certificate.json",
        "folded.derivation.json",
        "folded.onnx",
        "folded.onnx.data",
    ]
    assert np.allclose(ran(out, X), expected(X), rtol=1e-5, atol=1e-5)
    target = runtime.package_triton(path, tmp_path / "repository")
    assert names(target / "1") == ["model.onnx", "model.onnx.data"]
    assert np.allclose(nd.load(target / "1" / "model.onnx")(X), expected(X), rtol=1e-5, atol=1e-5)


def test_a_graph_is_as_it_was_after_it_is_written(tmp_path: Path) -> None:
    model = load_graph(external_models.write("constants", tmp_path / "net.onnx"))
    save_graph(model, tmp_path / "a.onnx")
    save_graph(model, tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx.data").read_bytes() == (tmp_path / "b.onnx.data").read_bytes()
    (tmp_path / "a.onnx.data").unlink()
    assert np.allclose(ran(tmp_path / "b.onnx", X), expected(X), rtol=1e-5, atol=1e-5)


def test_the_data_of_another_model_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = external_models.write("initializers", tmp_path / "net.onnx")
    (tmp_path / "out.onnx.data").write_bytes(b"mine")
    with pytest.raises(OutputExistsError, match=r"out\.onnx\.data"):
        nd.fold(path, tmp_path / "out.onnx", verify="quick")
    assert names(tmp_path) == ["net.onnx", "out.onnx.data", "weights.bin"]
    assert (tmp_path / "out.onnx.data").read_bytes() == b"mine"
    nd.fold(path, tmp_path / "out.onnx", verify=False, overwrite=True)
    assert np.allclose(ran(tmp_path / "out.onnx", X), expected(X), rtol=1e-5, atol=1e-5)


def test_folding_in_place(tmp_path: Path) -> None:
    path = external_models.write("initializers", tmp_path / "net.onnx", location="net.onnx.data")
    nd.fold(path, path, verify="quick", overwrite=True)
    assert np.allclose(ran(path, X), expected(X), rtol=1e-5, atol=1e-5)


def test_a_failed_verdict_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = external_models.write("initializers", tmp_path / "net.onnx")
    written = onnx_files.save_graph

    def damaged(model, target, **options):
        written(model, target, **options)
        data = Path(target).with_name(f"{Path(target).name}.data")
        data.write_bytes(bytes(data.stat().st_size))
        return Path(target)

    monkeypatch.setattr("normdeploy.graph.save_graph", damaged)
    with pytest.raises(NormdeployError, match="not proven"):
        nd.fold(path, tmp_path / "out.onnx", verify="quick")
    assert names(tmp_path) == ["net.onnx", "weights.bin"]


def test_shapes_stay_in_the_graph(tmp_path: Path) -> None:
    model = load_graph(external_models.write("small", tmp_path / "net.onnx"))
    save_graph(model, tmp_path / "a.onnx")
    stored = {
        t.name: bool(t.external_data)
        for t in onnx.load(tmp_path / "a.onnx", load_external_data=False).graph.initializer
    }
    assert stored["w"]
    assert not stored["shape"]
