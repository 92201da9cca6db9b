"""fork: a child of a process that used OpenCL gets an error that says what to do; one that did not may use it."""

import os

import torch
from fresh_process import fresh_python

import dlbackend  # noqa: F401

DEVICE = "ocl:0"


def in_child(function):
    """Runs function in a forked child; what it returned, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(function())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


def test_use_in_a_forked_child_is_a_clear_error():
    x = torch.ones(3, device=DEVICE)
    source = "kernel void f(global float* x) { x[get_global_id(0)] += 0; }"
    kernel = torch.ocl.compile_kernel(source, "f")
    for use in (
        lambda: kernel(x, global_size=3),
        lambda: torch.ocl.compile_kernel(source, "f"),
        lambda: x + 1,
        lambda: torch.ones(3, device=DEVICE),
        x.cpu,
        lambda: torch.ones(2).to(DEVICE),
        torch.ocl.synchronize,
        torch.ocl.current_stream,
    ):
        text = in_child(use)
        assert text.startswith("RuntimeError"), text
        assert "fork" in text
        assert "spawn" in text
    assert (x + 1).tolist() == [2, 2, 2]  # the parent goes on


def test_a_forked_child_may_ask_and_compute_on_the_cpu():
    x = torch.ones(3, device=DEVICE)
    assert in_child(torch.ocl.is_available) == "False"
    assert in_child(torch.ocl.device_count) == "0"
    assert in_child(lambda: (torch.ones(3) + 1).sum().item()) == "6.0"
    assert in_child(lambda: torch.manual_seed(3).initial_seed()) == "3"

    def drop():
        nonlocal x
        del x  # frees device memory of the parent: must neither hang nor crash
        return "ok"

    assert in_child(drop) == "ok"


def test_a_forked_child_drops_pinned_memory_that_the_device_used():
    x = torch.ones(1 << 20).pin_memory()
    y = x.to(DEVICE, non_blocking=True)

    def drop():
        nonlocal x
        del x
        return "ok"

    assert in_child(drop) == "ok"
    assert y.sum().item() == 1 << 20


def test_fork_before_use_and_spawn_after_use():
    code = """
import os, sys, torch, dlbackend
import torch.multiprocessing as mp
def child(rank, queue=None):
    assert torch.ones(3, device="ocl:0").sum().item() == 3
if __name__ == "__main__":
    pid = os.fork()
    if pid == 0:
        child(0)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    child(0)
"""
    result = fresh_python(code)
    assert result.returncode == 0, result.stderr


def test_data_loader_workers_with_a_dataset_on_the_device():
    """Workers that touch the device fail with the same message, not by hanging."""

    class OnDevice(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return torch.ones(2, device=DEVICE)

    torch.ones(1, device=DEVICE)
    loader = torch.utils.data.DataLoader(OnDevice(), num_workers=1)
    try:
        list(loader)
    except RuntimeError as error:
        assert "spawn" in str(error)  # noqa: PT017
    else:
        raise AssertionError("no error")
