"""What `a + b` of 16 elements costs the host, and how much of it is not the driver's.

An OpenCL layer (driver_time.c; it needs a C compiler and a loader that takes layers, which NVIDIA's does not) measures
the time within clEnqueueNDRangeKernel and clSetKernelArg; what remains of an op is Python, PyTorch's dispatcher and
dlbackend. The time of a turn of a plain Python loop tells processes apart that had a core to themselves from those
whose core's other hardware thread was busy, where all of this takes half as long again: compare only runs alike in it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import figure

SOURCE = Path(__file__).with_name("driver_time.c")

# Batches that no queue is full of. The least, as where the device is the CPU, its threads take time from most.
TIMES = """
import ctypes, json, statistics, time, torch, dlbackend
spent = ctypes.CDLL(LAYER).driver_seconds
spent.restype = ctypes.c_double
a, b = torch.randn(16).to(DEVICE), torch.randn(16).to(DEVICE)
OPS, rows, paces = 300, [], []
for batch in range(150):
    torch.ocl.synchronize()
    spent()
    start = time.perf_counter()
    for _ in range(OPS): a + b
    whole, driver = time.perf_counter() - start, spent()
    start = time.perf_counter()
    for turn in range(3000): pass
    paces.append((time.perf_counter() - start) / 3000 * 1e9)
    if batch >= 10: rows.append([seconds / OPS * 1e6 for seconds in (whole - driver, whole, driver)])
own, whole, driver = min(rows)
median_own, median_whole, _ = (statistics.median(times) for times in zip(*rows))
print(json.dumps({"own": own, "whole": whole, "driver": driver, "median_own": median_own, "median": median_whole,
                  "turn": statistics.median(paces)}))
"""


def _measure(device: str) -> dict[str, Any]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return {"error": "needs a C compiler"}
    with tempfile.TemporaryDirectory() as folder:
        layer = f"{folder}/driver_time.so"
        build = [compiler, "-O2", "-shared", "-fPIC", "-DCL_TARGET_OPENCL_VERSION=300", str(SOURCE), "-o", layer]
        code = f"DEVICE, LAYER = {device!r}, {layer!r}\n" + TIMES
        for command in build, [sys.executable, "-c", code]:
            environment = {**os.environ, "OPENCL_LAYERS": layer}
            done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
            if done.returncode != 0:
                return {"error": (done.stderr or "no output").strip().splitlines()[-1][:300]}
    times: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return times


def run(device: str, peer: str) -> list[dict[str, Any]]:
    """Measures it, prints a line, returns its row: the batch of ops whose own part is least, in microseconds an op."""
    name = "a + b, 16 elements: host cost"
    times = _measure(device)
    if "error" in times:
        print(f"{name}: {times['error']}", flush=True)
        return [{"suite": "host", "case": name, **times}]
    if peer == "cuda":
        detail = "(median {median:.2f}; a turn of a Python loop {turn:.0f} ns)".format(**times)
        return [figure("host", name, times["whole"], "us", 8, detail) | times]
    if times["driver"] == 0:
        print(f"{name}: this OpenCL loader takes no layers", flush=True)
        return [{"suite": "host", "case": name, **times}]
    detail = (
        "(whole {whole:.2f}, in clEnqueueNDRangeKernel and clSetKernelArg {driver:.2f}; "
        "median own {median_own:.2f}, whole {median:.2f}; a turn of a Python loop {turn:.0f} ns)".format(**times)
    )
    return [figure("host", name + ", our own part", times["own"], "us", 3.5, detail) | times]
