#!/usr/bin/env bash
# Make the transcript (docs/transcript.md) and the picture of the report from a real build: docs/make_readme.sh
# Needs normdeploy installed with the extra `models`, and Chromium (CHROMIUM names another binary).
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
COLUMNS=110 normdeploy build export/digits_cnn.toml --train --out "$work/build" 2>&1 | sed "s|$work/||g" > "$work/transcript.txt"
python3 - "$work/transcript.txt" <<'PYTHON'
import pathlib
import re
import sys

begin, end = "<!-- transcript: begin -->", "<!-- transcript: end -->"
readme = pathlib.Path("docs/transcript.md")
before, rest = readme.read_text(encoding="utf-8").split(begin)
_, after = rest.split(end)
lines = [line.rstrip() for line in pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").split("\n")]
# what a log has and a terminal shows for a moment only: how many such lines there are depends on the machine
lines = [line for line in lines if not re.match(r"\w+ \[\d+:\d\d\] |epoch \d+: ", line)]
kept = [line for line, following in zip(lines, [*lines[1:], ""]) if line or following]
readme.write_text(f"{before}{begin}\n```text\n" + "\n".join(kept).strip("\n") + f"\n```\n{end}{after}", encoding="utf-8")
PYTHON
"${CHROMIUM:-chromium}" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1060,1500 \
  --user-data-dir="$work/profile" --screenshot="$PWD/docs/report.png" "file://$work/build/digits_cnn.report.html" 2> /dev/null
