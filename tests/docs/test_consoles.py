"""Blocks of ``console`` in README and the how-tos: what can run here runs, line by line; the rest says why not."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from pages import ROOT, blocks, run_block
from typer.testing import CliRunner

from normdeploy.cli.app import app
from normdeploy.ort.providers import gpu_provider
from normdeploy.ort.settings import CUDA, TENSORRT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
SLOW = {"gpu", "int8"}  # a benchmark and a tuning of their usual length
# the first word of a line that does not run here -> why
ELSEWHERE = {
    "pip": "installs; tests install nothing",
    "export": "names a token that all machines of a cluster share",
    "ray": "starts and stops a cluster of several machines (tests/runtime/bulk/test_ray_engine.py starts one here)",
    "RAY_ADDRESS=FIRST:6379": "asks that cluster",
    "torchrun": "tests/train/test_many_processes.py trains in several processes",
}
# what ends as the page says it does where there is no GPU
REFUSED = {"--runtime cuda": (CUDA, 4), "--runtime tensorrt": (TENSORRT, 4)}


def lines(page: Path) -> list[str]:
    found = re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [line for block in found for line in block.strip().splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What a reader of the quick start has: net.py, net.pt, and what the pages add: rows, and the file of before."""
    monkeypatch.chdir(tmp_path)
    for kind, text in blocks(ROOT / "docs" / "quickstart.md")[:2]:
        assert kind == "python"
        if named := re.match(r"# file: (\S+)\n", text):
            (tmp_path / named[1]).write_text(text)
        else:
            run_block(text, tmp_path, monkeypatch)
    rows = np.random.default_rng(0).normal(size=(64, 3, 32, 32)).astype(np.float32)
    np.save("calibration.npy", rows)
    np.save("x.npy", rows[:4])
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


def run(line: str) -> tuple[int, str]:
    """Run one line as a shell would: comments, ``>>`` and variables are understood."""
    command, _, target = line.partition(" >> ")
    words = shlex.split(os.path.expandvars(command), comments=True)
    assert words[0] == "normdeploy", line
    result = CliRunner().invoke(app, words[1:])
    if target:
        with Path(shlex.split(os.path.expandvars(target))[0]).open("a", encoding="utf-8") as stream:
            stream.write(result.stdout)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page.stem in SLOW), id=page.stem) for page in PAGES if lines(page)],
)
def test_what_a_page_shows_runs(page: Path, folder: Path) -> None:
    guessed = page.stem == "README"  # as its own line does
    sizes = "" if guessed else "--input x=float32:batchx3x32x32 "
    for name in ["old.onnx"] if guessed else ["net.onnx", "main.onnx"]:
        code, said = run(f"normdeploy export net.py:Net --weights net.pt {sizes}--quick -o {name}")
        assert code == 0, said
    ran = 0
    for line in lines(page):
        if line.split()[0] in ELSEWHERE:
            continue
        expected = 0
        for option, (provider, code) in REFUSED.items():
            if option in line and not gpu_provider(provider).usable:
                expected = code
        code, said = run(line)
        assert code == expected, (line, said)
        ran += 1
    assert ran or all(line.split()[0] in ELSEWHERE for line in lines(page))
    if page.stem == "ci":
        summary = (folder / "summary.md").read_text(encoding="utf-8")
        assert "no difference" in summary
        assert "**PASS** Proven equal" in summary


def test_nothing_is_left_out_that_no_page_shows() -> None:
    first = {line.split()[0] for page in PAGES for line in lines(page)}
    assert set(ELSEWHERE) <= first
    assert first <= {"normdeploy", *ELSEWHERE}
