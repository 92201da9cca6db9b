"""Runs the exercises of hand-written kernels on the OpenCL implementation that the environment selects, and checks that
each kernel ran:

    python tests/kernels/run.py [--uninitialized] [--keep FOLDER] [FILE...]   # files of csrc/kernels, or parts of names

There are two processes for each device class, so that a device has the kernels of both; they run side by side, and
another takes over where the driver ends one. Under Oclgrind (scripts/oclgrind.sh) what it reports is counted. Prints a
row for each file, with the processor's seconds; the exit status is 1 where a kernel did not run, a call failed or
Oclgrind reported anything. The programs that were built are in FOLDER; where there is a clang, those of GPUs, generated
kernels among them, must be strict OpenCL C 1.2 (strict.py).
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))
CLASSES = ("cpu", "gpu")
KERNEL = re.compile(r"\bkernel (?:__attribute__\(\(.*?\)\) )?void (\w+)\(")


def kernels_of(file: str) -> set[str]:
    """The names of the kernels in this file of csrc/kernels."""
    text = (TESTS.parent / "csrc" / "kernels" / file).read_text()
    return set(KERNEL.findall(text))


@dataclass
class Outcome:
    """The outcome of running a file's exercises on one class."""

    file: str
    launched: list[str] = field(default_factory=list)  # of the file's kernels
    seconds: float = 0  # of processors
    errors: list[str] = field(default_factory=list)  # of calls
    reports: str = ""  # Oclgrind's


# --- The process of one class ----------------------------------------------------------------------------------------


def launched_by(call: Callable[[], object], errors: list[str]) -> set[str]:
    """The kernels that this call launches; what it raises is added to the errors."""
    import torch
    from kernels.exercises import NotHere
    from torch.profiler import ProfilerActivity, profile

    named: set[str] = set()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiled:
        torch.manual_seed(0)
        try:
            result = call()
            named |= result if isinstance(result, set) else set()
            torch.ocl.synchronize()
        except NotHere:
            pass
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}"[:1500])
    device = torch.autograd.DeviceType.PrivateUse1
    names = {event.key for event in profiled.key_averages() if event.device_type == device}
    return named | {name.partition(" ")[0] for name in names}  # kernels of solvers: "name [solver]"


def work(files: list[str]) -> None:
    """Runs the files' exercises in this process; a line of JSON for each, and before that its name."""
    log = Path(os.environ.get("OCLGRIND_LOG", os.devnull))
    from kernels.exercises import EXERCISES

    seen = 0
    launched: dict[Callable[[], object], set[str]] = {}  # a call that several files name is made once
    for file in files:
        print(json.dumps(file), flush=True)
        outcome, began = Outcome(file), time.process_time()
        calls = EXERCISES[file]
        names: set[str] = set()
        for call in calls if isinstance(calls, list) else [calls]:
            if call not in launched:
                launched[call] = launched_by(call, outcome.errors)
            names |= launched[call]
        outcome.launched = sorted(kernels_of(file) & names)
        outcome.seconds = time.process_time() - began
        text = log.read_text(errors="replace") if log.is_file() else ""
        outcome.reports, seen = text[seen:], len(text)
        print(json.dumps(asdict(outcome)), flush=True)


# --- The parent ------------------------------------------------------------------------------------------------------


def environment_of(name: str, device_class: str, folder: Path, uninitialized: bool) -> dict[str, str]:
    log = folder / f"{name}.log"
    oclgrind = {
        "OCLGRIND_LOG": str(log),
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_CHECK_API": "1",
        "OCLGRIND_NUM_THREADS": "1",
        "OCLGRIND_GLOBAL_MEM_SIZE": str(1 << 30),
        # Without optimising: that removes accesses that are to be checked, and Oclgrind 21.10 computes some loops wrong
        # that it has optimised (two pointers that change places). Then functions that are inline alone have no
        # definition. Oclgrind knows no prefetching and nothing of what clang makes of `restrict`.
        # DLB_ATOMIC_READS: kernels/common/atomic.clh.
        "OCLGRIND_BUILD_OPTIONS": "-cl-opt-disable -Dinline=static -Drestrict= -D__builtin_prefetch(...)= "
        "-DDLB_ATOMIC_READS",
        "OCLGRIND_COMPUTE_UNITS": "4",  # some kernels run only where there are several
        # OpenCL 1.2 promises 32 KiB; GPUs have 48 and drivers of CPUs more, and some solvers need that.
        "OCLGRIND_LOCAL_MEM_SIZE": str((1024 if device_class == "cpu" else 48) << 10),
        **({"OCLGRIND_UNINITIALIZED": "1"} if uninitialized else {}),
    }
    return {
        **os.environ,
        **oclgrind,
        "DLBACKEND_EMULATE": f"class={device_class},tensor_cores=emulated",
        "DLBACKEND_CACHE_DIR": str(folder / device_class),
        "DLBACKEND_PACKS": "",
        # Oclgrind ends a process in which two threads use it at once, so nothing is measured or built beside the calls.
        "DLBACKEND_FIND_MODE": "fast",
        "DLBACKEND_RATES": "derived",
        "DLBACKEND_COMPILE_PROCESSES": "0",
        "DLBACKEND_ENQUEUE_THREAD": "0",
        "DLBACKEND_FALLBACK": "silent",
    }


def outcomes(files: list[str], environment: dict[str, str]) -> Iterator[Outcome]:
    """The outcome of each file; the process is started again behind a file that ended it."""
    left, log = list(files), Path(environment["OCLGRIND_LOG"])
    while left:
        log.write_text("")
        command = [sys.executable, __file__, "--work", *left]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            current = left[0]
            for line in process.stdout:
                said = json.loads(line) if line.startswith(("{", '"')) else None
                if isinstance(said, str):
                    current = said
                elif said:
                    left.remove(said["file"])
                    yield Outcome(**said)
        if left:
            left.remove(current)
            yield Outcome(current, errors=[f"the process ended with status {process.returncode}"])


def side_by_side(files: list[str], folder: Path, uninitialized: bool) -> Iterator[tuple[str, Outcome]]:
    """The outcomes of both classes. Each has two processes, for half of the files; as many run as there are cores."""
    done: queue.SimpleQueue[tuple[str, Outcome] | None] = queue.SimpleQueue()

    def run(name: str, device_class: str, part: list[str]) -> None:
        try:
            for outcome in outcomes(part, environment_of(name, device_class, folder, uninitialized)):
                done.put((device_class, outcome))
        finally:
            done.put(None)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = []
        for device_class in reversed(CLASSES):  # what takes longest comes first
            shutil.rmtree(folder / device_class, ignore_errors=True)
            meant = meant_for(device_class, files)
            half = (len(meant) + 1) // 2
            for i, part in enumerate((meant[:half], meant[half:])):
                runs.append(pool.submit(run, f"{device_class}{i}", device_class, part))
        for _ in runs:
            yield from iter(done.get, None)
        for ended in runs:
            ended.result()


def meant_for(device_class: str, files: list[str]) -> list[str]:
    """Without what is for another class; such exercises would take long to find that out."""
    from kernels.exercises import ONE_CLASS

    others = tuple(f"{other}_" for other in CLASSES if other != device_class)
    return [
        file
        for file in files
        if not Path(file).name.startswith(others) and ONE_CLASS.get(file, device_class) == device_class
    ]


def check_language(programs: Path) -> int:
    """How many programs of this store are not strict OpenCL C 1.2; prints what clang says of them."""
    from kernels import strict
    from stores import contents

    if strict.clang() is None:
        print("no clang: the language is not checked")
        return 0
    sources = [key.decode().split("\n", 2)[1:] for key in contents(programs)]
    found = [text for options, source in sources if (text := strict.complaints(source, options))]
    for text in found:
        print("\n".join(text.splitlines()[:12]))
    print(f"{len(sources)} programs for GPUs: {len(found)} are not strict OpenCL C 1.2")
    return len(found)


def chosen(words: list[str]) -> list[str]:
    from kernels.exercises import EXERCISES

    return [file for file in EXERCISES if not words or any(word in file for word in words)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--uninitialized", action="store_true", help="Oclgrind also reports values that nobody wrote")
    parser.add_argument("--keep", type=Path, help="the folder for logs and programs; a temporary one")
    parser.add_argument("files", nargs="*", help="parts of names of files; all")
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.files)
        return 0
    files = chosen(arguments.files)
    launched: dict[str, set[str]] = {file: set() for file in files}
    bad = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for device_class, outcome in side_by_side(files, folder, arguments.uninitialized):
            launched[outcome.file] |= set(outcome.launched)
            wrong = bool(outcome.errors or outcome.reports)
            bad += wrong
            names = " ".join(outcome.launched) or "-"
            print(f"{device_class} {outcome.file}: {names}, {outcome.seconds:.1f} s{', WRONG' * wrong}", flush=True)
            for text in filter(None, (*outcome.errors, outcome.reports)):
                print("\n".join(f"    {line}" for line in text.splitlines()[:40]), flush=True)
        bad += check_language(folder / CLASSES[-1] / "programs")
    missed = {file: sorted(kernels_of(file) - launched[file]) for file in files}
    for file, lacking in missed.items():
        if lacking:
            print(f"{file}: never launched: {' '.join(lacking)}")
    total = sum(len(names) for names in launched.values())
    lost = sum(len(names) for names in missed.values())
    print(f"{len(files)} files, {total} kernels ran, {lost} did not, {bad} files or programs with errors or reports")
    return bool(bad or lost)


if __name__ == "__main__":
    sys.exit(main())
