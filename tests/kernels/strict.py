"""Whether kernels keep to the words of OpenCL C 1.2, by clang's pedantic mode: some drivers' compilers refuse what
clang's own, which PoCL and Intel's runtime are made of, take as an extension, as NVIDIA's does macros with "..." .
"""

import functools
import shutil
import subprocess

# Warnings that are no question of the language stay off, a macro that is defined twice is one: OpenCL's own headers
# define some, and which depends on the driver.
OPTIONS = ["-Wno-everything", "-Wpedantic", "-Wno-newline-eof", "-Wno-static-in-inline", "-Wmacro-redefined", "-Werror"]
TARGET = ["-x", "cl", "-target", "spir64-unknown-unknown", "-fsyntax-only", "-D__OPENCL_VERSION__=120"]


@functools.cache
def clang() -> str | None:
    """The newest clang of the machine, or None."""
    names = ["clang", *(f"clang-{version}" for version in range(22, 12, -1))]
    return next((path for name in names if (path := shutil.which(name))), None)


def complaints(source: str, options: str = "-cl-std=CL1.2") -> str:
    """clang's messages about this program with these options of clBuildProgram; empty where it is strictly right."""
    found = clang()
    assert found, "no clang"
    wanted = [option for option in options.split() if option.startswith(("-D", "-cl-std"))]
    command = [found, *TARGET, *OPTIONS, *wanted, "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False).stderr
