"""What calls on tiny tensors cost the host, and how much of it is not the driver's: `a + b` of 16 elements, and a
convolution and a batch norm of a training step.

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

SETUP = """
import torch.nn.functional as F
a, b = torch.randn(16).to(DEVICE), torch.randn(16).to(DEVICE)
x, w = torch.randn(1, 8, 8, 8).to(DEVICE), torch.randn(8, 8, 3, 3).to(DEVICE).requires_grad_()
scale, shift = torch.ones(8).to(DEVICE).requires_grad_(), torch.zeros(8).to(DEVICE).requires_grad_()
mean, variance = torch.zeros(8).to(DEVICE), torch.ones(8).to(DEVICE)
"""
CALLS = {
    "a + b, 16 elements": "a + b",
    "conv2d 3x3, training": "F.conv2d(x, w, padding=1)",
    "batch_norm, training": "F.batch_norm(x, mean, variance, scale, shift, True)",
}

# Batches that no queue is full of. The least, as where the device is the CPU, its threads take time from most.
TIMES = """
import ctypes, json, statistics, time, torch, dlbackend
spent = ctypes.CDLL(LAYER).driver_seconds
spent.restype = ctypes.c_double
exec(SETUP)
OPS = 300
exec("def batch():\\n    for _ in range(OPS): " + CALL)
rows, paces = [], []
for turn in range(150):
    torch.ocl.synchronize()
    spent()
    start = time.perf_counter()
    batch()
    whole, driver = time.perf_counter() - start, spent()
    start = time.perf_counter()
    for _ in range(3000): pass
    paces.append((time.perf_counter() - start) / 3000 * 1e9)
    if turn >= 10: rows.append([seconds / OPS * 1e6 for seconds in (whole - driver, whole, driver)])
own, whole, driver = min(rows)
median_own, median_whole, _ = (statistics.median(times) for times in zip(*rows))
print(json.dumps({"own": own, "whole": whole, "driver": driver, "median_own": median_own, "median": median_whole,
                  "turn": statistics.median(paces)}))
"""


def _measure(device: str, call: str) -> dict[str, Any]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return {"error": "needs a C compiler"}
    with tempfile.TemporaryDirectory() as folder:
        layer = f"{folder}/driver_time.so"
        build = [compiler, "-O2", "-shared", "-fPIC", "-DCL_TARGET_OPENCL_VERSION=300", str(SOURCE), "-o", layer]
        code = f"DEVICE, LAYER, SETUP, CALL = {device!r}, {layer!r}, {SETUP!r}, {call!r}\n" + TIMES
        for command in build, [sys.executable, "-c", code]:
            environment = {**os.environ, "OPENCL_LAYERS": layer}
            done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
            if done.returncode != 0:
                return {"error": (done.stderr or "no output").strip().splitlines()[-1][:300]}
    times: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return times


# What `a + b` may cost: microseconds beside CUDA in all, and beside the driver's own.
WHOLE, OWN = 8, 1.5


def _row(name: str, call: str, device: str, peer: str) -> dict[str, Any]:
    times = _measure(device, call)
    first = name == next(iter(CALLS))
    title = f"{name}: host cost"
    if "error" in times:
        print(f"{title}: {times['error']}", flush=True)
        return {"suite": "host", "case": title, **times}
    if peer == "cuda":
        detail = "(median {median:.2f}; a turn of a Python loop {turn:.0f} ns)".format(**times)
        return figure("host", title, times["whole"], "us", WHOLE if first else None, detail) | times
    if times["driver"] == 0:
        print(f"{title}: this OpenCL loader takes no layers", flush=True)
        return {"suite": "host", "case": title, **times}
    detail = (
        "(whole {whole:.2f}, in clEnqueueNDRangeKernel and clSetKernelArg {driver:.2f}; "
        "median own {median_own:.2f}, whole {median:.2f}; a turn of a Python loop {turn:.0f} ns)".format(**times)
    )
    return figure("host", title + ", our own part", times["own"], "us", OWN if first else None, detail) | times


def run(device: str, peer: str) -> list[dict[str, Any]]:
    """Measures each call, prints a line for it, returns its row: of the batch whose own part is least, microseconds a
    call.
    """
    return [_row(name, call, device, peer) for name, call in CALLS.items()]
