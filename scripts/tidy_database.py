"""Copies CMake's compile_commands.json for clang-tidy, which cannot read g++'s precompiled header.

python scripts/tidy_database.py build/compile_commands.json build/tidy
"""

import json
import re
import sys
from pathlib import Path


def main(source: str, folder: str) -> None:
    entries = json.loads(Path(source).read_text())
    for entry in entries:
        entry["command"] = re.sub(r"-Winvalid-pch|-include \S*cmake_pch\S*", "", entry["command"])
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, "compile_commands.json").write_text(json.dumps(entries))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
