"""Copies CMake's compile_commands.json for clang-tidy, which cannot read g++'s precompiled header, and prints the files
of it that hold these folders' sources: the sources, or what CMake makes of several (cmake/UnityBuild.cmake).

python scripts/tidy_database.py build/compile_commands.json build/tidy csrc/cl csrc/runtime
"""

import json
import re
import sys
from pathlib import Path


def sources(file: str) -> list[str]:
    """The sources that the file consists of: those that it includes, where CMake made it, or itself."""
    text = Path(file).read_text() if "/Unity/" in file else ""
    return re.findall(r'#include "(.*\.cpp)"', text) or [file]


def main(source: str, target: str, *folders: str) -> None:
    entries = json.loads(Path(source).read_text())
    for entry in entries:
        entry["command"] = re.sub(r"-Winvalid-pch|-include \S*cmake_pch\S*", "", entry["command"])
    Path(target).mkdir(parents=True, exist_ok=True)
    Path(target, "compile_commands.json").write_text(json.dumps(entries))
    wanted = [Path(folder).resolve() for folder in folders]
    for file in sorted({entry["file"] for entry in entries}):
        if any(folder in Path(cpp).parents for cpp in sources(file) for folder in wanted):
            print(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
