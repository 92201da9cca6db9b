"""The runner of PyTorch's tests: the list, worker processes that end or hang, the report of a folder like PyTorch's."""

import re
import time
from pathlib import Path

import pytest
from fresh_process import forked_python, run_python
from upstream import listed

RUN_FILES = str(Path(__file__).with_name("run_files.py"))


def test_the_list_can_be_read():
    listed.read_list()


def test_a_row_needs_a_reason_and_stands_once(tmp_path):
    path = tmp_path / "expected.txt"
    path.write_text("# about\n\na::b why it is\n")
    assert listed.read_list(path) == {"a::b": "why it is"}
    for text in ("a::b\n", "a::b why\na::b else\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match="a::b"):
            listed.read_list(path)


def test_listed_tests_must_fail():
    known = {"f::known": "", "f::passes": "", "f::gone": "", "g::other": ""}
    outcomes = {"f::known": "failed", "f::new": "failed", "f::passes": "passed", "f::fine": "passed"}
    some = listed.judge(outcomes, known)
    assert (some.new, some.known, some.stale) == (["f::new"], ["f::known"], ["f::passes"])
    whole = listed.judge(outcomes, known, "f::")
    assert whole.stale == ["f::gone", "f::passes"]
    assert not whole.good
    assert len(listed.complaints(whole)) == 3


def test_a_test_that_fails_on_one_class_of_devices_may_pass():
    known = {"f::passes": "on GPUs, sums have no order", "f::fails": "on CPUs, nothing is said"}
    verdict = listed.judge({"f::passes": "passed", "f::fails": "failed"}, known, "f::")
    assert (verdict.known, verdict.good) == (["f::fails"], True)


WORK = """
import os, signal, sys, time
sys.path.insert(0, "tests")
from upstream.workers import Lost, run_all

def work(item):
    if item == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if item == "exit":
        os._exit(3)
    if item == "hang":
        time.sleep(1000)
    return item * 2

items = ["a", "crash", "b", "hang", "exit", "c"]
for number, result in sorted(run_all(items, work, 2, 3.0), key=lambda pair: pair[0]):
    print(number, result.how if isinstance(result, Lost) else result)
"""


def test_work_goes_on_after_crashes_and_hangs():
    started = time.monotonic()
    done = forked_python(WORK)
    assert done.stdout.splitlines() == ["0 aa", "1 crash (SIGSEGV)", "2 bb", "3 hang (3 s)", "4 exit (3)", "5 cc"]
    assert time.monotonic() - started < 60


TESTS = """
import os, time
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests, dtypes
from torch.testing._internal.common_utils import TestCase, freeze_rng_state, run_tests

class TestSome(TestCase):
    @dtypes(torch.float32)
    def test_fine(self, device, dtype):
        self.assertEqual(torch.ones(2, device=device, dtype=dtype).device.type, "ocl")

    def test_frozen(self, device):
        with freeze_rng_state():
            first = torch.rand(3, device=device)
        self.assertEqual(torch.rand(3, device=device), first)

    def test_late(self, device):
        torch.zeros(2, device=device)[torch.tensor([5], device=device)]

    def test_later(self, device):
        self.assertEqual(torch.ones(2, device=device).sum(), 2)

    def test_wrong(self, device):
        self.assertEqual(1, 2)

    def test_crash(self, device):
        os.abort()

class TestOnNoDevice(TestCase):
    def test_never_on_ocl(self):
        raise AssertionError

class TestOfCPUAndCUDA(TestCase):
    def test_there(self, device):
        self.assertEqual(torch.ones(2, device=device).device.type, "ocl")

class TestOfCUDA(TestCase):
    def test_never(self, device):
        raise AssertionError

instantiate_device_type_tests(TestSome, globals())
instantiate_device_type_tests(TestOfCPUAndCUDA, globals(), only_for=("cpu", "cuda"))
instantiate_device_type_tests(TestOfCUDA, globals(), only_for="cuda")
"""


@pytest.mark.slow
def test_files_of_a_checkout(tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test/test_some.py").write_text(TESTS)
    (tmp_path / "version.txt").write_text("0.9.0\n")
    arguments = [RUN_FILES, str(tmp_path), "test_some.py", "--jobs", "1", "--out", str(tmp_path / "out")]
    assert "is of PyTorch 0.9.0" in run_python(*arguments).stderr
    done = run_python(*arguments, "--any-version")
    assert done.returncode == 1, done.stderr
    row = re.search(r"^test_some.py +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) ", done.stdout, re.MULTILINE)
    assert row is not None, done.stdout
    assert row.groups() == ("4", "0", "3", "0", "3", "0"), done.stdout
    assert "new failure: test_some.py::TestSomePRIVATEUSE1::test_late_ocl" in done.stdout
    assert "new failure: test_some.py::TestSomePRIVATEUSE1::test_crash_ocl" in done.stdout
    fine = run_python(*arguments, "--any-version", "-k", "fine")
    assert fine.returncode == 0, fine.stdout
