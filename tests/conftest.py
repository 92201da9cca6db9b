"""Fixtures that several test files use."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def fresh_python() -> Run:
    """Runs code in a new interpreter: fresh_python(code, *interpreter_options, VARIABLE=value...)."""

    def run(code: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **variables}
        command = [sys.executable, *options, "-c", code] if code else [sys.executable, *options]
        return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=300)

    return run
