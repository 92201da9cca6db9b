"""The host's cost of calls on tiny tensors, and how much of it is not the driver's: forward and backward of what
networks consist of, and steps of optimizers (host_calls.py has the list).

For each call it prints the caller's microseconds, launches, and, where valgrind is installed, the instructions that the
process executes for it, and how many of them are dlbackend's: those do not depend on what else the machine does.

An OpenCL layer (driver_time.c; it needs a C compiler and a loader that takes layers, which NVIDIA's does not) measures
the time within clEnqueueNDRangeKernel and clSetKernelArg; what remains of an op is Python, PyTorch's dispatcher and
dlbackend. The time of a turn of a plain Python loop tells processes apart that had a core to themselves from those
whose core's other hardware thread was busy, where all of this takes half as long again: compare only runs alike in it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import figure

SOURCE = Path(__file__).with_name("driver_time.c")
ROOT = Path(__file__).parents[1]

# The most that `a + b` may cost: microseconds beside CUDA in all, and beside the driver's own.
FIRST, WHOLE, OWN = "a + b, 16 elements", 8, 1.5
CALLS_OF_A_PROFILE = 10


def _layer(folder: str) -> str:
    """The layer's file, or "" where it cannot be made."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return ""
    layer = f"{folder}/driver_time.so"
    build = [compiler, "-O2", "-shared", "-fPIC", "-DCL_TARGET_OPENCL_VERSION=300", str(SOURCE), "-o", layer]
    done = subprocess.run(build, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"no OpenCL layer: {done.stderr.strip().splitlines()[-1][:300]}", flush=True)
        return ""
    return layer


def _run(layer: str, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": path, **({"OPENCL_LAYERS": layer} if layer else {}), **environment}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=variables)


def _error(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr or "no output").strip().splitlines()[-1][:300]


def counted(profile: str) -> tuple[int, int]:
    """Instructions of a profile of callgrind's: all, and those in dlbackend's library."""
    names: dict[str, str] = {}
    total = own = 0
    here, inclusive = False, False
    for line in profile.splitlines():
        if match := re.match(r"(c?)ob=\((\d+)\)(?: (.*))?", line):
            called, number, name = match.groups()
            if name:
                names[number] = name
            if not called:
                here = "libdlbackend" in names.get(number, "")
        elif line.startswith("calls="):
            inclusive = True  # the next line is the callee's cost
        elif re.match(r"[0-9+*-]", line):
            if not inclusive and len(fields := line.split()) == 2:
                total += int(fields[1])
                own += int(fields[1]) if here else 0
            inclusive = False
    return total, own


def _instructions(device: str, layer: str, folder: str) -> dict[str, dict[str, int]]:
    """By call's name; empty where there is no valgrind."""
    valgrind = shutil.which("valgrind")
    if valgrind is None or not layer:
        return {}
    command = [valgrind, "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/profile"]
    program = [sys.executable, "-W", "ignore", "-m", "benchmarks.host_calls", "instructions", device, layer]
    program.append(str(CALLS_OF_A_PROFILE))
    # Launches are lost, so a search would find every solver wrong.
    done = _run(layer, *command, *program, DLBACKEND_FIND_MODE="fast")
    if done.returncode != 0:
        print(f"no instructions counted: {_error(done)}", flush=True)
        return {}
    rows = {}
    for file in Path(folder).glob("profile.*"):
        text = file.read_text()
        if match := re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE):
            total, own = counted(text)
            rows[match[1].strip()] = {"instructions": total // CALLS_OF_A_PROFILE, "ours": own // CALLS_OF_A_PROFILE}
    return rows


def _row(times: dict[str, Any], peer: str) -> dict[str, Any]:
    name = times.pop("name")
    title, first = f"{name}: host cost", name == FIRST
    detail = "{launches} launches".format(**times)
    if "instructions" in times:
        detail += ", {instructions:,} instructions, {ours:,} of them ours".format(**times)
    measured = times["driver"] > 0 and peer != "cuda"
    detail += (
        " (whole {whole:.2f}, in clEnqueueNDRangeKernel and clSetKernelArg {driver:.2f}; "
        "median own {median_own:.2f}, whole {median:.2f}; a turn of a Python loop {turn:.0f} ns)"
        if measured
        else " (median {median:.2f}; a turn of a Python loop {turn:.0f} ns)"
    ).format(**times)
    goal = (OWN if measured else WHOLE) if first else None
    title += ", our own part" if measured else ""
    return figure("host", title, times["own" if measured else "whole"], "us", goal, detail) | times


def run(device: str, peer: str) -> list[dict[str, Any]]:
    """Measures each call, prints a line for it, returns its row: of the batch whose own part is least, microseconds a
    call.
    """
    with tempfile.TemporaryDirectory() as folder:
        layer = _layer(folder)
        done = _run(layer, sys.executable, "-m", "benchmarks.host_calls", "times", device, layer)
        if done.returncode != 0:
            print(f"host cost: {_error(done)}", flush=True)
            return [{"suite": "host", "case": "host cost", "error": _error(done)}]
        instructions = _instructions(device, layer, folder)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [_row(row | instructions.get(row["name"], {}), peer) for row in rows]
