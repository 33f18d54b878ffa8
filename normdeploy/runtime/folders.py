"""Folders of packages: they appear whole or not at all, and what else lies in one that is there stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normdeploy.errors import OutputExistsError, UsageError
from normdeploy.files import copy_file, names_data, storage
from normdeploy.unfinished import one_at_a_time, private_folder


def require_place(target: Path, *, overwrite: bool, choose: str) -> None:
    """Check that a package's folder may be made or changed.

    Args:
        target: the folder.
        overwrite: allow changing one that is there.
        choose: the option that names another.

    Raises:
        OutputExistsError: it exists and ``overwrite`` is false.
        UsageError: what lies in its place is no folder.
    """
    if os.path.lexists(target) and (target.is_symlink() or not target.is_dir()):
        raise UsageError(f"{target} is no folder of a model; expected a free name: choose another ({choose})")
    if target.exists() and not overwrite:
        raise OutputExistsError(
            f"{target} exists; expected a free name: choose another ({choose}) or pass overwrite (--overwrite)"
        )


@contextmanager
def folder_written(target: Path, *, overwrite: bool, choose: str) -> Iterator[Path]:
    """Yield a private folder; what is made in it appears in ``target`` on success, and nothing on failure.

    Args:
        target: as for ``require_place``, which is asked before and after; missing folders above it are made.
        overwrite: likewise; parts of the same names are replaced, others stay.
        choose: likewise.

    Raises:
        OutputExistsError, UsageError: as ``require_place``.
        StorageError: the disk is full, read-only or not ours to write.
    """
    require_place(target, overwrite=overwrite, choose=choose)
    with storage(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with private_folder(target) as temporary:
            made = temporary / "new"
            made.mkdir()
            yield made
            with one_at_a_time(target.parent):
                require_place(target, overwrite=overwrite, choose=choose)
                if target.exists():
                    _exchange(made, target, temporary / "old")
                else:
                    made.rename(target)


def write_model(source: Path, target: Path) -> None:
    """Write a model so that it stands on its own; one that does is copied byte for byte."""
    if not names_data(source):
        copy_file(source, target)
        return
    from normdeploy.graph import load_graph, save_graph

    save_graph(load_graph(source), target)


def _exchange(made: Path, target: Path, old: Path) -> None:
    """Move what was made into a package's folder; what it replaces goes to ``old``, and back if something fails."""
    old.mkdir()
    moved: list[str] = []
    try:
        for part in sorted(made.iterdir()):
            moved.append(part.name)
            if os.path.lexists(target / part.name):
                (target / part.name).rename(old / part.name)
            part.rename(target / part.name)
    except OSError:
        for name in moved:
            if os.path.lexists(old / name):
                if os.path.lexists(target / name):
                    (target / name).rename(made / name)
                (old / name).rename(target / name)
        raise


def plain_name(name: str) -> bool:
    """Tell a plain file name from one that climbs, holds separators or cannot be shown."""
    return bool(name) and name not in (".", "..") and name.isprintable() and not set(name) & set("/\\:\0")
