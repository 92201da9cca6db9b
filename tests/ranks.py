"""Runs programs of several processes that form a torch.distributed group."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fresh_process import emulating, environment_with

TIMEOUT = 240.0  # seconds


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def run_ranks(
    program: Path, *arguments: str, size: int = 2, hosts: Sequence[str] | None = None
) -> list[subprocess.CompletedProcess[str]]:
    """The finished processes of `python program arguments`, one for each rank; each as if on the host named."""
    common: dict[str, str | None] = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    on_host = [emulating(host=host) for host in hosts] if hosts else [{}] * size
    pipe = subprocess.PIPE
    command = [sys.executable, "-W", "ignore", str(program), *arguments]
    processes = [
        subprocess.Popen(
            command,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=environment_with({**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **on_host[rank]}),
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        subprocess.CompletedProcess(command, process.returncode, *output)
        for process, output in zip(processes, outputs, strict=True)
    ]


def report(ranks: list[subprocess.CompletedProcess[str]]) -> dict[str, str]:
    """The failure of each case of a program that tells it in JSON, of all ranks; "" for none."""
    cases: dict[str, str] = {}
    for rank, process in enumerate(ranks):
        lines = [line for line in process.stdout.splitlines() if line.startswith('{"case"')]
        for found in map(json.loads, lines):
            problem = f"rank {rank}: {found['problem']}\n" if found["problem"] else ""
            cases[found["case"]] = cases.get(found["case"], "") + problem
        if process.returncode != 0 or process.stderr:
            cases["process"] = cases.get("process", "") + f"rank {rank}: {process.returncode} {process.stderr[-3000:]}"
    return cases


def say(case: str, problem: str) -> None:
    """Tells report() the outcome of a case."""
    print(json.dumps({"case": case, "problem": problem}), flush=True)
