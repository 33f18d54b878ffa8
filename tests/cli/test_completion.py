"""Shells complete commands and options from what ``normdeploy completion`` prints."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest
from typer.testing import Result

Run = Callable[..., Result]


def completed(script: str, *words: str) -> list[str]:
    """What bash offers for the last of ``words``."""
    line = " ".join(f"'{word}'" for word in words)
    code = f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n_normdeploy_completion\n"
    done = subprocess.run(
        ["bash", "-c", code + 'printf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_leaves_files_alone(run: Run) -> None:
    script = run("completion", "bash").stdout
    assert completed(script, "normdeploy", "ex") == ["export"]
    assert {"build", "diff", "verify", "--version"} <= set(completed(script, "normdeploy", ""))
    assert completed(script, "normdeploy", "export", "--weights-k") == ["--weights-key"]
    assert "--markdown" in completed(script, "normdeploy", "diff", "a.onnx", "--")
    assert "--no-memory" in completed(script, "normdeploy", "bench", "--no")
    assert completed(script, "normdeploy", "export", "net.p") == []
    assert completed(script, "normdeploy", "nothing", "--w") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_it(run: Run, shell: str) -> None:
    script = run("completion", shell).stdout
    assert "export" in script
    assert "weights-key" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_another_shell_is_refused(run: Run) -> None:
    result = run("completion", "tcsh")
    assert result.exit_code == 2
    assert "'tcsh'" in result.stderr
    assert "bash, zsh, fish" in result.stderr
