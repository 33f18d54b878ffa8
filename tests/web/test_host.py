"""Sessions in a page, and a verification that runs in one; the page is plain Python (tests/fake_browser.py)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from fake_browser import program
from fake_release import VERSION, release_folder
from onnx import TensorProto, helper
from torch import nn

import normdeploy as nd
from normdeploy.errors import BrowserError, GraphError, UsageError
from normdeploy.ort.settings import WEB
from normdeploy.verification.record.certificate import certify, check_certificate
from normdeploy.verification.sides.sessions import Setting, open_session, run_session
from normdeploy.web.host import WebHost, current_host, web_host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[WebHost]:
    with web_host(release_folder(tmp_path), program(tmp_path)) as found:
        yield found


def _model(*nodes: onnx.NodeProto, inputs: dict[str, int], outputs: dict[str, int]) -> bytes:
    def infos(named: dict[str, int]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, kind, None) for name, kind in named.items()]

    graph = helper.make_graph(list(nodes), "g", infos(inputs), infos(outputs))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return content


_TYPES = {
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
    "bool": TensorProto.BOOL, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16, "int32": TensorProto.INT32, "uint32": TensorProto.UINT32,
    "int64": TensorProto.INT64, "uint64": TensorProto.UINT64,
}  # fmt: skip


def test_every_type_and_shape_comes_through(host: WebHost) -> None:
    nodes = [helper.make_node("Identity", [f"é {name}"], [f"日 {name}"]) for name in _TYPES]
    inputs = {f"é {name}": kind for name, kind in _TYPES.items()}
    outputs = {f"日 {name}": kind for name, kind in _TYPES.items()}
    session = open_session(_model(*nodes, inputs=inputs, outputs=outputs), Setting(provider=WEB))
    random = np.random.default_rng(0)
    for shape in ((2, 3), (), (0, 3)):
        feeds = {f"é {name}": np.asarray(random.normal(0, 50, shape)).astype(name) for name in _TYPES}
        for name, found in zip(_TYPES, run_session(session, feeds, list(outputs)), strict=True):
            given = feeds[f"é {name}"]
            assert (found.dtype, found.shape, found.tobytes()) == (given.dtype, given.shape, given.tobytes())


def test_what_the_runtime_lacks_is_a_sentence_with_the_operator(host: WebHost) -> None:
    node = helper.make_node("Nonsense", ["x"], ["y"], domain="own")
    content = _model(node, inputs={"x": TensorProto.FLOAT}, outputs={"y": TensorProto.FLOAT})
    with pytest.raises(GraphError, match=rf"{WEB} {VERSION} cannot load the file \({WEB} level=all.*Nonsense"):
        open_session(content, Setting(provider=WEB))


def test_sessions_that_nobody_holds_are_released(host: WebHost) -> None:
    node = helper.make_node("Neg", ["x"], ["y"])
    content = _model(node, inputs={"x": TensorProto.FLOAT}, outputs={"y": TensorProto.FLOAT})
    first = open_session(content, Setting(provider=WEB))
    page = host.page(1)
    del first
    gc.collect()
    second = open_session(content, Setting(provider=WEB))
    with pytest.raises(GraphError):  # the page knows no such session any longer
        host.ask(page, "run", 2, host.server().offer("f", b""), ["y"], host.server().expect("r"))
    assert second.run(["y"], {"x": np.float32([3.0])})[0].tolist() == [-3.0]


def test_weights_beside_the_file_come_along(host: WebHost, tmp_path: Path) -> None:
    weight = np.arange(4096, dtype=np.float32).reshape(64, 64)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    session = open_session(tmp_path / "net.onnx", Setting(provider=WEB))
    x = np.eye(1, 64, 3, dtype=np.float32)
    assert np.array_equal(session.run(["y"], {"x": x})[0], weight[3:4])


def test_without_a_browser_at_hand_the_provider_says_so() -> None:
    with pytest.raises(UsageError, match="no browser is at hand"):
        open_session(b"", Setting(provider=WEB))
    with pytest.raises(UsageError, match="web_host"):
        current_host()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
        norm = self.layers[1]
        assert isinstance(norm, nn.BatchNorm2d)
        norm.running_mean.normal_()  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    model, path = Net().eval(), tmp_path_factory.mktemp("net") / "net.onnx"
    nd.export(model, torch.randn(2, 1, 8, 8), path, verify=False)
    return model, path


def test_a_verdict_names_what_was_judged(
    exported: tuple[nn.Module, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = exported
    monkeypatch.setenv("NORMDEPLOY_WEB_RUNTIME", str(release_folder(tmp_path)))
    monkeypatch.setenv("NORMDEPLOY_BROWSER", str(program(tmp_path)))
    verdict = nd.verify(model, path, args=torch.randn(2, 1, 8, 8), level="quick", runtime="web")
    assert verdict.status == "pass", verdict.reasons
    assert verdict.environment["settings"] == [f"{WEB} level=all threads=1"]
    assert verdict.environment["versions"][WEB] == VERSION
    assert verdict.environment["versions"]["browser"] == "FakeBrowser/1.0"
    assert {one.setting.partition(" ")[0] for one in verdict.measurements} == {WEB}
    certify(path, verdict)
    covered = " ".join(check_certificate(path).covered)
    assert f"runtime settings: {WEB} level=all threads=1" in covered
    assert f"{WEB} {VERSION}" in covered


def test_a_runtime_that_computes_wrongly_fails(exported: tuple[nn.Module, Path], tmp_path: Path) -> None:
    model, path = exported
    other = onnx.load(path)
    for tensor in other.graph.initializer:  # what the page runs has other weights than the file
        if tensor.data_type == TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array((array * np.float32(1.001)).astype(np.float32), tensor.name))

    class Wrong(WebHost):
        def open(self, model, options, threads=1):  # type: ignore[no-untyped-def]  # noqa: ARG002 - the point
            return super().open(other.SerializeToString(), options, threads)

    from normdeploy.verification import verify
    from normdeploy.web import host as room
    from normdeploy.web.release import find_release

    with Wrong(find_release(release_folder(tmp_path)), program(tmp_path)) as wrong:
        token = room._CURRENT.set(wrong)
        try:
            args = torch.randn(2, 1, 8, 8)
            verdict = verify(model, path, args=args, level="quick", settings=[Setting(provider=WEB)])
        finally:
            room._CURRENT.reset(token)
    assert verdict.status == "fail"
    assert any(check.name == "rounding" and WEB in check.detail for check in verdict.checks if check.status == "fail")


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("crashes", "the page crashed"),
        ("no runtime", f"{WEB} {VERSION} does not start in .*no available backend"),
    ],
)
def test_a_browser_that_fails_is_an_error_and_no_verdict(
    mode: str, said: str, exported: tuple[nn.Module, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = exported
    monkeypatch.setenv("NORMDEPLOY_WEB_RUNTIME", str(release_folder(tmp_path)))
    monkeypatch.setenv("NORMDEPLOY_BROWSER", str(program(tmp_path, mode)))
    with pytest.raises(BrowserError, match=said):
        nd.verify(model, path, args=torch.randn(2, 1, 8, 8), level="quick", runtime="web")


def test_an_answer_that_is_no_tensor_is_told(tmp_path: Path) -> None:
    node = helper.make_node("Neg", ["x"], ["y"])
    content = _model(node, inputs={"x": TensorProto.FLOAT}, outputs={"y": TensorProto.FLOAT})
    with web_host(release_folder(tmp_path), program(tmp_path, "broken answer")):
        session = open_session(content, Setting(provider=WEB))
        with pytest.raises(GraphError, match="no list of tensors"):
            session.run(["y"], {"x": np.float32([3.0])})


@pytest.mark.parametrize(
    ("given", "said"),
    [({"runtime": "browser"}, "expected one of cpu, cuda, tensorrt, web, mobile"), ({"runtime": ""}, "cpu, cuda")],
)
def test_an_unknown_runtime_is_refused(given: dict[str, str], said: str, exported: tuple[nn.Module, Path]) -> None:
    with pytest.raises(UsageError, match=said):
        nd.verify(*exported, **given)  # type: ignore[arg-type]
