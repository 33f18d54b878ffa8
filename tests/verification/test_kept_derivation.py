"""The derivation beside the file: what verify takes from it, and what it does not believe."""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import graph_damage
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import random_networks
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.errors import OutputExistsError, StorageError
from normdeploy.exporting.trace import trace
from normdeploy.graph import derivation as written
from normdeploy.graph import load_graph
from normdeploy.graph.derivation import Derivation, Exact, Hint, read_derivation
from normdeploy.onnxfile.model import set_metadata
from normdeploy.rewrite import rewrite
from normdeploy.verification import Verdict, verify
from normdeploy.verification import hints as hints_room
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.hints import ANEW
from normdeploy.verification.record.certificate import KEY, certificate_path, certify, check_certificate
from normdeploy.verification.record.kept_derivation import derivation_path

SIZES = [{"x": (n, 6, 7, 7)} for n in (1, 2)]


@pytest.fixture(scope="module")
def merged() -> tuple[nn.Module, Tensor]:
    return random_networks.merging()


@pytest.fixture(scope="module")
def home(merged: tuple[nn.Module, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    result = nd.export(*merged, folder / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.check("derivation").status == "pass"
    return folder


@pytest.fixture(scope="module")
def judge(merged: tuple[nn.Module, Tensor]) -> Callable[[Path], Verdict]:
    """Return what judges a file, with one trace for all of them."""
    model, x = merged
    return partial(verify, model, args=x, traced=trace(model, x), level="quick")


@pytest.fixture
def path(home: Path, tmp_path: Path) -> Path:
    return shutil.copytree(home, tmp_path / "here") / "net.onnx"


@pytest.fixture
def without_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rewriting made anew hands over nothing: what is confirmed is confirmed by what was kept."""
    comparison = importlib.import_module("normdeploy.verification.comparison")
    rewrite = comparison.rewrite
    monkeypatch.setattr(comparison, "rewrite", lambda *a, **k: replace(rewrite(*a, **k), derivation=Derivation()))


def forge(path: Path, text: str) -> None:
    """Put another derivation beside a file, with a certificate and an entry in the file that fit it."""
    derivation_path(path).write_text(text)
    certificate = certificate_path(path)
    data = json.loads(certificate.read_text()) | {"derivation": hashlib.sha256(text.encode()).hexdigest()}
    certificate.write_text(json.dumps(data))
    proto = onnx.load(str(path))
    set_metadata(proto, [(KEY, hashlib.sha256(certificate.read_bytes()).hexdigest())])
    onnx.save(proto, str(path))


def test_what_export_keeps_is_named_by_the_certificate_and_explains_the_file(
    path: Path, judge: Callable[[Path], Verdict], without_hints: None
):
    assert sorted(p.name for p in path.parent.iterdir()) == ["net.certificate.json", "net.derivation.json", "net.onnx"]
    kept = derivation_path(path).read_bytes()
    assert json.loads(certificate_path(path).read_text())["derivation"] == hashlib.sha256(kept).hexdigest()
    assert read_derivation(kept).to_json().encode() == kept
    check = judge(path).check("derivation")
    assert check.status == "pass"
    assert check.measured.hints == "net.derivation.json"
    report = check_certificate(path)
    assert report.matches, report.problems
    assert "net.derivation.json" in " ".join(report.covered)
    assert "for every input: each" in " ".join(report.covered)
    assert "samples only" not in " ".join(report.not_covered)


def test_a_missing_one_is_made_anew(path: Path, judge: Callable[[Path], Verdict]):
    derivation_path(path).unlink()
    verdict = judge(path)
    assert verdict.check("derivation").status == "pass"
    assert verdict.check("derivation").measured.hints == ANEW
    assert "derivation.json" not in " ".join(verdict.not_checked)
    report = check_certificate(path)
    assert report.matches, report.problems
    assert "net.derivation.json is missing" in " ".join(report.not_covered)


def test_without_any_hints_the_operator_is_open(path: Path, judge: Callable[[Path], Verdict], without_hints: None):
    derivation_path(path).unlink()
    assert judge(path).check("derivation").status == "note"


def other_text(path: Path) -> None:
    derivation_path(path).write_text(derivation_path(path).read_text() + " ")


def other_certificate(path: Path) -> None:
    certificate_path(path).write_text(certificate_path(path).read_text() + " ")


def no_certificate(path: Path) -> None:
    certificate_path(path).unlink()


def no_entry(path: Path) -> None:
    proto = onnx.load(str(path))
    set_metadata(proto, [])
    onnx.save(proto, str(path))


def too_long(path: Path) -> None:
    forge(path, derivation_path(path).read_text() + " " * written.MOST_BYTES)


def no_json(path: Path) -> None:
    forge(path, "[" * 100_000)


def a_folder(path: Path) -> None:
    derivation_path(path).unlink()
    derivation_path(path).mkdir()


def of_another_schema(path: Path) -> None:
    forge(path, derivation_path(path).read_text().replace('"schema":1', '"schema":99'))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_text, "it was changed"),
        (other_certificate, "net.certificate.json was changed"),
        (no_certificate, "net.certificate.json is missing"),
        (no_entry, "the file names no certificate"),
        (too_long, "it is larger than"),
        (no_json, "not JSON"),
        (a_folder, "it is a folder"),
        (of_another_schema, "not of schema"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_one_that_does_not_fit_is_not_used_and_named(
    change: Callable[[Path], None], why: str, path: Path, judge: Callable[[Path], Verdict]
):
    change(path)
    verdict = judge(path)
    assert verdict.check("derivation").status == "pass"
    assert verdict.check("derivation").measured.hints == ANEW
    (said,) = [text for text in verdict.not_checked if "net.derivation.json is not used" in text]
    assert why in said


@pytest.mark.parametrize("change", [other_text, too_long], ids=lambda f: f.__name__)
def test_what_does_not_fit_is_not_parsed(
    change: Callable[[Path], None], path: Path, judge: Callable[[Path], Verdict], monkeypatch: pytest.MonkeyPatch
):
    change(path)

    def parsed(_text: Any) -> Derivation:
        raise AssertionError("parsed")

    monkeypatch.setattr(hints_room, "read_derivation", parsed)
    assert judge(path).check("derivation").status == "pass"


def test_an_unfit_certificate_names_nothing(path: Path, merged: tuple[nn.Module, Tensor]):
    """Whatever a certificate holds in its place, also where the file names just that certificate."""
    for value in (None, 3, [], "0" * 64):
        certificate = certificate_path(path)
        certificate.write_text(json.dumps(json.loads(certificate.read_text()) | {"derivation": value}))
        proto = onnx.load(str(path))
        set_metadata(proto, [(KEY, hashlib.sha256(certificate.read_bytes()).hexdigest())])
        onnx.save(proto, str(path))
        hints = hints_room.kept_hints(path, path, Derivation())
        assert hints.origin == ANEW
        assert hints.rejected
        assert check_certificate(path).summary()


def changed(path: Path, hint: Callable[[Hint], Hint], exact: Callable[[Exact], Exact] = lambda e: e) -> str:
    kept = read_derivation(derivation_path(path).read_bytes())
    return Derivation(tuple(map(hint, kept.hints)), tuple(map(exact, kept.constants))).to_json()


HOSTILE: dict[str, Callable[[Path], str]] = {
    "nothing": lambda _: Derivation().to_json(),
    "other source": lambda path: changed(path, lambda h: Hint(h.value, "x", h.key, h.scale, h.shift)),
    "twice the scale": lambda path: changed(path, lambda h: Hint(h.value, h.source, h.key, 2 * h.scale, h.shift)),
    "NaN": lambda path: changed(path, lambda h: Hint(h.value, h.source, h.key, h.scale * np.nan, h.shift)),
    "other constants": lambda path: changed(
        path, lambda h: h, lambda e: Exact(e.value, e.key, e.which, lambda: e.compute() * 1.01)
    ),
}


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_a_hostile_one_decides_nothing(kind: str, path: Path, judge: Callable[[Path], Verdict]):
    forge(path, HOSTILE[kind](path))
    verdict = judge(path)
    check = verdict.check("derivation")
    assert check.measured.hints in (ANEW, derivation_path(path).name)  # what needs no hint is confirmed beside any
    assert check.status == "pass"
    assert verdict.status == "pass", verdict.summary()


def test_the_right_one_confirms_no_wrong_file(path: Path, merged: tuple[nn.Module, Tensor]):
    text, proto = derivation_path(path).read_text(), onnx.load(str(path))
    traced = importlib.import_module("normdeploy.exporting.trace").trace(merged[0], (merged[1],))
    source = Side(traced.model, SIZES)
    for damaged in graph_damage.damages(proto):
        file = ir.serde.deserialize_model(damaged.model)
        assert not check_derivation(source, file, read_derivation(text), SIZES).confirmed, damaged.kind


def test_two_runs_write_the_same_bytes(path: Path, merged: tuple[nn.Module, Tensor], tmp_path: Path):
    nd.export(*merged, tmp_path / "net.onnx", verify="quick")
    assert derivation_path(tmp_path / "net.onnx").read_bytes() == derivation_path(path).read_bytes()


def test_moved_together_it_is_used_and_left_behind_it_is_not(
    path: Path, judge: Callable[[Path], Verdict], tmp_path: Path
):
    there = tmp_path / "there"
    there.mkdir()
    for place in (derivation_path, certificate_path, Path):
        shutil.move(place(path), place(there / "other.onnx"))
    check = judge(there / "other.onnx").check("derivation")
    assert (check.status, check.measured.hints) == ("pass", "other.derivation.json")
    alone = shutil.move(there / "other.onnx", tmp_path / "alone.onnx")
    check = judge(alone).check("derivation")
    assert (check.status, check.measured.hints) == ("pass", ANEW)


def test_fold_keeps_it_too(small: Any, tmp_path: Path, without_hints: None):
    nd.fold(small.plain, tmp_path / "folded.onnx", verify="quick")
    check = nd.verify(small.plain, tmp_path / "folded.onnx", level="quick").check("derivation")
    assert (check.status, check.measured.hints) == ("pass", "folded.derivation.json")


def test_certifying_again_keeps_the_same(path: Path, judge: Callable[[Path], Verdict]):
    kept = derivation_path(path).read_bytes()
    certify(path, judge(path))
    assert derivation_path(path).read_bytes() == kept
    assert check_certificate(path).matches


def test_nothing_is_overwritten_unasked_and_all_is_replaced_together(
    path: Path, merged: tuple[nn.Module, Tensor], tmp_path: Path
):
    lonely = tmp_path / "net.derivation.json"
    lonely.write_text("mine")
    with pytest.raises(OutputExistsError, match=r"net\.derivation\.json"):
        nd.export(*merged, tmp_path / "net.onnx", verify="quick")
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["net.derivation.json"]
    assert lonely.read_text() == "mine"
    nd.export(*merged, path, fold=False, verify="quick", overwrite=True)
    assert check_certificate(path).not_covered == [
        text for text in check_certificate(path).not_covered if "derivation" not in text
    ]
    assert not read_derivation(derivation_path(path).read_bytes()).constants  # nothing was rounded in a plain file


def test_a_disk_that_fails_leaves_none_of_the_three(
    merged: tuple[nn.Module, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import os

    replace_file = os.replace

    def refuse(source: Any, target: Any) -> None:
        if Path(target).name == "net.derivation.json":
            raise OSError(28, "No space left on device")
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StorageError):
        nd.export(*merged, tmp_path / "net.onnx", verify="quick")
    assert list(tmp_path.iterdir()) == []


def test_a_large_one_is_bounded_and_says_so(
    judge: Callable[[Path], Verdict], merged: tuple[nn.Module, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(written, "MOST_BYTES", 1500)
    path = tmp_path / "net.onnx"
    nd.export(*merged, path, verify="quick")
    text = derivation_path(path).read_bytes()
    assert len(text) <= 1500
    kept = read_derivation(text)
    assert kept.left_out
    assert kept.hints
    check = judge(path).check("derivation")
    assert (check.status, check.measured.hints) == ("pass", "net.derivation.json")  # the rest is made anew
    exported = load_graph(path)
    assert [node.op_type for node in exported.graph] == ["Conv", "Relu"]


@pytest.mark.parametrize("most", [100, 400, 1000, 4000, 100_000])
def test_what_is_written_fits_whatever_there_is(most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(written, "MOST_BYTES", most)
    sizes = (1, 3, 40, 500)
    full = Derivation(
        tuple(Hint(f"v{n}", "w", "k", np.arange(1.0, n + 1)) for n in sizes),
        tuple(Exact(f"v{n}", "k", "1", lambda n=n: np.full(n, 0.1)) for n in sizes),  # type: ignore[misc]  # bound now
    )
    text = full.to_json()
    assert len(text) <= most
    kept = read_derivation(text)
    assert kept.left_out == 8 - len(kept.hints) - len(kept.constants)
    assert kept.hints == () or not kept.left_out or len(kept.hints) == 4 or not kept.constants
    for hint in kept.hints:
        np.testing.assert_array_equal(hint.scale, np.arange(1.0, hint.scale.size + 1).reshape(hint.scale.shape))
        np.testing.assert_array_equal(hint.shift, 0)
    if most == 100_000:
        assert not kept.left_out
        assert [c.compute().tolist() for c in kept.constants] == [[0.1] * n for n in sizes]


def test_what_the_checker_computed_is_written_and_not_computed_again():
    def computed() -> np.ndarray:
        raise AssertionError("computed again")

    known, other, unused = (Exact(name, "k", "1", computed) for name in "abc")
    hint = Hint("v", "w")
    written_of = Derivation((hint, Hint("u", "w")), (known, other, unused)).pruned({
        hint: None, known: np.full(7, 0.1), other: np.full((), 0.1)
    })  # fmt: skip
    kept = read_derivation(written_of.to_json())
    assert [one.value for one in kept.hints] == ["v"]
    assert [(one.value, one.compute().tolist()) for one in kept.constants] == [("a", [0.1] * 7), ("b", 0.1)]


def test_numbers_that_the_check_needed_are_asked_of_the_rewriting_once_each(merged: tuple[nn.Module, Tensor]):
    counts: dict[Exact, int] = {}
    model, x = merged
    traced = trace(model, x)
    rewritten = rewrite(traced.model)

    def counted(one: Exact) -> Exact:
        def compute() -> np.ndarray:
            counts[again] = counts.get(again, 0) + 1
            return one.compute()

        again = replace(one, compute=compute)
        return again

    hints = replace(rewritten.derivation, constants=tuple(map(counted, rewritten.derivation.constants)))
    assert hints.constants
    report = check_derivation(
        traced.model, rewritten.model, hints, [{str(v.name): tuple(x.shape) for v in traced.model.graph.inputs}]
    )
    assert report.confirmed
    asked = dict(counts)
    assert any(one in asked for one in hints.constants)
    hints.pruned(report.used).to_json()
    assert counts == asked


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2,), (1, 3), (4, 1, 2), (19,)])
def test_how_long_a_row_is_is_told_without_writing_it(shape: tuple[int, ...]):
    row = written._Row({"value": 'a"b', "which": "1"}, {"scale": np.full(shape, 0.1), "shift": np.ones(3)})
    assert row.length == len(str(row))
    assert json.loads(str(row))["value"] == 'a"b'
