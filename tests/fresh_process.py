"""Runs code in a new process, for what happens once per process: imports, exits, forks, environment variables."""

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

TIMEOUT = 300.0  # seconds


def environment_with(variables: dict[str, str | None]) -> dict[str, str]:
    """This process's environment with these variables added, or where they are None taken out."""
    both: dict[str, str | None] = {**os.environ, **variables}
    return {name: value for name, value in both.items() if value is not None}


def emulating(**parts: str) -> dict[str, str]:
    """DLBACKEND_EMULATE as it is, with these parts in place of its own."""
    now = os.environ.get("DLBACKEND_EMULATE", "")
    old = dict(entry.split("=") for entry in now.split(",") if entry)
    return {"DLBACKEND_EMULATE": ",".join(f"{name}={value}" for name, value in {**old, **parts}.items())}


def fresh_python(code: str, *options: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """The finished process of `python options -c code`, with these environment variables added."""
    return run_python(*options, "-c", code, **variables)


def run_python(*arguments: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """The finished process of `python arguments`, with these environment variables added; None takes one out."""
    return run_python_for(TIMEOUT, *arguments, **variables)


def run_python_for(seconds: float, *arguments: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """run_python() of what may take so long."""
    return subprocess.run(
        [sys.executable, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=environment_with(variables),
        timeout=seconds,
    )


class ForkServer:
    """tests/fork_server.py as a child of this process."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("fork_server.py"))]
        variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # NumPy starts no threads, which a fork would lose
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, env=variables)

    def answer(self, timeout: float | None) -> int:
        """The next line that the server says; TimeoutError after so many seconds."""
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        if not ready:
            raise TimeoutError
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fork server ended with status {self.process.wait()}")
        return int(line)

    def run(self, request: Mapping[str, object], timeout: float) -> int:
        """The exit status of a child that ran this request; TimeoutExpired as subprocess.run raises it."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        child = self.answer(None)
        try:
            return self.answer(timeout)
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            self.answer(None)
            raise subprocess.TimeoutExpired("forked_python", timeout) from None


@functools.cache
def fork_server() -> ForkServer:
    server = ForkServer()
    atexit.register(server.process.kill)
    return server


# Variables that are read before the code begins.
READ_AT_START = {"LD_PRELOAD", "PYTHONPATH", "DLBACKEND_AUTOLOAD", "DLBACKEND_FALLBACK", "DLBACKEND_TUNING"}


def forked_python(code: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """As fresh_python(code), two seconds sooner: forked from a process that has imported torch and dlbackend and done
    no more. Not for tests of what happens at import or while an interpreter starts.
    """
    if READ_AT_START & variables.keys():
        return fresh_python(code, **variables)
    with tempfile.TemporaryDirectory() as folder:
        files = {name: f"{folder}/{name}" for name in ("stdout", "stderr")}
        request = {"code": code, "variables": environment_with(variables), "folder": os.getcwd(), **files}
        status = fork_server().run(request, TIMEOUT)
        out, err = (Path(path).read_text() if os.path.exists(path) else "" for path in files.values())
    return subprocess.CompletedProcess(["forked_python"], status, out, err)
