"""Runs the test files of a PyTorch checkout for the device, and compares what failed with tests/upstream/expected.txt.

scripts/upstream_tests.sh starts it. PyTorch's generic test classes join in for any device of the PrivateUse1 slot; of
other classes nothing runs. pytest-xdist starts a worker anew that crashed, and pytest-timeout ends one that hangs.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from upstream import listed

ROOT = Path(__file__).resolve().parents[2]
FILES = """
    test_view_ops test_shape_ops test_indexing test_scatter_gather_ops test_sort_and_select test_type_promotion
    test_reductions test_torch test_nn nn/test_pooling nn/test_embedding nn/test_convolution test_native_mha
    test_segment_reductions test_linalg test_spectral_ops
    test_optim test_modules test_foreach test_transformers test_sparse test_sparse_csr test_unary_ufuncs
    test_binary_ufuncs test_tensor_creation_ops test_autograd test_ops_gradients test_ops_fwd_gradients
    test_nestedtensor test_masked test_serialization functorch/test_vmap functorch/test_eager_transforms nn/test_dropout
    nn/test_multihead_attention
"""
GRACE = 60  # seconds that pytest has to write its report after it was told to stop
STATUS_OK, STATUS_FAILED, STATUS_NONE = 0, 1, 5  # pytest's: no test at all is fine where -k chose


@dataclass
class FileRun:
    """`outcomes` by id are "passed", "skipped" or "failed", `messages` what the failed ones say; `trouble` is why the
    file did not run to its end.
    """

    file: str
    seconds: float
    outcomes: dict[str, str]
    messages: dict[str, str]
    trouble: str = ""


def command(file: str, options: argparse.Namespace, report: Path) -> list[str]:
    # The checkout's pytest.ini and conftest.py are left out: they need plugins of PyTorch's CI.
    words = [sys.executable, "-m", "pytest", file, "-q", "-c", os.devnull, "--rootdir=.", "--noconftest",
             "-p", "no:cacheprovider", f"--junit-xml={report}", "--tb=short", "--disable-warnings", "-p", "dlbackend",
             "-p", "tv_shim", "-p", "for_device",
             "-n", str(options.jobs), "--max-worker-restart=10000",
             f"--timeout={options.test_timeout:g}", "--timeout-method=thread"]  # fmt: skip
    return [*words, "-k", options.k] if options.k else words


def environment(jobs: int) -> dict[str, str]:
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    # The working directory is another one: an entry of PYTHONPATH may be relative. tv_shim is there for what PyTorch's
    # testing modules import, torchvision, whose compiled part need not fit this torch.
    given = [
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
        str(ROOT / "tests/nets"),
        str(ROOT / "tests/upstream"),
    ]
    path = os.pathsep.join(map(os.path.abspath, filter(None, given)))
    # Tests of gradients expect the same bits of two calls, between which a search may find a faster solution.
    defaults = {"OMP_NUM_THREADS": threads, "DLBACKEND_RATES": "derived", "DLBACKEND_FIND_MODE": "fast"}
    # Workers must collect tests in the same order, which for PyTorch's depends on sets of strings.
    forced = {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTORCH_TESTING_DEVICE_ONLY_FOR": "ocl"}
    return {**defaults, **os.environ, **forced}


def read_report(report: Path, file: str) -> tuple[dict[str, str], dict[str, str]]:
    """Outcomes and messages by id, from a JUnit report."""
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    for test in ET.parse(report).iter("testcase"):
        name = f"{file}::{test.get('classname', '').split('.')[-1]}::{test.get('name')}"
        bad = [child.get("message") or "" for child in test if child.tag in ("failure", "error")]
        if bad:
            outcomes[name] = listed.FAILED
            messages[name] = " ".join(bad[0].split())[:200]
        elif outcomes.get(name) != listed.FAILED:
            outcomes[name] = "skipped" if test.find("skipped") is not None else "passed"
    return outcomes, messages


def run_file(file: str, options: argparse.Namespace) -> FileRun:
    report = options.out / (file.removesuffix(".py").replace("/", ".") + ".xml")
    report.unlink(missing_ok=True)
    trouble, start = "", time.monotonic()
    with report.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(
            command(file, options, report),
            cwd=options.checkout / "test",
            env=environment(options.jobs),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            status = process.wait(options.file_timeout)
            if status not in (STATUS_OK, STATUS_FAILED) and not (status == STATUS_NONE and options.k):
                trouble = f"pytest ended with status {status}, see {log.name}"
        except subprocess.TimeoutExpired:
            trouble = f"stopped after {options.file_timeout:g} s"
            process.send_signal(signal.SIGINT)  # pytest then writes its report
        finally:
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    outcomes, messages = read_report(report, file) if report.exists() else ({}, {})
    return FileRun(file, time.monotonic() - start, outcomes, messages, trouble)


def judge(run: FileRun, known: Mapping[str, str], selected: bool) -> listed.Verdict:
    """A listed test that does not exist is stale, where the whole file ran."""
    return listed.judge(run.outcomes, known, "" if selected or run.trouble else f"{run.file}::")


def row(run: FileRun, verdict: listed.Verdict) -> str:
    counts = collections.Counter(run.outcomes.values())
    cells = (counts["passed"], counts["skipped"], counts[listed.FAILED], len(verdict.known), len(verdict.new),
             len(verdict.stale), f"{run.seconds:.0f} s")  # fmt: skip
    return f"{run.file:32}" + "".join(f"{cell:>9}" for cell in cells) + (f"  {run.trouble}" if run.trouble else "")


def check_version(checkout: Path, any_version: bool) -> None:
    import torch

    there = (checkout / "version.txt").read_text().strip()
    if there.split(".")[:2] != torch.__version__.split(".")[:2] and not any_version:
        sys.exit(f"the checkout is of PyTorch {there}, not {torch.__version__} (--any-version: never mind)")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/upstream_tests.sh", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a folder with PyTorch's test/ and version.txt")
    parser.add_argument("files", nargs="*", help="such as test_view_ops.py; without any all of a list")
    parser.add_argument("-k", help="only tests that match, as of pytest")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes (default: one a core)")
    parser.add_argument("--file-timeout", type=float, default=7200, metavar="S", help="for a file (default: 7200)")
    parser.add_argument("--test-timeout", type=float, default=300, metavar="S", help="for a test (default: 300)")
    parser.add_argument("--any-version", action="store_true", help="take a checkout of another version than torch's")
    parser.add_argument("--out", type=Path, default=ROOT / "build/upstream", help="folder for reports and logs")
    options = parser.parse_args()
    options.checkout, options.out = options.checkout.resolve(), options.out.resolve()
    return options


def main() -> int:
    options = parsed()
    # A shell's jobs in the background ignore SIGINT, and so would pytest, which is told by it to stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    check_version(options.checkout, options.any_version)
    options.out.mkdir(parents=True, exist_ok=True)
    known = listed.read_list()
    files = options.files or [f"{name}.py" for name in FILES.split()]
    heads = ("passed", "skipped", "failed", "listed", "new", "stale", "time")
    print(f"{'file':32}" + "".join(f"{head:>9}" for head in heads), flush=True)
    good, messages, said = True, {}, []
    for file in files:
        run = run_file(file, options)
        verdict = judge(run, known, bool(options.k))
        print(row(run, verdict), flush=True)
        good = good and verdict.good and not run.trouble
        messages.update(run.messages)
        said += listed.complaints(verdict)
    (options.out / "failures.json").write_text(json.dumps(messages, indent=1))
    print(*said, sep="\n")
    print(f"what failed says why in {options.out}/failures.json")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
