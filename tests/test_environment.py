"""docs/environment.md names every environment variable, and each language reads them in one place."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = (ROOT / "docs" / "environment.md").read_text()
VARIABLE = re.compile(r"\bDLBACKEND_[A-Z][A-Z0-9_]*\b")
# Only these run where the package cannot be imported.
PYTHON_READERS = {
    "python/dlbackend/environment.py",
    "python/dlbackend/tools/opencl_probe.py",
    "python/dlbackend_autoload.py",
}


def texts(*paths: str) -> dict[str, str]:
    """These files, and the sources and documents in these folders, by path."""
    sources = {".cpp", ".h", ".cl", ".clh", ".c", ".py", ".pyi", ".sh", ".md", ""}
    found = [
        file for path in paths for file in ([ROOT / path] if (ROOT / path).is_file() else (ROOT / path).rglob("*"))
    ]
    files = [file for file in found if file.suffix in sources and file.is_file() and not file.is_symlink()]
    return {str(file.relative_to(ROOT)): file.read_text(errors="replace") for file in files}


def documented() -> set[str]:
    rows = [line.split("|")[1] for line in TABLE.splitlines() if line.startswith("| `")]
    return set(re.findall(r"`(\w+)`", " ".join(rows)))


def test_every_variable_is_in_the_table() -> None:
    code = texts("csrc", "python", "tests", "benchmarks", "examples", "scripts", ".ci", "docs", "README.md")
    used = {name for text in code.values() for name in VARIABLE.findall(text)}
    assert used
    assert used - documented() == set()


def test_the_table_has_no_variable_that_nobody_reads() -> None:
    code = "".join(texts("csrc", "python", "cmake", "tests/conftest.py").values())
    assert [name for name in sorted(documented()) if name not in code] == []


def test_cpp_reads_them_in_one_place() -> None:
    code = texts("csrc")
    assert [name for name, text in code.items() if re.search(r"\bgetenv\b", text)] == ["csrc/cl/settings.cpp"]
    read = set(re.findall(r'"([A-Z][A-Z0-9_]*)"', code["csrc/cl/settings.cpp"]))
    assert {"DLBACKEND_DEVICES", "HOME", "LOCAL_WORLD_SIZE"} <= read <= documented()


def test_python_reads_them_in_one_place() -> None:
    code = texts("python")
    readers = {name for name, text in code.items() if re.search(r"\bos\.(environ|getenv)\b", text)}
    assert readers == PYTHON_READERS
