#!/usr/bin/env python3
"""Makes a pack for this machine's device: what it compiles and measures for common networks, for others to begin with.

    python scripts/make_pack.py                    # all of it, into ./DEVICE.pack: for a release, or for a fleet
    python scripts/make_pack.py --find --out packs/    # what was measured alone, as text: kept in the repository
    python scripts/make_pack.py --programs --out packs/    # programs alone, which on NVIDIA serve later drivers too

With --programs the workloads of scripts/pack_workloads.py run one iteration in the default find mode, once knowing
nothing and once with the results that packs/ has: what they compile is what first iterations wait for. Otherwise each
network runs in find mode "normal" in a process of its own, inference and training, on caches that begin empty. Measured
results stay true until a solver's revision or the library's version changes; compiled programs only until their source
does, so they belong into a release and not into the repository. Run it on an idle machine.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from dlbackend import _C, outputs
from dlbackend.progress import progress

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "cmake"))
import pack_text  # noqa: E402
from pack_workloads import WORKLOADS  # noqa: E402

NETS = ("resnet18", "resnet50", "mobilenet_v2", "densenet121", "vgg11", "vit_b_16")

# Two steps, because the search for a problem begins with its second run: here it must find nothing left to do.
CHILD = """
import sys, torch, dlbackend
from benchmarks.cases import inference_step, training_step
name, batch, training, device = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "training", torch.device(sys.argv[4])
step = (training_step if training else inference_step)(name, batch, device)
for _ in range(2):
    step()
torch.ocl.synchronize()
dlbackend.solvers.wait()
print(dlbackend.solvers.stats()["misses"], dlbackend.kernel_stats()["compiled"])
"""


def file_name(index: int, ending: str) -> str:
    """The device's name and driver version as a file's name."""
    device = _C.device_properties(index)
    return re.sub(r"[^a-z0-9.]+", "-", f"{device.name} {device.driver_version}".lower()).strip("-") + ending


def fill(options: argparse.Namespace, environment: dict[str, str]) -> int:
    """Runs the networks, and returns how many failed."""
    failed = 0
    runs = [(net, batch, training) for net in options.nets for batch, training in options.batches]
    for net, batch, training in progress(runs, "make_pack"):
        arguments = [net, str(batch), training, f"ocl:{options.device}"]
        command = [sys.executable, "-c", CHILD, *arguments]
        done = subprocess.run(command, check=False, env=environment, cwd=ROOT, capture_output=True, text=True)
        words = done.stdout.split()
        text = f"{words[0]} problems new, {words[1]} programs compiled" if done.returncode == 0 else done.stderr[-2000:]
        print(f"{net}, batch {batch}, {training}: {text}", flush=True)
        failed += done.returncode != 0
    return failed


def run_workloads(options: argparse.Namespace, environment: dict[str, str]) -> int:
    """Runs the workloads, before and after the stores have what packs/ holds, and returns how many failed."""
    failed = 0
    for knowing in ("nothing", "packs/"):
        if knowing == "packs/":
            for found in sorted((ROOT / "packs").glob("*.txt")):
                pack = Path(environment["DLBACKEND_CACHE_DIR"], f"{found.stem}.pack")
                pack.write_bytes(pack_text.to_pack(pack_text.from_text(found.read_text())))
                command = [sys.executable, "-m", "dlbackend", "cache", "import", str(pack)]
                subprocess.run(command, check=True, env=environment, capture_output=True)
        for name in progress(options.workloads, f"make_pack, knowing {knowing}"):
            command = [sys.executable, str(ROOT / "scripts" / "pack_workloads.py"), name, f"ocl:{options.device}"]
            done = subprocess.run(command, check=False, env=environment, cwd=ROOT, capture_output=True, text=True)
            text = f"{done.stdout.strip()} programs compiled" if done.returncode == 0 else done.stderr[-2000:]
            print(f"{name}, knowing {knowing}: {text}", flush=True)
            failed += done.returncode != 0
    return failed


def report(pack: Path) -> int:
    """Says what a pack of programs holds. Returns 1 where nothing in it holds for other drivers, else 0."""
    content = _C.Pack(str(pack))
    keys = [content.read(index)[2] for index in range(len(content.items()))]
    portable = sum(key.split(b"\n")[0].count(b"|") == 2 for key in keys)  # platform|language|target
    size, packed = pack.stat().st_size / 2**20, len(zlib.compress(pack.read_bytes())) / 2**20
    print(f"{pack}: {portable} of {len(keys)} programs for later drivers; {size:.1f} MiB, {packed:.1f} MiB in a wheel")
    return 0 if portable else 1


def export(options: argparse.Namespace, target: Path, environment: dict[str, str]) -> int:
    """Writes the caches' content to the target. Returns 1 if that failed, else 0."""
    pack = Path(environment["DLBACKEND_CACHE_DIR"], "found.pack") if options.find else target
    kinds = ["--find"][: options.find] + ["--programs"][: options.programs]
    command = [sys.executable, "-m", "dlbackend", "cache", "export", *kinds, "--any-driver"]
    if subprocess.run([*command, str(pack)], check=False, env=environment).returncode:
        return 1
    if options.find:
        target.write_text(pack_text.to_text(pack_text.from_pack(pack.read_bytes())))
    return 0


def main() -> int:
    """Fills empty caches and exports them. Returns 1 if a network or the export failed, else 0."""
    parser = argparse.ArgumentParser(prog="scripts/make_pack.py", description=__doc__.splitlines()[0])
    about = "file, or folder for a file named after the device; one to be made ends with a /"
    parser.add_argument("--out", type=outputs.file_or_folder, default=".", help=about)
    parser.add_argument("--find", action="store_true", help="only results of measuring solvers, as text")
    parser.add_argument("--programs", action="store_true", help="only programs, of first iterations")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), metavar="NAME", help="with --programs")
    parser.add_argument("--nets", nargs="+", default=NETS, metavar="NET", help="torchvision's classification networks")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="ocl:N")
    parser.add_argument("--inference", type=int, nargs="*", default=[1], metavar="BATCH", help="batch sizes")
    parser.add_argument("--training", type=int, nargs="*", metavar="BATCH", help="4 on a CPU, else 32")
    options = parser.parse_args()
    if options.training is None:
        options.training = [4 if _C.device_properties(options.device).type == "cpu" else 32]
    options.batches = [(batch, "inference") for batch in options.inference]
    options.batches += [(batch, "training") for batch in options.training]
    ending = ".txt" if options.find else ".programs.pack" if options.programs else ".pack"
    target = options.out / file_name(options.device, ending) if options.out.is_dir() else options.out
    with tempfile.TemporaryDirectory() as folder:
        drivers = {"POCL_CACHE_DIR": folder + "/pocl", "CUDA_CACHE_PATH": folder + "/nvidia"}
        for path in drivers.values():
            os.makedirs(path)
        search = {"DLBACKEND_CACHE_DIR": folder, "DLBACKEND_PACKS": ""}
        if not options.programs:
            search["DLBACKEND_FIND_MODE"] = "normal"
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, **drivers, **search, "PYTHONPATH": paths}
        failed = run_workloads(options, environment) if options.programs else fill(options, environment)
        failed += export(options, target, environment)
        if options.programs and target.exists():
            failed += report(target)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
