"""How verification opens sessions."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort
import pytest

from normdeploy.verification.sides.sessions import Setting, open_session


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_threads_do_not_spin_between_runs(small, monkeypatch: pytest.MonkeyPatch, threads: int):
    opened: list[Any] = []
    session = ort.InferenceSession

    def remember(source: Any, options: Any, **others: Any) -> Any:
        opened.append(options)
        return session(source, options, **others)

    monkeypatch.setattr(ort, "InferenceSession", remember)
    open_session(small.plain, Setting(threads=threads))
    [options] = opened
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
