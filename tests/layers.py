"""OpenCL layers, which stand between loader and driver: compiled for tests that need a driver to behave otherwise."""

import shutil
import subprocess
from pathlib import Path

import pytest


def build_layer(source: Path, folder: Path) -> str:
    """The library made of a layer's source, for OPENCL_LAYERS; skips the test where none can be made."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = folder / f"{source.stem}.so"
    build = [compiler, "-shared", "-fPIC", "-Wall", "-DCL_TARGET_OPENCL_VERSION=300", str(source), "-o", str(library)]
    built = subprocess.run(build, check=False, capture_output=True, text=True)
    if "cl_layer.h" in built.stderr:
        pytest.skip("these OpenCL headers know no layers")
    assert built.returncode == 0, built.stderr
    return str(library)
