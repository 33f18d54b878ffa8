"""What a file is that was taken for weights: what to do instead."""

from __future__ import annotations

import zipfile
from pathlib import Path

from normdeploy.files import open_regular, storage

_HEAD = 64
_EXPECTED = "expected trained weights"
_BY_START = (
    (b"version https://git-lfs", "a pointer of Git LFS, not the file it stands for", "run git lfs pull"),
    (b"<!doctype html", "a web page", "fetch the file that the page is about"),
    (b"<html", "a web page", "fetch the file that the page is about"),
)
# in zip archives: the end of a member's name, what the archive then is, what to do
_BY_MEMBER = (
    ("/constants.pkl", "a TorchScript archive", "save torch.jit.load(FILE).state_dict() and give that"),
    ("archive_format", "an exported program", "save torch.export.load(FILE).state_dict and give that"),
    (".npy", "an archive of NumPy arrays", "save {name: torch.from_numpy(array)} of them by safetensors"),
)
# of folders that transformers' save_pretrained wrote
_IN_FOLDERS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def is_safetensors(file: Path) -> bool:
    """Tell by its name or content whether a file is safetensors: a header's length in eight bytes, and JSON."""
    if file.suffix == ".safetensors":
        return True
    head = _head(file)
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32


def what_it_is(file: Path) -> str | None:
    """Return what a file is, what was expected and what to do; None where that is not known."""
    head = _head(file)
    if not head:
        return f"{file} is empty; {_EXPECTED}: write it again"
    for start, what, remedy in _BY_START:
        if head.lower().startswith(start):
            return f"{file} is {what}; {_EXPECTED}: {remedy}"
    with storage(file, "read"):
        if not zipfile.is_zipfile(file):
            return None
        try:
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
        except zipfile.BadZipFile:
            return None
    for ending, what, remedy in _BY_MEMBER:
        if any(name.endswith(ending) for name in names):
            return f"{file} is {what}; {_EXPECTED}: {remedy}"
    return None


def folder_of_weights(folder: Path) -> str:
    """Return what to say of a folder that was given for a file of weights."""
    if (folder / ".metadata").is_file():
        return (
            f"{folder} is a distributed checkpoint; expected one file of weights: make it by "
            f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {folder} FILE"
        )
    inside = next((folder / name for name in _IN_FOLDERS if (folder / name).is_file()), None)
    return f"{folder} is a folder; expected a file of trained weights: give {inside or 'one that lies in it'}"


def _head(file: Path) -> bytes:
    with storage(file, "read"), open_regular(file) as stream:
        return stream.read(_HEAD)
