"""Which Chromium there is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from normdeploy.errors import InputError, MissingDependencyError

ENVIRONMENT = "NORMDEPLOY_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge", "chrome")
_MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)


def find_browser(path: str | os.PathLike[str] | None = None) -> Path:
    """Return Chromium, or a browser made of it: what ``path`` or the environment names, else the first one found.

    Raises:
        InputError: what is named is no program.
        MissingDependencyError: nothing is named and none is found.
    """
    named = path if path is not None else os.environ.get(ENVIRONMENT)
    if named:
        found = shutil.which(os.fspath(named))
        if found is None:
            raise InputError(
                f"{os.fspath(named)} is no program; expected Chromium or a browser made of it: name another by "
                f"--browser or {ENVIRONMENT}"
            )
        return Path(found)
    for name in (*NAMES, *_MAC):
        if found := shutil.which(name):
            return Path(found)
    raise MissingDependencyError(
        f"no browser is found (looked for {', '.join(NAMES)}); expected Chromium, in which onnxruntime-web runs: "
        f"install it, or name one by --browser or {ENVIRONMENT}"
    )
