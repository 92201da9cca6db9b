"""Writes the OpenCL sources given as arguments into one C++ file, as a table from path to text.

Paths are relative to the folder given as ROOT. A line `#include "folder/name.clh"` is replaced by the text of that
file, which is looked up by its path among the arguments; `kernels/` in front of the path, which headers that host code
reads too have there, is left out. A file that says `#pragma once` is taken once into every program: once here into the
text of a file, and by a guard where a program is made of the texts of several files.
"""

import re
import sys
from pathlib import Path

CHUNK = 12000  # compilers limit the length of one string literal; adjacent literals are joined


def literal(text: str) -> str:
    chunks = [text[i : i + CHUNK] for i in range(0, len(text), CHUNK)] or [""]
    return "\n".join(f'R"DLBCL({chunk})DLBCL"' for chunk in chunks)


def expand(name: str, sources: dict[str, str], seen: set[str]) -> str:
    text = sources[name]
    once = re.sub(r"^#pragma once\n", "", text, count=1, flags=re.MULTILINE)
    if once != text:
        if name in seen:
            return ""
        seen.add(name)
        guard = "DLB_ONCE_" + re.sub(r"\W", "_", name)
        text = f"#ifndef {guard}\n#define {guard}\n{once}#endif\n"
    include = re.compile(r'^#include "(?:kernels/)?(.*)"\n', re.MULTILINE)
    return include.sub(lambda m: expand(m[1], sources, seen), text)


def main(out: str, root: str, files: list[str]) -> None:
    sources = {Path(f).relative_to(root).as_posix(): Path(f).read_text() for f in files}
    rows = [f'  {{"{name}",\n{literal(expand(name, sources, set()))}}},\n' for name in sorted(sources)]
    Path(out).write_text(
        '#include "cl/embedded.h"\nnamespace dlb::cl {\nconst EmbeddedFile kEmbeddedFiles[] = {\n'
        + "".join(rows)
        + "  {nullptr, nullptr}};\n}  // namespace dlb::cl\n"
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
