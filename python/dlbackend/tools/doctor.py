"""python -m dlbackend doctor: checks each link from torch to a computed result, and says how to mend a broken one.

That the package imports at all has been checked by then: its ImportError names the cure by itself.
"""

import glob
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch

import dlbackend_autoload
from dlbackend import _C, __version__, environment, ocl
from dlbackend.tools import opencl_probe

NO_DRIVER = """Install one:
  NVIDIA, AMD, Intel GPUs: the vendor's driver brings it; Mesa's is mesa-opencl-icd
  any CPU, Debian or Ubuntu: apt-get install pocl-opencl-icd
  any x86-64 CPU, without root: pip install intel-opencl-rt intel-cmplr-lib-rt"""


@dataclass
class Finding:
    """One line of the report. `advice` is what to do; a finding with ok=False makes the doctor's exit status 1."""

    ok: bool
    what: str
    advice: str = ""


def check_autoload() -> Iterator[Finding]:
    off = environment.autoload_turned_off()
    registered = any(point.name == "dlbackend" for point in entry_points(group="torch.backends"))
    other = dlbackend_autoload.other_accelerator(torch)
    if off:
        yield Finding(True, f"autoload is off ({off}=0): programs need `import dlbackend`")
    elif not registered:
        yield Finding(True, "the package is not installed, only on the path: programs need `import dlbackend`")
    elif other:
        yield Finding(
            True,
            f"torch can use {other} here: programs need `import dlbackend` to get ocl",
            f"PyTorch has one accelerator slot. While ocl holds it, backward passes on {other} fail.",
        )
    else:
        yield Finding(True, "`import torch` alone brings the device")


def _driver_hint() -> str:
    """Explains why a library has no device, as far as files can tell."""
    nvidia = glob.glob("/usr/lib*/libnvidia-opencl.so*") + glob.glob("/usr/lib/*/libnvidia-opencl.so*")
    if nvidia and not glob.glob("/etc/OpenCL/vendors/nvidia*"):
        line = f"echo {nvidia[0]} > /etc/OpenCL/vendors/nvidia.icd"
        return f"NVIDIA's OpenCL library is installed but not registered. As root: mkdir -p /etc/OpenCL/vendors; {line}"
    locked = [node for node in glob.glob("/dev/dri/renderD*") if not os.access(node, os.R_OK | os.W_OK)]
    if locked:
        return f"You may not use {locked[0]}. Add yourself to its group (usermod -aG render $USER), then log in again."
    if environment.may_hide_drivers():
        return "OCL_ICD_VENDORS or OCL_ICD_FILENAMES is set, and hides drivers that it does not name. Unset it."
    return NO_DRIVER


def check_opencl() -> Iterator[Finding]:
    program = [sys.executable, opencl_probe.__file__]
    run = subprocess.run(program, check=False, capture_output=True, text=True, timeout=120)
    try:
        libraries: list[dict[str, Any]] = json.loads(run.stdout)
    except ValueError:
        cause = f"ended the process with status {run.returncode}"
        yield Finding(False, f"an OpenCL driver {cause}: {run.stderr[-300:]}", "Update it, or remove its .icd file.")
        return
    loaded = [library for library in libraries if "error" not in library]
    if not loaded:
        tried = "; ".join(library["error"] for library in libraries)
        advice = "apt-get install ocl-icd-libopencl1, and a driver. " + NO_DRIVER
        yield Finding(False, f"no OpenCL library loads ({tried})", advice)
        return
    used = loaded[-1]
    yield Finding(True, f"OpenCL library {used['library']}")
    for platform in used["platforms"]:
        names = ", ".join(platform["devices"])
        advice = "" if names else "Its driver found no hardware that it supports, or cannot write its cache folder."
        yield Finding(True, f"platform {platform['name']}: {names or 'no device'}", advice)
    if not any(platform["devices"] for platform in used["platforms"]):
        yield Finding(False, "no OpenCL device", _driver_hint())


def check_devices() -> Iterator[Finding]:
    count = ocl.device_count()
    chosen = environment.devices()
    if count == 0 and chosen is not None:
        yield Finding(False, f"DLBACKEND_DEVICES={chosen} selects no device", "Unset it, or name one of the above.")
    elif count == 0:
        yield Finding(False, "no device can be used", 'Lines above that begin with "dlbackend:" say why.')
    for index in range(count):
        yield check_result(index)


def check_result(index: int) -> Finding:
    """A product on the device, against the CPU."""
    name = f"ocl:{index} ({ocl.get_device_name(index)})"
    x = torch.arange(1.0, 65.0).reshape(8, 8)
    try:
        y = (x.to(f"ocl:{index}") @ x.to(f"ocl:{index}") + 1).cpu()
    except RuntimeError as error:
        return Finding(
            False,
            f"{name} fails: {str(error).splitlines()[0]}",
            "Update its driver, or leave it out with DLBACKEND_DEVICES.",
        )
    if not torch.allclose(y, x @ x + 1):
        return Finding(False, f"{name} computes wrong results", "Update its driver. DLBACKEND_DEVICES leaves it out.")
    return Finding(True, f"{name} computes")


def check_cache() -> Iterator[Finding]:
    folder = _C.cache_dir()
    if folder and os.access(folder, os.W_OK):
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        yield Finding(True, f"cache folder {folder} ({size / 2**20:.0f} MiB)")
    else:
        advice = "Kernels are compiled anew in every process. Let DLBACKEND_CACHE_DIR name a folder you can write."
        yield Finding(False, f"cache folder {folder or '(none)'} cannot be written", advice)


def main() -> int:
    """Prints the findings; 1 if something does not work."""
    print(f"dlbackend {__version__} for torch {_C.torch_minor()}, with torch {torch.__version__}")
    healthy = True
    for check in (check_autoload, check_opencl, check_devices, check_cache):
        for finding in check():
            healthy &= finding.ok
            print(f"[{'ok' if finding.ok else 'FAIL'}] {finding.what}")
            if finding.advice:
                print("    " + finding.advice.replace("\n", "\n    "))
    print("all is well" if healthy else "something is missing: see the lines marked FAIL")
    return 0 if healthy else 1
