"""Runs code in a new interpreter, for what happens once per process: imports, exits, forks, environment variables."""

import os
import subprocess
import sys


def fresh_python(code: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The finished process of `python options -c code`, with these environment variables added."""
    return run_python(*options, "-c", code, **variables)


def run_python(*arguments: str, timeout: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
    """The finished process of `python arguments`, with these environment variables added."""
    return subprocess.run(
        [sys.executable, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=timeout,
    )
