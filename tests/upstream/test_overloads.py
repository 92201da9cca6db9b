"""Every overload of ATen answers on the device, with an error at most: no internal assert, no crash, no hang."""

import json
import random
from pathlib import Path

import pytest
import torch
from fresh_process import forked_python
from layers import build_layer
from stores import cache_with_programs
from upstream import overloads

SEED = 0
SAMPLE = 120  # overloads whose kernels run
RUN = """
import json, sys
sys.path.insert(0, {tests!r})
from upstream import overloads
print(json.dumps(list(overloads.run({names!r}, {seed}, 3, 2, 60.0))))
"""


def problems(names: list[str], **variables: str) -> list[tuple[str, str]]:
    code = RUN.format(tests=str(Path(__file__).parents[1]), names=names, seed=SEED)
    done = forked_python(code, OMP_NUM_THREADS="1", DLBACKEND_FALLBACK=None, PYTHONWARNINGS="ignore", **variables)
    assert done.returncode == 0, done.stderr
    return [(name, problem) for name, problem in json.loads(done.stdout.splitlines()[-1])]


def test_there_are_all_overloads():
    names = overloads.overloads()
    assert len(names) > 3000
    assert {"aten::add.Tensor", "aten::conv2d.padding", "aten::kaiser_window.beta_out"} <= set(names)


@pytest.mark.slow
def test_no_overload_ends_the_process(tmp_path):
    """Kernels do nothing, and what the host reads of their results is chance: what goes wrong must do so with them."""
    layer = build_layer(Path(__file__).parents[1] / "idle_layer.c", tmp_path)
    suspects = problems(overloads.overloads(), OPENCL_LAYERS=layer, DLBACKEND_CACHE_DIR=str(tmp_path / "idle"))
    names = sorted({name for name, _ in suspects})
    assert not names or problems(names, DLBACKEND_CACHE_DIR=cache_with_programs(tmp_path / "cache")) == []


@pytest.mark.slow
def test_no_overload_ends_the_process_with_its_kernels(tmp_path):
    names = random.Random(SEED).sample(overloads.overloads(), SAMPLE)
    assert problems(names, DLBACKEND_CACHE_DIR=cache_with_programs(tmp_path / "cache")) == []


def test_an_assert_is_noticed_that_the_cpu_does_not_have(monkeypatch):
    def call(name, seed, attempt, device):
        if device != "cpu" or name == "both":
            raise RuntimeError("false INTERNAL ASSERT FAILED at a.cpp:1")

    monkeypatch.setattr(overloads, "call", call)
    assert overloads.run_overload("one", 0, [4], "ocl") == ["attempt 4: false INTERNAL ASSERT FAILED at a.cpp:1"]
    assert overloads.run_overload("both", 0, [4], "ocl") == []


def test_a_seed_makes_the_same_call():
    schema = overloads.schemas()["aten::addmm"]

    def made():
        arguments = overloads.Arguments(random.Random("5 aten::addmm 1"))
        return [arguments.value(argument) for argument in schema.arguments]

    assert str(made()) == str(made())


def test_what_the_cpu_has_a_kernel_for_is_not_made_of_other_ops():
    """PyTorch computes some ops by their parts where a device has no kernel, in several launches for one."""

    def has(name, key):
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)

    parts = {
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
        and has(name, "CPU")
        and has(name, "CompositeImplicitAutograd")
        and not has(name, "PrivateUse1")
    }
    assert parts == {"aten::native_channel_shuffle"}  # a view and one copy
