"""Which onnxruntime-web is used: what is named, what npm fetches, and what is refused."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
from fake_release import VERSION, release_file, release_folder

from normdeploy.errors import InputError, MissingDependencyError
from normdeploy.web import release
from normdeploy.web.host import find_browser
from normdeploy.web.release import BINARY, SCRIPT, find_release


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(release.ENVIRONMENT, raising=False)


def _npm(folder: Path, does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "bin").mkdir()
    npm = folder / "bin" / "npm"
    npm.write_text(f"#!{sys.executable}\nimport shutil, sys\n{does}\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"))


@pytest.mark.parametrize("where", ["package", "package/dist/..", ".", "installed"])
def test_a_folder_is_taken_where_the_package_lies_in_it(where: str, tmp_path: Path) -> None:
    root = release_folder(tmp_path)
    if where == "installed":
        (tmp_path / "installed" / "node_modules").mkdir(parents=True)
        root.rename(tmp_path / "installed" / "node_modules" / "onnxruntime-web")
    found = find_release(tmp_path / where)
    assert (found.version, found.tested) == (VERSION, False)
    assert found.files[BINARY].read_bytes() == b"\0asm"


def test_the_environment_names_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(release.ENVIRONMENT, str(release_folder(tmp_path)))
    assert find_release().version == VERSION


def test_of_a_file_only_what_is_used_is_kept(tmp_path: Path) -> None:
    found = find_release(release_file(tmp_path))
    assert found.version == VERSION
    assert sorted(path.name for path in found.folder.iterdir()) == sorted([BINARY, SCRIPT, "package.json"])
    assert found.folder.is_relative_to(tmp_path / "cache")


def test_bytes_that_are_not_those_of_the_pinned_release_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"SHA-256 .* expected 11e64bd8.*fetch the package again"):
        find_release(release_folder(tmp_path, release.VERSION))


def test_bytes_of_the_pinned_release_are_tested_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = release_folder(tmp_path, release.VERSION)
    own = {name: hashlib.sha256((root / "dist" / name).read_bytes()).hexdigest() for name in (SCRIPT, BINARY)}
    monkeypatch.setattr(release, "DIGESTS", own)
    assert find_release(root).tested


@pytest.mark.parametrize("what", ["missing", "empty folder", "another package", "no archive", "no json"])
def test_what_is_not_the_package_is_refused_with_what_to_do(what: str, tmp_path: Path) -> None:
    named = tmp_path / "named"
    if what == "empty folder":
        named.mkdir()
    elif what == "another package":
        named = release_folder(tmp_path, name="left-pad")
    elif what == "no archive":
        named.write_bytes(b"no archive")
    elif what == "no json":
        named = release_folder(tmp_path)
        (named / "package.json").write_text("[]")
    with pytest.raises(InputError, match=r"expected|npm pack onnxruntime-web"):
        find_release(named)


def test_without_npm_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"npm is not installed.*npm pack onnxruntime-web@.*--web-runtime"):
        find_release()


def test_npm_without_a_network_is_an_error_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _npm(tmp_path, "sys.exit('npm error ENOTFOUND registry')", monkeypatch)
    with pytest.raises(MissingDependencyError, match=r"ENOTFOUND registry.*--web-runtime"):
        find_release()


def test_another_package_under_the_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = release_file(tmp_path, release.VERSION)
    _npm(tmp_path, f"shutil.copy({str(file)!r}, sys.argv[sys.argv.index('--pack-destination') + 1])", monkeypatch)
    with pytest.raises(InputError, match=r"integrity sha512-.*expected sha512-q0y\+Jrrt"):
        find_release()
    assert not list((tmp_path / "cache").rglob("*.wasm"))


def test_a_browser_that_is_named_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"is no program.*--browser"):
        find_browser(tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("normdeploy.web.host._MAC", ())
    monkeypatch.delenv("NORMDEPLOY_BROWSER", raising=False)
    with pytest.raises(MissingDependencyError, match=r"no browser is found.*--browser"):
        find_browser()
