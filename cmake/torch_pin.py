"""Build-time metadata: the version, and the torch minor that the wheel is compiled for, which its ABI depends on."""

import os
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, str | list[str]]:
    """Returns the version and the run-time requirement, e.g. `torch==2.13.*`; in an sdist made without torch, the
    supported range. DLBACKEND_BUILD_TAG is what scripts/build_wheels.sh adds to the version, e.g. `pt213`: wheels for
    several torch minors lie in one folder.
    """
    found = re.search(r'^version = "(.*)"', Path("pyproject.toml").read_text(), re.MULTILINE)
    assert found, "pyproject.toml names no version"
    tag = os.environ.get("DLBACKEND_BUILD_TAG", "")
    try:
        major, minor = version("torch").split(".")[:2]
        torch = f"torch=={major}.{minor}.*"
    except PackageNotFoundError:
        torch = "torch>=2.11,<2.14"
    return {"version": f"{found[1]}+{tag}" if tag else found[1], "dependencies": [torch]}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    return {"dependencies": True}
