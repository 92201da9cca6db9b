"""Writes the OpenCL sources given as arguments into one C++ file, as a table from path to text.

Paths are relative to the folder given as ROOT. A line `#include "folder/name.clh"` is replaced by the text of that
file, which is looked up by its path among the arguments.
"""

import re
import sys
from pathlib import Path

CHUNK = 12000  # compilers limit the length of one string literal; adjacent literals are joined


def literal(text: str) -> str:
    chunks = [text[i : i + CHUNK] for i in range(0, len(text), CHUNK)] or [""]
    return "\n".join(f'R"DLBCL({chunk})DLBCL"' for chunk in chunks)


def expand(text: str, sources: dict[str, str]) -> str:
    return re.sub(r'^#include "(.*)"\n', lambda m: expand(sources[m[1]], sources), text, flags=re.MULTILINE)


def main(out: str, root: str, files: list[str]) -> None:
    sources = {Path(f).relative_to(root).as_posix(): Path(f).read_text() for f in files}
    rows = [f'  {{"{name}",\n{literal(expand(text, sources))}}},\n' for name, text in sorted(sources.items())]
    Path(out).write_text(
        '#include "cl/embedded.h"\nnamespace dlb::cl {\nconst EmbeddedFile kEmbeddedFiles[] = {\n'
        + "".join(rows)
        + "  {nullptr, nullptr}};\n}  // namespace dlb::cl\n"
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
