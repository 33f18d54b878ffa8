"""Fail unless the wheel holds the package normdeploy, all of it, and nothing else."""

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

with zipfile.ZipFile(sys.argv[1]) as wheel:
    names = {name for name in wheel.namelist() if not name.endswith("/")}
found = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
expected = {
    str(path.relative_to(ROOT))
    for path in (ROOT / "normdeploy").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}
for title, rows in (("missing from the wheel", expected - found), ("foreign in the wheel", found - expected)):
    for row in sorted(rows):
        print(f"{title}: {row}", file=sys.stderr)
if found != expected:
    sys.exit(1)
print(f"{len(found)} files, all of normdeploy")
