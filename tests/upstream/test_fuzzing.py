"""scripts/fuzz.py and what it calls: random layouts, a fault that is found, a seed that repeats a call."""

import random
import re
from pathlib import Path

import pytest
import torch
from fresh_process import run_python
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import SampleInput
from upstream import cases, fuzzing

ROOT = Path(__file__).parents[2]
ADD = next(number for number, op in enumerate(op_db) if op.name == "add")
CASES = [case for case in cases.cases(["op_db"]) if case.number == ADD and case.dtype == "int64"]


def test_layouts_keep_the_values():
    rng = random.Random(3)
    seen = set()
    for _ in range(200):
        x = torch.arange(2 * 3 * 4 * 2).view(2, 3, 4, 2)
        y = fuzzing.laid_out(x, rng, overlapping=False)
        assert y.equal(x)
        seen |= {"gaps"} if y.untyped_storage().nbytes() > (y.storage_offset() + 48) * 8 + 8 else set()
        seen |= {"offset"} if y.storage_offset() else set()
        seen |= {"channels last"} if y.is_contiguous(memory_format=torch.channels_last) else set()
        seen |= {"permuted"} if list(y.stride()) != sorted(y.stride(), reverse=True) else set()
        z = fuzzing.laid_out(x, rng, overlapping=True)
        assert z.shape == x.shape
        assert set(z.flatten().tolist()) <= set(range(48))
        seen |= {"repeated"} if 0 in z.stride() else set()
    assert seen == {"gaps", "offset", "channels last", "permuted", "repeated"}
    for shape in ((), (0,), (1,), (3, 0, 2)):
        assert fuzzing.laid_out(torch.ones(shape), rng, overlapping=False).equal(torch.ones(shape))


def test_sizes_are_cut_together():
    sample = SampleInput(torch.ones(3, 5), args=(torch.ones(5, 7),))
    shapes = set()
    for seed in range(40):
        cut = fuzzing.narrowed(sample, random.Random(seed))
        assert cut.input.shape[1] == cut.args[0].shape[0]
        shapes.add((*cut.input.shape, cut.args[0].shape[1]))
    assert {(3, 0, 7), (3, 1, 7), (0, 5, 7), (3, 5, 6)} <= shapes


def test_one_tensor_stands_for_several():
    sample = fuzzing.sharing(SampleInput(torch.ones(2), args=(torch.zeros(2), torch.zeros(3))))
    assert sample.args[0].data_ptr() == sample.input.data_ptr()
    assert sample.args[1].data_ptr() != sample.input.data_ptr()


class FaultyAdd:
    """The database's entry of add, as a device would be whose kernel takes every operand for a contiguous one."""

    def __init__(self):
        self.entry = op_db[ADD]

    def __getattr__(self, name):
        return getattr(self.entry, name)

    def __call__(self, x, *args, **kwargs):
        if isinstance(x, torch.Tensor) and x.device.type != "cpu" and x.numel() > 1 and not x.is_contiguous():
            x = x.as_strided(x.shape, torch.empty(x.shape).stride(), 0)
        return self.entry(x, *args, **kwargs)


def test_a_fault_is_found_and_its_seed_repeats_it():
    forward = [case for case in CASES if case.kind == "forward"]
    faulty = [*op_db[:ADD], FaultyAdd(), *op_db[ADD + 1 :]]
    found = [fuzzing.run_seed(seed, forward, faulty) for seed in range(60)]
    failed = [call for call in found if call.cause.startswith("values of result 0 differ")]
    assert len(failed) > 3, found
    assert fuzzing.run_seed(failed[0].seed, forward, faulty) == failed[0]
    assert not any(fuzzing.run_seed(call.seed, forward).cause for call in failed)


@pytest.mark.slow
def test_the_command():
    arguments = [str(ROOT / "scripts/fuzz.py"), "--only", "neg", "--dtype", "int64", "--jobs", "1", "--seed", "5"]
    done = run_python(*arguments, "--count", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^8 calls in \d+ s: \d passed, \d refused, 0 failed$", done.stdout, re.MULTILINE)
    assert "no such case" in run_python(*arguments[:2], "nothing").stderr
