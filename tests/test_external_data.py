"""Weights beside a file: every command and function takes such a file, wherever its tensors stand."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import external_models
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from external_models import FEATURES, FORMS, expected
from typer.testing import CliRunner

import normdeploy as nd
from normdeploy import runtime
from normdeploy.cli.app import app
from normdeploy.errors import NormdeployError
from normdeploy.onnxfile.model import read_model
from normdeploy.onnxfile.stored import tensors
from normdeploy.verification.record.certificate import certificate_path, check_certificate

pytestmark = pytest.mark.usefixtures("short_turns")
X = np.random.default_rng(1).standard_normal((3, FEATURES)).astype(np.float32)


def run_command(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def close(found: np.ndarray) -> bool:
    return np.allclose(found, expected(X), rtol=1e-5, atol=1e-5)


def stands_alone(path: Path, tmp_path: Path) -> np.ndarray:
    """Run a file by plain onnxruntime where nothing else of it is."""
    alone = tmp_path / "alone" / path.name
    alone.parent.mkdir(exist_ok=True)
    shutil.copy(path, alone)
    assert not any(tensor.external_data for tensor in tensors(onnx.load(alone, load_external_data=False)))
    session = ort.InferenceSession(str(alone), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: X})[0])


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_folded_proven_and_stands_alone(form: str, tmp_path: Path) -> None:
    path = external_models.write(form, tmp_path / "in" / "net.onnx")
    (tmp_path / "out").mkdir()
    result = nd.fold(path, tmp_path / "out" / "folded.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status not in ("fail", "error")
    assert form.startswith("body") or [row.action for row in result.ledger] == ["folded"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "folded.certificate.json",
        "folded.derivation.json",
        "folded.onnx",
    ]
    assert close(stands_alone(tmp_path / "out" / "folded.onnx", tmp_path))
    assert check_certificate(tmp_path / "out" / "folded.onnx").matches


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_run_inspected_verified_predicted_and_packaged(form: str, tmp_path: Path) -> None:
    path = external_models.write(form, tmp_path / "in" / "net.onnx")
    whole = external_models.write_whole(tmp_path / "whole.onnx")
    np.save(tmp_path / "x.npy", X)
    assert close(nd.load(path)(X))
    list(nd.inspect(path))
    assert nd.verify(whole, path, level="quick").status not in ("fail", "error")
    assert nd.verify(path, whole, level="quick").status not in ("fail", "error")
    runtime.predict(path, tmp_path / "x.npy", tmp_path / "y.npy")
    assert close(np.load(tmp_path / "y.npy"))
    target = runtime.package_triton(path, tmp_path / "repository")
    assert sorted(p.name for p in (target / "1").iterdir()) == ["model.onnx"]
    assert close(stands_alone(target / "1" / "model.onnx", tmp_path))


@pytest.mark.parametrize("form", ["initializers", "small", "constants"])
def test_tune_and_bench(form: str, tmp_path: Path) -> None:
    path = external_models.write(form, tmp_path / "net.onnx")
    plan = runtime.tune(path, seconds=0.2, time_limit=1)
    assert close(nd.load(path, plan=plan)(X))
    result = runtime.bench(path, seconds=0.1, batch_sizes=(1,), threads=(1,), peers=(), memory=False)
    assert "net" in result.summary()


def test_a_lossy_plan_stands_alone(tmp_path: Path) -> None:
    path = external_models.write("constants", tmp_path / "net.onnx")
    rows = np.random.default_rng(2).standard_normal((40, FEATURES)).astype(np.float32)
    plan = runtime.tune(path, data=rows, budget="rel=50%", seconds=0.2, time_limit=60)
    tried = [trial for trial in plan.trials if trial.precision in ("int8", "float16")]
    assert any(trial.status in ("chosen", "accepted", "rejected") for trial in tried), [t.reason for t in tried]


def test_every_command(tmp_path: Path) -> None:
    path = external_models.write("initializers", tmp_path / "in" / "net.onnx", location="net.onnx.data")
    np.save(tmp_path / "x.npy", X)
    out = tmp_path / "out.onnx"
    run_command("fold", path, "-o", out, "--quick")
    run_command("fold", path, "-o", tmp_path / "plain.onnx", "--no-verify")
    assert close(stands_alone(tmp_path / "plain.onnx", tmp_path))
    run_command("inspect", path)
    run_command("verify", path, out, "--quick", "--certify", "--overwrite")
    run_command("verify", out)
    run_command("verify", out, path, "--quick", "--certify")
    run_command("verify", path)
    run_command("run", path, "--input", tmp_path / "x.npy", "-o", tmp_path / "run.npy")
    assert close(np.load(tmp_path / "run.npy"))
    run_command("predict", path, tmp_path / "x.npy", "-o", tmp_path / "predicted.npy")
    run_command("package", path, "--triton", tmp_path / "repository")
    run_command("tune", path, "--seconds", "0.2", "--time-limit", "1")
    run_command("bench", path, "--seconds", "0.1", "--batch", "1", "--threads", "1")


def _copied(original: Path, place: Path) -> Path:
    return Path(shutil.copytree(original.parent, place)) / original.name


def _linked_folder(original: Path, place: Path) -> Path:
    place.symlink_to(original.parent)
    return place / original.name


def _linked_file(original: Path, place: Path) -> Path:
    """The link alone in its folder; the data beside the file that it leads to."""
    place.mkdir()
    (place / "link.onnx").symlink_to(original)
    return place / "link.onnx"


def _cache(original: Path, place: Path) -> Path:
    """Both are links into one other folder, under other names: how caches of downloads keep them."""
    place.mkdir()
    for file in original.parent.iterdir():
        (place / file.name).symlink_to(original.parent / file.name)
    return place / original.name


def _hard_links(original: Path, place: Path) -> Path:
    place.mkdir()
    for file in original.parent.iterdir():
        os.link(file, place / file.name)
    return place / original.name


def _link_inside(original: Path, place: Path) -> Path:
    path = _copied(original, place)
    (place / "deeper").mkdir()
    (place / "weights.bin").rename(place / "deeper" / "other.bin")
    (place / "weights.bin").symlink_to("deeper/other.bin")
    return path


def _read_only(original: Path, place: Path) -> Path:
    path = _copied(original, place)
    for file in (*place.iterdir(), place):
        file.chmod(0o555 if file.is_dir() else 0o444)
    return path


def _below(original: Path, place: Path) -> Path:
    return external_models.write("initializers", place / "net.onnx", location="data/part.bin")


PLACES = (_copied, _linked_folder, _linked_file, _cache, _hard_links, _link_inside, _read_only, _below)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_wherever_it_lies(place, relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = external_models.write("initializers", tmp_path / "original" / "net.onnx")
    path = place(original, tmp_path / "there")
    if relative:
        monkeypatch.chdir(path.parent)
        path = Path(path.name)
    out = tmp_path / "out.onnx"
    result = nd.fold(path, out, verify="quick")
    assert result.verdict is not None
    assert result.verdict.status not in ("fail", "error")
    assert close(stands_alone(out, tmp_path))
    assert close(nd.load(path)(X))
    assert nd.verify(path, out, level="quick").status not in ("fail", "error")


def test_a_file_certified_through_a_link_stays_whole(tmp_path: Path) -> None:
    original = external_models.write("initializers", tmp_path / "original" / "net.onnx")
    link = _linked_file(original, tmp_path / "there")
    run_command("verify", original, link, "--quick", "--certify")
    assert link.is_symlink()
    assert close(nd.load(original)(X))
    assert check_certificate(link).matches


@pytest.mark.parametrize("form", ["small", "body_constants"])
def test_the_optimizers_of_such_a_file_are_named(form: str, tmp_path: Path) -> None:
    from normdeploy.verification.diagnosis.optimizers import applied_optimizers

    assert applied_optimizers(external_models.write(form, tmp_path / "net.onnx")).known


# what may not be read --------------------------------------------------------------------------------


def _functions(path: Path, tmp_path: Path):
    whole = external_models.write_whole(tmp_path / "whole.onnx")
    np.save(tmp_path / "x.npy", X)
    return {
        "fold": lambda: nd.fold(path, tmp_path / "out.onnx", verify="quick"),
        "fold unverified": lambda: nd.fold(path, tmp_path / "out.onnx", verify=False),
        "inspect": lambda: list(nd.inspect(path)),
        "verify": lambda: nd.verify(whole, path, level="quick"),
        "reference": lambda: nd.verify(path, whole, level="quick"),
        "load": lambda: nd.load(path)(X),
        "predict": lambda: runtime.predict(path, tmp_path / "x.npy", tmp_path / "y.npy"),
        "package": lambda: runtime.package_triton(path, tmp_path / "repository"),
        "tune": lambda: runtime.tune(path, seconds=0.1, time_limit=1),
        "bench": lambda: runtime.bench(path, seconds=0.1, batch_sizes=(1,), peers=(), memory=False),
    }


def _climbs(folder: Path) -> Path:
    path = external_models.write("initializers", folder / "deep" / "net.onnx", location="../secret.bin")
    assert (folder / "secret.bin").is_file()
    return path


def _climbs_in_a_constant(folder: Path) -> Path:
    return external_models.write("constants", folder / "deep" / "net.onnx", location="../secret.bin")


def _climbs_in_a_body(folder: Path) -> Path:
    return external_models.write("body_initializers", folder / "deep" / "net.onnx", location="../secret.bin")


def _climbs_from_below(folder: Path) -> Path:
    return external_models.write("initializers", folder / "deep" / "net.onnx", location="a/../../secret.bin")


def _absolute(folder: Path) -> Path:
    return external_models.write("initializers", folder / "net.onnx", location=str(folder / "weights.bin"))


def _link_out(folder: Path) -> Path:
    path = external_models.write("initializers", folder / "deep" / "net.onnx")
    (folder / "deep" / "weights.bin").rename(folder / "secret.bin")
    (folder / "deep" / "weights.bin").symlink_to("../secret.bin")
    return path


def _linked_folder_out(folder: Path) -> Path:
    path = external_models.write("initializers", folder / "deep" / "net.onnx", location="in/weights.bin")
    (folder / "deep" / "in").rename(folder / "elsewhere")
    (folder / "deep" / "in").symlink_to("../elsewhere")
    return path


def _pipe(folder: Path) -> Path:
    path = external_models.write("initializers", folder / "net.onnx")
    (folder / "weights.bin").unlink()
    os.mkfifo(folder / "weights.bin")
    return path


def _device(folder: Path) -> Path:
    path = external_models.write("initializers", folder / "net.onnx")
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to("/dev/zero")
    return path


def _absent(folder: Path) -> Path:
    path = external_models.write("initializers", folder / "net.onnx")
    (folder / "weights.bin").unlink()
    return path


def _short(folder: Path) -> Path:
    path = external_models.write("initializers", folder / "net.onnx")
    os.truncate(folder / "weights.bin", 100)
    return path


def _model_is_a_pipe(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    os.mkfifo(folder / "net.onnx")
    return folder / "net.onnx"


def _model_is_a_device(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "net.onnx").symlink_to("/dev/zero")
    return folder / "net.onnx"


REFUSED = (_climbs, _climbs_in_a_constant, _climbs_in_a_body, _climbs_from_below, _absolute, _link_out,
           _linked_folder_out, _pipe, _device, _absent, _short, _model_is_a_pipe, _model_is_a_device)  # fmt: skip


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("make", REFUSED)
def test_what_may_not_be_read_is_an_error_of_ours(
    make, relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "given")
    if relative:
        monkeypatch.chdir(path.parent)
        path = Path(path.name)
    before = sorted(file.name for file in tmp_path.iterdir())
    for name, call in _functions(path, tmp_path).items():
        with pytest.raises(NormdeployError) as error:
            call()
        assert "expected" in str(error.value), name
    made = sorted({file.name for file in tmp_path.iterdir()} - set(before) - {"whole.onnx", "x.npy"})
    assert made == []


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": -4}, {"length": -1}, {"offset": "many"}, {"length": 10**15}, {"offset": 10**15}, {"length": 8},
        {"location": ""}, {"location": "."}, {"location": "a\0b"}, {"offset": "1e3"}, {"offset": "²"},
    ],
)  # fmt: skip
def test_places_that_contradict_are_refused(changes: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    model = external_models.initializers(
        lambda tensor: external_models.put_outside(tensor, tmp_path, "w.bin", **(changes if tensor.name == "w" else {}))
    )
    path.write_bytes(model.SerializeToString())
    for call in (lambda: nd.fold(path, tmp_path / "o.onnx", verify=False), lambda: nd.load(path)(X)):
        with pytest.raises(NormdeployError, match="'w'"):
            call()


# digests --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_zeroed_data_no_longer_matches_the_certificate(form: str, tmp_path: Path) -> None:
    whole = external_models.write_whole(tmp_path / "whole.onnx")
    path = external_models.write(form, tmp_path / "net.onnx")
    run_command("verify", whole, path, "--quick", "--certify", code=0)
    assert check_certificate(path).matches
    data = tmp_path / "weights.bin"
    data.write_bytes(bytes(data.stat().st_size))
    report = check_certificate(path)
    assert not report.matches
    assert "weights.bin" in report.summary()
    run_command("verify", path, code=1)
    with pytest.warns(runtime.CertificateWarning):
        nd.load(path)


def test_data_called_like_the_content_does_not_hide_it(tmp_path: Path) -> None:
    path = external_models.write("initializers", tmp_path / "net.onnx", location="content")
    assert sorted(read_model(path).digests()) == ["./content", "content"]


def test_a_plan_does_not_hold_for_other_data(tmp_path: Path) -> None:
    path = external_models.write("constants", tmp_path / "net.onnx")
    plan = runtime.tune(path, seconds=0.1, time_limit=1)
    data = tmp_path / "weights.bin"
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.warns(runtime.PlanWarning, match="digest"):
        nd.load(path, plan=plan)


def test_what_is_replaced_while_it_is_judged_is_not_certified(tmp_path: Path) -> None:
    whole = external_models.write_whole(tmp_path / "whole.onnx")
    path = external_models.write("initializers", tmp_path / "net.onnx")
    data = tmp_path / "weights.bin"

    def damage(stage: str, share: float) -> None:
        data.write_bytes(bytes(data.stat().st_size))

    verdict = nd.verify(whole, path, level="quick", progress=damage)
    assert verdict.status == "pass"  # of the file as it was when it was read
    from normdeploy.verification.record.certificate import certify

    with pytest.raises(NormdeployError, match="changed since it was verified"):
        certify(path, verdict)
    assert not certificate_path(path).exists()


def test_a_source_replaced_while_it_is_folded_does_not_matter(tmp_path: Path) -> None:
    path = external_models.write("initializers", tmp_path / "net.onnx")

    def damage(stage: str, share: float) -> None:
        (tmp_path / "weights.bin").write_bytes(b"")
        path.write_bytes(b"")

    nd.fold(path, tmp_path / "out.onnx", verify="quick", progress=damage)
    assert close(stands_alone(tmp_path / "out.onnx", tmp_path))


def test_a_candidate_replaced_while_it_is_judged_is_not_written(tmp_path: Path) -> None:
    path = external_models.write("initializers", tmp_path / "net.onnx")
    out = tmp_path / "out.onnx"

    def damage(stage: str, share: float) -> None:
        for candidate in tmp_path.glob(".out.onnx.*/**/out.onnx"):
            model = onnx.load(candidate)
            for tensor in model.graph.initializer:
                tensor.raw_data = bytes(len(tensor.raw_data))
            onnx.save(model, candidate)

    with pytest.raises(NormdeployError, match="changed since it was verified"):
        nd.fold(path, out, verify="quick", progress=damage)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.onnx", "weights.bin"]


def test_what_torch_writes_by_default(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU()).eval()
    with torch.no_grad():
        net[1].running_mean.normal_()
        net[1].running_var.uniform_(0.5, 2)
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its parts
        torch.onnx.export(
            net,
            (torch.from_numpy(X),),
            str(path),
            dynamo=True,
            verbose=False,
            dynamic_shapes=({0: torch.export.Dim("n")},),
        )
    assert sorted(file.name for file in path.parent.iterdir()) == ["net.onnx", "net.onnx.data"]
    result = nd.fold(path, tmp_path / "out.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass"
    truth = net(torch.from_numpy(X)).detach().numpy()
    assert np.allclose(stands_alone(tmp_path / "out.onnx", tmp_path), truth, rtol=1e-5, atol=1e-5)
    assert np.allclose(nd.load(path)(X), truth, rtol=1e-5, atol=1e-5)
    runtime.package_triton(path, tmp_path / "repository")
    assert not [finding for finding in nd.inspect(path) if finding.severity == "error"]
