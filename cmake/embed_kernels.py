"""Writes the OpenCL sources given as arguments into one C++ file, as a table from file name to text."""

import sys
from pathlib import Path

CHUNK = 12000  # compilers limit the length of one string literal; adjacent literals are joined


def literal(text: str) -> str:
    chunks = [text[i : i + CHUNK] for i in range(0, len(text), CHUNK)] or [""]
    return "\n".join(f'R"DLBCL({chunk})DLBCL"' for chunk in chunks)


def main(out: str, files: list[str]) -> None:
    rows = [f'  {{"{Path(f).name}",\n{literal(Path(f).read_text())}}},\n' for f in sorted(files)]
    Path(out).write_text(
        '#include "cl/embedded.h"\nnamespace dlb::cl {\nconst EmbeddedFile kEmbeddedFiles[] = {\n'
        + "".join(rows)
        + "  {nullptr, nullptr}};\n}  // namespace dlb::cl\n"
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
