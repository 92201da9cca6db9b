"""Includes point only to the folders that docs/architecture.md allows; imports of Python files lead round to none."""

import ast
import graphlib
import re
from pathlib import Path

CSRC = Path(__file__).parents[1] / "csrc"
INCLUDE = re.compile(r'^#include "(\w+)/', re.MULTILINE)
LAYERS = ["kernels", "cl", "codegen", "runtime", "solver", "primitives", "ops", "api", "bindings"]  # the lowest first
ALLOWED = {layer: set(LAYERS[: i + 1]) for i, layer in enumerate(LAYERS)} | {
    "compiler": {"cl", "compiler"},
    "distributed": {"cl", "codegen", "runtime", "distributed"},  # beside ops
}
ALLOWED["bindings"].add("distributed")
TORCH = re.compile(r"^#include <(ATen|c10|torch)/", re.MULTILINE)
WITHOUT_TORCH = {"cl", "codegen", "compiler"}


def sources() -> dict[Path, str]:
    files = [file for suffix in ("cpp", "h") for file in CSRC.rglob(f"*.{suffix}")]
    return {file.relative_to(CSRC): file.read_text() for file in files}


def test_no_include_points_upward() -> None:
    found = [
        (str(file), included)
        for file, text in sources().items()
        if len(file.parts) > 1
        for included in INCLUDE.findall(text)
        if included in ALLOWED and included not in ALLOWED[file.parts[0]]
    ]
    assert found == []


def test_lower_layers_do_without_torch() -> None:
    found = [str(file) for file, text in sources().items() if file.parts[0] in WITHOUT_TORCH and TORCH.search(text)]
    assert found == []


def test_every_folder_opens_with_a_page() -> None:
    folders = [folder for folder in CSRC.iterdir() if folder.is_dir()]
    assert len(folders) > len(LAYERS)
    assert [folder.name for folder in folders if not (folder / "README.md").is_file()] == []


def python_files() -> dict[str, Path]:
    """Our Python files, by the name under which they are imported."""
    root = CSRC.parent
    places = {"python/dlbackend": root / "python", "benchmarks": root, "scripts": root / "scripts"}
    files = [(file, base) for folder, base in places.items() for file in (root / folder).rglob("*.py")]
    return {
        ".".join(file.relative_to(base).with_suffix("").parts).removesuffix(".__init__"): file for file, base in files
    }


def imported(file: Path, known: set[str]) -> set[str]:
    """The known modules that a file imports anywhere, in functions and for types too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else node.module for name in names}
    return found & known


def test_python_files_do_not_import_each_other() -> None:
    files = python_files()
    assert {"dlbackend.tuning.result", "benchmarks.cases", "make_pack"} <= files.keys()
    # Every module runs behind its package's own file, which may import it.
    graph = {name: imported(file, files.keys() - {"dlbackend"}) for name, file in files.items()}
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names a loop
