"""Cold and warm start: what a first iteration costs with empty caches and in a second process, and whether new input
sizes compile kernels or grow memory. Each measurement is a fresh process."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import dlbackend
from benchmarks.fresh_caches import fresh_caches
from benchmarks.report import figure

FIRST_OP = """
import time, json, torch, dlbackend
start = time.perf_counter()
a = torch.ones(16, device=DEVICE); b = (a + a).cpu()
print(json.dumps({"seconds": time.perf_counter() - start, **dlbackend.kernel_stats()}))
"""

RESNET = """
import time, json, torch, dlbackend
from benchmarks.cases import cases
name = next(c for c in cases("nets") if c.name.startswith("resnet18 training"))
device = torch.device(DEVICE)
step = name.build(device)
torch.ocl.synchronize()
times = []
for _ in range(6):
    start = time.perf_counter(); step(); torch.ocl.synchronize(); times.append(time.perf_counter() - start)
stats = dlbackend.kernel_stats()
dlbackend.solvers.wait()  # so that a process that follows finds what this one has begun with something else for
print(json.dumps({"first": times[0], "steady": sorted(times[2:])[len(times[2:]) // 2], **stats}))
"""

SIZES = """
import json, resource, torch, dlbackend
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
                          torch.nn.Conv2d(8, 16, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                          torch.nn.Flatten(), torch.nn.Linear(16, 10)).to(DEVICE)
rss = lambda: int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20
def run(h, w):
    net.zero_grad()
    net(torch.randn(2, 3, h, w).to(DEVICE)).sum().backward()
    torch.ocl.synchronize()
for i in range(3): run(32 + i, 40 + i)
dlbackend.solvers.wait()  # the programs that measure the device's rates, once for a device and driver, and of searches
before, memory = dlbackend.kernel_stats()["compiled"], None
for i in range(300):
    run(24 + (i * 7) % 61, 24 + (i * 11) % 67)
    if i == 20: memory = rss()
dlbackend.solvers.wait()
print(json.dumps({"compiled": dlbackend.kernel_stats()["compiled"] - before, "growth_mib": rss() - memory}))
"""


IMPORT = """
import json, time
start = time.process_time()
import torch
print(json.dumps({"seconds": time.process_time() - start}))
"""


def _run(code: str, device: str, cache: str, **variables: str) -> dict[str, Any]:
    environment = {**os.environ, **fresh_caches(cache), **variables}
    command = [sys.executable, "-c", f"DEVICE = {device!r}\n" + code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"error": (done.stderr or "no output").strip().splitlines()[-1][:300]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def run(device: str, peer: str) -> list[dict[str, Any]]:
    """Measures all of it, prints a line each, returns the rows."""
    gpu = peer == "cuda"
    rows: list[dict[str, Any]] = []

    def report(name: str, value: float, unit: str, goal: float, detail: str = "") -> None:
        rows.append(figure("startup", name, value, unit, goal, detail))

    with tempfile.TemporaryDirectory() as cache:
        first_cold = _run(FIRST_OP, device, cache)
        warm_starts = [_run(FIRST_OP, device, cache) for _ in range(5)]
        first_warm = sorted(warm_starts, key=lambda row: row.get("seconds", float("inf")))[2]
        cold, warm = _run(RESNET, device, cache), _run(RESNET, device, cache)
        packed: dict[str, Any] = {}
        if any(Path(dlbackend.__file__).parent.glob("packs/*.pack")):  # a release's
            with tempfile.TemporaryDirectory() as other:  # ":" names no pack, which leaves those of the package
                packed = _run(RESNET, device, other, DLBACKEND_PACKS=":")
        sizes = _run(SIZES, device, cache)
        imports: dict[str, list[float]] = {"0": [], "1": []}
        for _ in range(5):  # alternating; CPU time and minimum, because other processes disturb
            for switch, values in imports.items():
                values.append(_run(IMPORT, device, cache, DLBACKEND_AUTOLOAD=switch)["seconds"])
    if importlib.metadata.entry_points(group="torch.backends", name="dlbackend"):
        report("import torch: added by autoload", (min(imports["1"]) - min(imports["0"])) * 1e3, "ms", 150)
    measured = {
        "first op, cold": first_cold,
        "first op": first_warm,
        "resnet18, cold": cold,
        "resnet18": warm,
        "resnet18, packs": packed,
        "sizes": sizes,
    }
    for name, row in measured.items():
        if "error" in row:
            print(f"{name}: {row['error']}", flush=True)
            rows.append({"suite": "startup", "case": name, **row})
    if "error" not in first_warm:
        report(
            "first op of a process, warm caches (median of 5)", first_warm["seconds"] * 1e3, "ms", 300 if gpu else 50
        )
    if "error" not in cold and "error" not in warm:
        report(
            "resnet18 first training iteration, empty caches",
            cold["first"],
            "s",
            2 if gpu else 40,
            f"({cold['compiled']} programs compiled in {cold['compile_seconds']:.1f} s)",
        )
        if "first" in packed:
            report(
                "  with the packs of the package",
                packed["first"],
                "s",
                2 if gpu else 40,
                f"({packed['compiled']} programs compiled, {packed['loaded_from_pack']} out of packs)",
            )
        report(
            "  second process, beyond a steady iteration",
            warm["first"] - warm["steady"],
            "s",
            1 if gpu else 2,
            f"({warm['compiled']} compiled, {warm['loaded']} loaded)",
        )
    if "error" not in sizes:
        report("300 input sizes: kernels compiled after the first 3", sizes["compiled"], "kernels", 0)
        report("300 input sizes: host memory growth", sizes["growth_mib"], "MiB", 64)
    return rows
