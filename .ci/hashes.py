"""Write the hashes of what pip would install, from its report: ``python .ci/hashes.py REPORT > hashes.txt``.

pip install --dry-run --ignore-installed --report REPORT -c constraints.txt '.[dev]'
"""

import json
import sys
from pathlib import Path

report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
wheels = [item for item in report["install"] if "archive_info" in item["download_info"]]  # all but this package
rows = [
    f"{item['metadata']['name']}=={item['metadata']['version']} "
    f"--hash=sha256:{item['download_info']['archive_info']['hashes']['sha256']}"
    for item in wheels
]
print("# The wheels that were tested: Python 3.11, Linux x86-64, torch for the CPU. Made by .ci/hashes.py.")
print("\n".join(sorted(rows, key=str.lower)))
