#!/usr/bin/env python3
"""Registers of the kernels in a program cache that an NVIDIA GPU filled, seen without one.

    pip install nvidia-cuda-nvcc-cu12
    python scripts/nvidia_registers.py ~/.cache/dlbackend/programs --match conv_gpu_implicit

NVIDIA's OpenCL driver gives programs back as PTX, and that is what the cache keeps; ptxas makes machine code of it and
counts. A compute unit has 65536 registers of 32 bits: with the registers of a work-item they say how many work-groups
run at once, where local memory does not say less. Uses only the package's reader of cache entries, no device.
"""

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import dlbackend  # noqa: F401 (the extension module is loaded through it)
from dlbackend import _C

REGISTERS = 65536  # in a compute unit, from compute capability 5.0 on
GRANULARITY = 256  # a warp gets a multiple of so many registers


def find_ptxas() -> str:
    pip = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"
    return shutil.which("ptxas") or (str(pip) if pip.exists() else "")


def highest_version(ptxas: str) -> str:
    """The PTX version of a ptxas: CUDA 12.5 and 12.6 know 8.5, 12.9 knows 8.8, and 13.0 began with 9.0."""
    release = re.search(r"release (\d+)\.(\d+)", subprocess.check_output([ptxas, "--version"], text=True))
    assert release, "ptxas does not tell its release"
    major, minor = map(int, release.groups())
    return f"8.{minor - (minor > 5)}" if major == 12 else f"9.{minor}"


def assemble(ptxas: str, ptx: str) -> str:
    target = re.search(r"\.target (sm_\w+)", ptx)
    assert target, "PTX names its target"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.ptx"
        path.write_text(re.sub(r"\.version [\d.]+", f".version {highest_version(ptxas)}", ptx, count=1))
        command = [ptxas, "-v", "-arch", target[1], str(path), "-o", str(Path(folder) / "program.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the programs folder of a cache")
    parser.add_argument("--match", default="", help="only kernels with this in their name")
    parser.add_argument("--ptxas", default=find_ptxas())
    options = parser.parse_args()
    if not options.ptxas:
        sys.exit("there is no ptxas: pip install nvidia-cuda-nvcc-cu12")
    store = _C.DiskCache("program", options.folder, 1 << 40, 1 << 30)
    print(f"{'registers':>9} {'spilled':>7} {'items':>5} {'at once':>7}  kernel and options")
    for name, _, _ in sorted(store.files()):
        fault, _, key, payload = store.read(name) or ("gone", "", b"", b"")
        begin = payload.find(b".version")
        if fault or begin < 0:
            continue
        ptx = payload[begin:].split(b"\0")[0].decode()
        macros = " ".join(re.findall(r"-D\S+", key.decode(errors="replace").split("\n//")[0][:2000]))
        items = dict(re.findall(r"\.entry (\w+)\([^)]*\)\s*\.reqntid (\d+)", ptx))
        if not any(options.match in kernel for kernel in re.findall(r"\.entry (\w+)", ptx)):
            continue
        report = r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers"
        for kernel, spilled, registers in re.findall(report, assemble(options.ptxas, ptx), re.DOTALL):
            if options.match not in kernel:
                continue
            size = int(items.get(kernel, 0))
            warp = -(-int(registers) * 32 // GRANULARITY) * GRANULARITY
            at_once = REGISTERS // (warp * -(-size // 32)) if size else "-"
            print(f"{registers:>9} {spilled:>7} {size or '-':>5} {at_once:>7}  {kernel} {macros}")


if __name__ == "__main__":
    main()
