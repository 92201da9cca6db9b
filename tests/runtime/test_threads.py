"""Many threads share one device: results stay right, a kernel is built once, streams and errors stay apart."""

import threading

import pytest
import torch
from fresh_process import forked_python, run_python_for

import dlbackend

DEVICE = "ocl:0"


def in_threads(count, function):
    results, errors = [None] * count, []

    def run(i):
        try:
            results[i] = function(i)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return results


def test_threads_share_the_device():
    def work(i):
        x = torch.full((5000,), float(i), device=DEVICE)
        for _ in range(50):
            x = x * 0.5 + i
        y = x.view(50, 100).t().contiguous()
        torch._foreach_add_([x, y], 1)
        return x.cpu(), y.cpu()

    for i, (x, y) in enumerate(in_threads(8, work)):
        expected = torch.full((5000,), float(i))
        for _ in range(50):
            expected = expected * 0.5 + i
        torch.testing.assert_close(x, expected + 1)
        torch.testing.assert_close(y, (expected + 1).view(100, 50))


def test_threads_on_streams_of_their_own():
    def work(i):
        stream = torch.ocl.Stream()
        with torch.ocl.stream(stream):
            x = torch.arange(1000, dtype=torch.float32, device=DEVICE) + i
            for _ in range(20):
                x = x + 1
            return x.cpu()

    for i, x in enumerate(in_threads(6, work)):
        assert x.equal(torch.arange(1000, dtype=torch.float32) + i + 20)


def test_one_build_for_all_threads():
    """In a new process, so that nothing is built yet; an empty cache folder, so that nothing is loaded."""
    code = """
import tempfile, os, threading
os.environ["DLBACKEND_CACHE_DIR"] = tempfile.mkdtemp()
import torch, dlbackend
x = torch.ones(100).to("ocl:0")
before = dlbackend.kernel_stats()["compiled"]
barrier = threading.Barrier(6)
def work():
    barrier.wait()
    x.exp()
threads = [threading.Thread(target=work) for _ in range(6)]
[t.start() for t in threads]; [t.join() for t in threads]
torch.ocl.synchronize()
assert dlbackend.kernel_stats()["compiled"] - before == 1, dlbackend.kernel_stats()
"""
    result = forked_python(code)
    assert result.returncode == 0, result.stderr


def test_allocation_from_many_threads(background_at_rest):
    before = torch.ocl.memory_allocated()

    def work(i):
        generator = torch.Generator().manual_seed(i)
        for _ in range(100):
            n = int(torch.randint(1, 100_000, (1,), generator=generator))
            x = torch.empty(n, device=DEVICE)
            y = x[: n // 2]
            del x
            y.fill_(i)
            assert n < 2 or y[-1:].cpu().item() == i

    in_threads(4, work)
    assert torch.ocl.memory_allocated() == before


def test_backward_in_threads():
    def work(i):
        x = torch.full((100,), float(i + 1), device=DEVICE, requires_grad=True)
        (x * x).sum().backward()
        return x.grad.cpu()

    for i, grad in enumerate(in_threads(4, work)):
        assert grad.equal(torch.full((100,), 2.0 * (i + 1)))
    assert dlbackend.kernel_stats()["launches"] > 0


WITHOUT_THREADS = """
import threading, torch, dlbackend
from torch.profiler import profile
assert torch.ocl.get_device_name(0).startswith("basic"), torch.ocl.get_device_name(0)
def count(x):
    for _ in range(3000): x.add_(1)
counters = [torch.zeros(4, device="ocl") for _ in range(3)]
threads = [threading.Thread(target=count, args=(x,)) for x in counters]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*(x.sum().item() for x in counters))
a = torch.eye(64, device="ocl", requires_grad=True)
with profile():
    (a @ a).sum().backward()
dlbackend.solvers.wait()
print(a.grad.sum().item())
"""


def test_a_driver_without_threads():
    """PoCL's device "basic" runs a command in the call that enqueues it, and what waits for a command in the call that
    ends it: two threads that make such calls at once wait for each other's locks, and so does a thread that sets a user
    event.
    """
    if "Portable Computing Language" not in torch.ocl.get_device_properties(0).platform:
        pytest.skip("of PoCL alone")
    done = run_python_for(120, "-c", WITHOUT_THREADS, POCL_DEVICES="basic")
    assert done.stdout.split() == ["12000.0"] * 3 + ["8192.0"], done.stderr
