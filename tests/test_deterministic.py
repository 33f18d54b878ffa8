"""The same bytes in every process: what is exported and folded depends on the model and the settings alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import deterministic_runs
import onnx
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
def test_processes_and_hash_seeds(folders: list[Path]) -> None:
    one, other = files(folders[0]), files(folders[1])
    assert len(one) == 9 * len(deterministic_runs.NETWORKS)
    assert [name for name in one if one[name] != other.get(name)] == []


@pytest.mark.slow
def test_threads(folders: list[Path]) -> None:
    """What is measured may differ, and the file's entry that names the certificate; nothing else."""
    one, other = files(folders[0]), files(folders[2])
    assert one.keys() == other.keys()
    for name in one:
        if name.endswith(".onnx"):
            models = [onnx.load_model_from_string(content) for content in (one[name], other[name])]
            for model in models:
                del model.metadata_props[:]
            assert models[0].SerializeToString() == models[1].SerializeToString(), name
        elif not name.endswith(".certificate.json"):
            assert one[name] == other[name], name
