"""Which onnxruntime-web is used, where it is found, and whether it is what npm's registry published.

One release is pinned: the one that docs/web.md's table was made with. Its package is named by the SHA-512 that the
registry publishes for it, its files by SHA-256. Another release can be given by path; it is used and named as such.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from normdeploy.errors import InputError, MissingDependencyError
from normdeploy.files import open_regular, put_in_place, storage

PACKAGE = "onnxruntime-web"
VERSION = "1.30.0"
INTEGRITY = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""SHA-512 of the release's package in base64, as ``npm view onnxruntime-web@VERSION dist.integrity`` prints it."""

SCRIPT = "ort.wasm.bundle.min.mjs"
BINARY = "ort-wasm-simd-threaded.wasm"
DIGESTS = {
    SCRIPT: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    BINARY: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
"""SHA-256 of what is used of it: the script with WebAssembly alone, and the machine code."""

ENVIRONMENT = "NORMDEPLOY_WEB_RUNTIME"
_REMEDY = (
    f"install npm, or give the package: on a machine that has npm, `npm pack {PACKAGE}@{VERSION}` writes "
    f"{PACKAGE}-{VERSION}.tgz; name it, or the folder it was unpacked into, by --web-runtime or {ENVIRONMENT}"
)


@dataclass(frozen=True)
class WebRuntime:
    """The files of onnxruntime-web.

    Args:
        folder: holds ``SCRIPT`` and ``BINARY``.
        version: as its package.json says.
        tested: it is the release that is pinned, byte for byte.
    """

    folder: Path
    version: str
    tested: bool

    @property
    def files(self) -> dict[str, Path]:
        """The files by name."""
        return {name: self.folder / name for name in DIGESTS}


def find_release(path: str | os.PathLike[str] | None = None) -> WebRuntime:
    """Return onnxruntime-web: what ``path`` or the environment names, else the pinned release, from npm if need be.

    Args:
        path: the package (``.tgz``), or a folder it was unpacked or installed into.

    Raises:
        InputError: what is named is not the package, or is not what the registry published under its version.
        MissingDependencyError: nothing is named, nothing was kept, and npm is not there or fetches nothing.
    """
    named = path if path is not None else os.environ.get(ENVIRONMENT)
    if named:
        return _given(Path(named))
    kept = _cache() / VERSION
    if not (kept / "package.json").is_file():
        _fetch(kept)
    return _checked(kept, kept)


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "normdeploy" / PACKAGE


def _given(named: Path) -> WebRuntime:
    if named.is_dir():
        roots = (named, named / "package", named / "node_modules" / PACKAGE)
        for root in roots:
            for folder in (root / "dist", root):
                if (root / "package.json").is_file() and all((folder / name).is_file() for name in DIGESTS):
                    return _checked(folder, root)
        raise InputError(
            f"{named} holds no package.json with {' and '.join(DIGESTS)} under dist/; expected the package {PACKAGE}, "
            f"unpacked or installed: {_REMEDY}"
        )
    if not named.is_file():
        raise InputError(f"{named} does not exist; expected the package {PACKAGE}: {_REMEDY}")
    kept = _cache() / f"sha512-{_sha512(named).hex()[:32]}"
    if not (kept / "package.json").is_file():
        _unpack(named, kept)
    return _checked(kept, kept)


def _checked(folder: Path, root: Path) -> WebRuntime:
    """Return a runtime after a look at its bytes.

    Raises:
        InputError: it calls itself the pinned release and is another, or it is another package.
    """
    try:
        with storage(root / "package.json", "read"):
            facts = json.loads((root / "package.json").read_text(encoding="utf-8"))
        name, version = facts["name"], str(facts["version"])
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{root / 'package.json'} is not npm's ({error}); expected that of {PACKAGE}") from error
    if name != PACKAGE:
        raise InputError(f"{root} is the package {name!r}; expected {PACKAGE}: {_REMEDY}")
    if version != VERSION:
        return WebRuntime(folder.resolve(), version, False)
    for file, digest in DIGESTS.items():
        with storage(folder / file, "read"), open_regular(folder / file) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != digest:
            raise InputError(
                f"{folder / file} has SHA-256 {found[:16]}...; expected {digest[:16]}..., what was published as "
                f"{PACKAGE} {VERSION}: remove it and fetch the package again"
            )
    return WebRuntime(folder.resolve(), version, True)


def _fetch(kept: Path) -> None:
    """Have npm fetch the pinned package, check it, and keep what is used of it.

    Raises:
        MissingDependencyError: npm is not there, or fetches nothing.
        InputError: what it fetched is not what was pinned.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise MissingDependencyError(
            f"{PACKAGE} {VERSION} is not here and npm is not installed; expected one: {_REMEDY}"
        )
    with tempfile.TemporaryDirectory(prefix="normdeploy-npm-") as folder:
        words = [npm, "pack", f"{PACKAGE}@{VERSION}", "--pack-destination", folder, "--ignore-scripts", "--silent"]
        done = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False)
        package = next(Path(folder).glob("*.tgz"), None)
        if done.returncode or package is None:
            said = " ".join(done.stderr.split())[-300:] or f"exit code {done.returncode}"
            raise MissingDependencyError(
                f"npm cannot fetch {PACKAGE} {VERSION} ({said}); expected the package: {_REMEDY}"
            )
        found = base64.b64encode(_sha512(package)).decode()
        if found != INTEGRITY:
            raise InputError(
                f"npm fetched {PACKAGE} {VERSION} with integrity sha512-{found}; expected sha512-{INTEGRITY}: the "
                "registry in use hands out something else; name another (npm config get registry)"
            )
        _unpack(package, kept)


def _sha512(package: Path) -> bytes:
    with storage(package, "read"), open_regular(package) as stream:
        return hashlib.file_digest(stream, "sha512").digest()


def _unpack(package: Path, kept: Path) -> None:
    """Keep what is used of a package; package.json, which comes last, says that all is there.

    Raises:
        InputError: it is no such package.
        StorageError: the cache cannot be written.
    """
    members = {**{name: f"package/dist/{name}" for name in DIGESTS}, "package.json": "package/package.json"}
    with storage(kept):
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpacked.", dir=kept) as folder:
            try:
                with tarfile.open(package) as archive:
                    for name, member in members.items():
                        stream = archive.extractfile(member)
                        if stream is None:
                            raise KeyError(f"{member} is no file")
                        with (Path(folder) / name).open("wb") as target:
                            shutil.copyfileobj(stream, target)
            except (tarfile.TarError, KeyError, EOFError) as error:
                # what is no archive is said to be none for each way of compressing
                why = "no archive" if isinstance(error, tarfile.ReadError) else error
                raise InputError(f"{package} is not the package {PACKAGE} ({why}); {_REMEDY}") from error
            for name in members:
                put_in_place(Path(folder) / name, kept / name)
