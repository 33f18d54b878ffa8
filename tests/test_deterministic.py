"""The same bytes in every process: what is exported and folded depends on the model and the settings alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import deterministic_runs
import pytest


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three processes' files: the second has another hash seed, the third two threads as well."""
    made, running = [], []
    for seed, threads in (("0", "1"), ("1", "1"), ("2", "2")):
        made.append(tmp_path_factory.mktemp(f"seed{seed}"))
        words = [sys.executable, deterministic_runs.__file__, str(made[-1]), threads]
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads, "PYTHONPATH": path}
        running.append(subprocess.Popen(words, env=environment, stderr=subprocess.PIPE))
    for process in running:
        assert process.communicate()[1] is not None
        assert process.returncode == 0
    return made


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("other", [1, 2], ids=["hash seed", "hash seed and threads"])
def test_every_file_is_the_same(folders: list[Path], other: int) -> None:
    """ONNX files with their metadata, ledgers, derivations, certificates."""
    one, found = files(folders[0]), files(folders[other])
    assert len(one) == 9 * len(deterministic_runs.NETWORKS)
    assert [name for name in one if one[name] != found.get(name)] == []
