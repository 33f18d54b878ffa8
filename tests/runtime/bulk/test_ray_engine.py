"""Ray Data on real clusters on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from normdeploy.errors import MissingDependencyError, UsageError
from normdeploy.ort.settings import CUDA, TENSORRT
from normdeploy.runtime import Settings, predict
from normdeploy.runtime.bulk import predict_files
from normdeploy.runtime.bulk.ray_engine import actor_options

_RUN = """
import sys, warnings
from normdeploy.runtime import predict
from normdeploy.runtime.bulk import predict_files
predict_files._PART_INPUT = 0  # parts of some batches, so that there are many
result = predict(sys.argv[1], sys.argv[2], sys.argv[3], batch_size=4, engine="ray", workers=2, progress=PROGRESS)
print(result.rows, result.bad, result.resumed)
"""

_KILL_ONE = """
import os, signal, threading
from pathlib import Path
killed = []
def workers():
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name = (entry / "cmdline").read_bytes().replace(bytes(1), b" ").decode()
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError):
                continue
            busy = name.startswith("ray::") and "PartPredictor" in name and ".submit" in name
            if busy and belongs(parent):
                found.append(int(entry.name))
    return found
def belongs(pid):
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False
def kill_one():
    while not killed:
        for pid in workers():
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            print("killed", pid, flush=True)
            break
threading.Thread(target=kill_one, daemon=True).start()
PROGRESS = None
"""


def _run(code: str, *args: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, timeout=400, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def images(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(3000, 3, 16, 16)).astype(np.float32)
    x[[3, 1234, 2999]] = np.nan
    np.save(tmp_path / "x.npy", x)
    return tmp_path / "x.npy"


@pytest.mark.slow
def test_ray_equals_local_row_for_row_and_survives_a_death(convnet, images, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr(predict_files, "_PART_INPUT", 0)
    predict(convnet, images, tmp_path / "local.npz", batch_size=4)
    out = _run("PROGRESS = None\n" + _RUN, convnet, images, tmp_path / "ray.npz")
    assert out.split() == ["3000", "3", "0"]
    out = _run(_KILL_ONE + _RUN, convnet, images, tmp_path / "death.npz")
    assert "killed" in out
    assert out.split()[-3:] == ["3000", "3", "0"]
    with np.load(tmp_path / "local.npz") as local:
        assert len(local["row"]) == 2997
        for name in ("ray.npz", "death.npz"):
            with np.load(tmp_path / name) as other:
                np.testing.assert_array_equal(other["row"], local["row"])
                np.testing.assert_array_equal(other["y"], local["y"])
    assert (tmp_path / "ray.npz.bad.csv").read_text() == (tmp_path / "local.npz.bad.csv").read_text()


def test_missing_ray_is_said(convnet, images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"normdeploy\[ray\]"):
        predict(convnet, images, tmp_path / "o.npz", engine="ray")


def test_an_actor_on_a_gpu_asks_for_one():
    cpu, cuda = Settings(), Settings(provider=CUDA)
    assert actor_options(cpu, None, cores=7, gpus=2) == {"size": 7, "num_cpus": 1}
    assert actor_options(cpu, 3, cores=7, gpus=0) == {"size": 3, "num_cpus": 1}
    assert actor_options(cpu, 16, cores=7, gpus=0) == {"size": 7, "num_cpus": 1}  # none waits for a core in vain
    assert actor_options(cpu, None, cores=0, gpus=0) == {"size": 1, "num_cpus": 1}
    for provider in (CUDA, TENSORRT):
        options = actor_options(Settings(provider=provider), None, cores=7, gpus=2)
        assert options == {"size": 2, "num_cpus": 1, "num_gpus": 1}
    assert actor_options(cuda, 8, cores=7, gpus=2)["size"] == 2
    with pytest.raises(UsageError, match="Ray has no GPU"):
        actor_options(cuda, None, cores=7, gpus=0)


_CLUSTER = """
import os
from ray.cluster_utils import Cluster
node = {"num_cpus": 2, "object_store_memory": 80_000_000}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
cluster.add_node(**node)
os.environ["RAY_ADDRESS"] = cluster.address
PROGRESS = None
"""


@pytest.mark.slow
def test_a_running_cluster_of_two_nodes_is_used(linear, tmp_path):
    """More workers are asked for than it has cores; a table, a stray quote, and then data that is damaged."""
    pytest.importorskip("ray")
    lines = ["a,b,c", "1,2,3", '1,"2,3', "", "4,5,6"]
    (tmp_path / "d.csv").write_text("\n".join(lines))
    np.savez_compressed(tmp_path / "d.npz", x=np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32))
    whole = (tmp_path / "d.npz").read_bytes()
    (tmp_path / "d.npz").write_bytes(whole[:20000] + bytes(64) + whole[20064:])
    code = _CLUSTER + _RUN.replace("workers=2", "workers=9")
    code += """
import normdeploy.errors, ray
print("left" if not ray.is_initialized() else "still there")
try:
    predict(sys.argv[1], sys.argv[4], sys.argv[5], engine="ray")
except normdeploy.errors.InputError as error:
    print("ours:", error)
cluster.shutdown()
"""
    out = _run(code, linear[0], tmp_path / "d.csv", tmp_path / "o.csv", tmp_path / "d.npz", tmp_path / "o.npz")
    assert out.splitlines()[:2] == ["3 1 0", "left"]
    assert "ours:" in out
    assert (tmp_path / "o.csv.bad.csv").read_text().splitlines()[1].startswith("1,,")
    first, last = (line.split(",") for line in (tmp_path / "o.csv").read_text().splitlines()[1:])
    assert (first[0], last[0]) == ("0", "2")
    expected = np.array([[1.0, 2, 3], [4, 5, 6]]) @ linear[1] + linear[2]
    np.testing.assert_allclose(np.array([first[1:], last[1:]], float), expected, rtol=1e-5)
