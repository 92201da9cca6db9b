"""Kernels of this project as PTX, by a clang that can compile for NVIDIA's GPUs.

What NVIDIA's own compiler makes of them differs in details, but not in the instructions that they write out.
"""

import functools
import subprocess
from pathlib import Path

from kernels.strict import clang

ROOT = Path(__file__).parents[2]
TARGET = [
    *("-x", "cl", "-cl-std=CL1.2", "-target", "nvptx64-nvidia-nvcl", "-Xclang", "-target-cpu", "-Xclang", "sm_86"),
    *("-Xclang", "-finclude-default-header", "-D__OPENCL_VERSION__=120", "-Dasm=__asm__", "-w"),
    *("-include", str(Path(__file__).parent / "ptx_builtins.h"), "-mllvm", "-inline-threshold=1000000"),
    *("-I", str(ROOT / "csrc"), "-I", str(ROOT / "csrc" / "kernels"), "-O3", "-S", "-o", "-", "-"),
]


@functools.cache
def can_compile() -> bool:
    """Whether there is such a clang."""
    found = clang()
    if found is None:
        return False
    done = subprocess.run([found, "--print-targets"], capture_output=True, text=True, check=False)
    return "nvptx64" in done.stdout


def source_of(*files: str) -> str:
    """The texts of these files of csrc/kernels, one after the other, as the library builds them."""
    return "\n".join((ROOT / "csrc" / "kernels" / file).read_text() for file in files)


def to_ptx(source: str, *options: str) -> str:
    """The program's PTX, with its instructions for sm_90a as csrc/cl/ptx.h lets them out."""
    found = clang()
    assert found
    done = subprocess.run([found, *options, *TARGET], input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return done.stdout.replace("//@", "")
