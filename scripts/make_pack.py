#!/usr/bin/env python3
"""Makes a release's pack for this machine's device: what it measures for common networks, and on NVIDIA compiles.

    python scripts/make_pack.py                  # into packs/, from where the build takes it
    python scripts/make_pack.py --out /tmp/      # into another folder

The workloads of scripts/pack_workloads.py run on caches that begin empty, each in a process of its own, in find mode
"normal": what they measure are the pack's choices. Where programs serve later drivers too (docs/stores.md), they then
run as a user's first iteration does, once knowing nothing and once with those choices, and the pack has what that
compiles. The build refuses a pack of another version or of solvers that are no more (cmake/ship_packs.py), so make it
when version and solvers are those of the release. Run it on an idle machine; it needs torchvision.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pack_workloads import WORKLOADS

from dlbackend import _C, outputs
from dlbackend.progress import progress

ROOT = Path(__file__).resolve().parent.parent


def file_name(index: int) -> str:
    """The device's name and driver version as a pack's name."""
    device = _C.device_properties(index)
    return re.sub(r"[^a-z0-9.]+", "-", f"{device.name} {device.driver_version}".lower()).strip("-") + ".pack"


def environment_with(cache: Path, **variables: str) -> dict[str, str]:
    """For processes with this cache folder, of drivers too, and without packs."""
    drivers = {"POCL_CACHE_DIR": str(cache / "pocl"), "CUDA_CACHE_PATH": str(cache / "nvidia")}
    for path in drivers.values():
        os.makedirs(path, exist_ok=True)
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    own = {"DLBACKEND_CACHE_DIR": str(cache), "DLBACKEND_PACKS": "", "PYTHONPATH": paths}
    return {**os.environ, **drivers, **own, **variables}


def run_workloads(options: argparse.Namespace, how: str, environment: dict[str, str]) -> None:
    """Runs each in a process, and says what it printed. RuntimeError where one fails."""
    for name in progress(options.workloads, f"make_pack, {how}"):
        command = [sys.executable, str(ROOT / "scripts" / "pack_workloads.py"), name, f"ocl:{options.device}"]
        done = subprocess.run(command, check=False, env=environment, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{name}, {how}: {done.stderr[-2000:]}")
        print(f"{name}, {how}: {done.stdout.strip()}", flush=True)


def measure(options: argparse.Namespace, cache: Path) -> None:
    """Fills the cache's find store with the workloads' choices."""
    run_workloads(options, "measuring", environment_with(cache, DLBACKEND_FIND_MODE="normal"))


def compile_first_iterations(options: argparse.Namespace, cache: Path, choices: Path) -> None:
    """Fills the cache with what first iterations compile, and with the choices of another cache."""
    run_workloads(options, "knowing nothing", environment_with(cache))
    shutil.rmtree(cache / "find")
    shutil.copytree(choices / "find", cache / "find")
    run_workloads(options, "knowing the choices", environment_with(cache))


def export(target: Path, cache: Path, *kinds: str) -> None:
    """Writes the cache's content to the target, for every version of the driver. RuntimeError if that fails."""
    command = [sys.executable, "-m", "dlbackend", "cache", "export", "--any-driver", *kinds, str(target)]
    if subprocess.run(command, check=False, env=environment_with(cache)).returncode:
        raise RuntimeError(f"{target} could not be written")


def main() -> int:
    """Measures, compiles and exports. Returns 1 where a part failed: no pack is written then."""
    parser = argparse.ArgumentParser(prog="scripts/make_pack.py", description=__doc__.splitlines()[0])
    about = "file, or folder for a file named after device and driver (packs/); one to be made ends with a /"
    parser.add_argument("--out", type=outputs.file_or_folder, default=ROOT / "packs", help=about)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="ocl:N")
    options = parser.parse_args()
    target = options.out / file_name(options.device) if options.out.is_dir() else options.out
    with tempfile.TemporaryDirectory() as folder:
        choices, programs = Path(folder, "choices"), Path(folder, "programs")
        try:
            measure(options, choices)
            if _C.device_properties(options.device).cache_tag.startswith("NVIDIA CUDA|"):
                compile_first_iterations(options, programs, choices)
                export(target, programs)
            else:
                export(target, choices, "--find")
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
