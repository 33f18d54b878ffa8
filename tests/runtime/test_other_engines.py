"""The snippets for Spark and Beam in docs/running.md, run as they are printed there.

Their requirements contradict those of the other extras, so they have an environment of their own:
pip install . pytest hypothesis pyspark pandas pyarrow; likewise with apache-beam; then pytest -m slow on this file.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from normdeploy.runtime import load

PAGE = Path(__file__).parents[2] / "docs" / "running.md"

_SPARK = """
import os, sys
import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

os.environ["PYSPARK_PYTHON"] = sys.executable
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
session = session.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
rows = np.load({rows!r})
{snippet}
frame = session.createDataFrame(
    [(row.ravel().tolist(),) for row in rows], StructType([StructField("image", ArrayType(FloatType()))])
)
frame = {last}
np.save({out!r}, np.array([row.logits for row in frame.collect()], np.float32))
"""

_BEAM = """
import apache_beam as beam
import numpy as np
import normdeploy as nd

rows = np.load({rows!r})
{snippet}

def keep(results):
    found = sorted((row["row"], row["y"]) for row in results)
    np.save({out!r}, np.array([y for _, y in found], np.float32))

def to_row(result):
    y = result.inference
    y = y["y"] if isinstance(y, dict) else y
    return {{"row": int(np.abs(rows - result.example).sum(axis=(1, 2, 3)).argmin()), "y": np.ravel(y).tolist()}}

with beam.Pipeline(runner="DirectRunner") as pipeline:
    samples = pipeline | beam.Create(list(rows))
    {run} | beam.Map(to_row) | beam.combiners.ToList() | beam.Map(keep)
"""


def _snippets(heading: str) -> list[str]:
    """Return the Python blocks below a heading of the page."""
    section = PAGE.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return [part.split("```", 1)[0] for part in section.split("```python\n")[1:]]


def _need(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}, which is not installed")


def _run(code: str, folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-3000:]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(3).normal(size=(20, 3, 16, 16)).astype(np.float32))
    return path


@pytest.mark.slow
def test_spark(convnet, rows, tmp_path):
    _need("pyspark", "pandas", "pyarrow")
    if shutil.which("java") is None:
        pytest.skip("needs java, which is not on the PATH")
    (snippet,) = _snippets("Spark")
    *body, last = snippet.strip().splitlines()
    assert last.startswith("frame.withColumn(")
    code = "\n".join(body).replace("/shared/net.onnx", str(convnet)).replace("[[3, 224, 224]]", "[[3, 16, 16]]")
    out = tmp_path / "spark.npy"
    _run(_SPARK.format(rows=str(rows), out=str(out), snippet=code, last=last), tmp_path)
    np.testing.assert_allclose(np.load(out), load(convnet)(np.load(rows)), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("own_handler", [True, False], ids=["with the Predictor", "Beam's own"])
def test_beam(convnet, rows, tmp_path, own_handler):
    _need("apache_beam")
    theirs, ours = _snippets("Beam")
    *body, run = theirs.strip().splitlines()
    assert run == "samples | RunInference(handler)"
    code = "\n".join(body).replace("/shared/net.onnx", str(convnet))
    if own_handler:
        handler = ours.replace(', plan="/shared/net.plan.json"', "").replace("/shared/net.onnx", str(convnet))
        code = f"from apache_beam.ml.inference.base import RunInference\n{handler}\nhandler = NormdeployHandler()"
    out = tmp_path / "beam.npy"
    _run(_BEAM.format(rows=str(rows), out=str(out), snippet=code, run=run), tmp_path)
    np.testing.assert_allclose(np.load(out), load(convnet)(np.load(rows)), rtol=1e-5, atol=1e-6)
