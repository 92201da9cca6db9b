"""Build-time metadata: pins the wheel to the torch minor that it is compiled against, which its ABI depends on."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the run-time requirement, e.g. `torch==2.13.*`; in an sdist made without torch, the supported range."""
    try:
        major, minor = version("torch").split(".")[:2]
    except PackageNotFoundError:
        return {"dependencies": ["torch>=2.11,<2.14"]}
    return {"dependencies": [f"torch=={major}.{minor}.*"]}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    return {"dependencies": True}
