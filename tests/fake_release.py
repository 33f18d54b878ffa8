"""A package that is laid out as onnxruntime-web is, of another version, and holds nothing that runs."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from normdeploy.web.release import BINARY, SCRIPT

VERSION = "0.0.1"


def release_folder(folder: Path, version: str = VERSION, name: str = "onnxruntime-web") -> Path:
    """Write an unpacked package and return its folder."""
    root = folder / "package"
    (root / "dist").mkdir(parents=True)
    (root / "package.json").write_text(json.dumps({"name": name, "version": version}))
    (root / "dist" / SCRIPT).write_text("export default {};\n")
    (root / "dist" / BINARY).write_bytes(b"\0asm")
    (root / "dist" / "ort.all.js").write_text("what nobody uses\n")
    return root


def release_file(folder: Path, version: str = VERSION) -> Path:
    """Write a package as npm packs it and return the file."""
    root = release_folder(folder / "made", version)
    file = folder / f"onnxruntime-web-{version}.tgz"
    with tarfile.open(file, "w:gz") as archive:
        archive.add(root, "package")
    return file
