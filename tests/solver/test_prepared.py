"""Convolutions with constant weights: what a solver makes of them once is never used for other weights."""

import gc
import threading

import pytest
import torch
import torch.nn.functional as F
from common import on_gpu_class

import dlbackend
from dlbackend import _C

SOLVERS = [name.partition(":")[2] for name in _C.solver_names() if name.startswith("conv_fwd:")]
CPU_LIKE = not on_gpu_class()
only_where_kept = pytest.mark.skipif(not CPU_LIKE, reason="solvers for GPUs read weights where they lie")


def convolve(x, w, stride=1):
    f = w.size(-1)
    return torch.ops.dlbackend.convolution_bounded(x, w, None, [stride] * 2, [f // 2] * 2, [1, 1], 1, 0.0, 6.0, True)


def check(x, w, stride=1, tolerance=1e-5):
    expected = F.conv2d(x.cpu().double(), w.cpu().double(), None, stride, w.size(-1) // 2).clamp(0, 6)
    torch.testing.assert_close(convolve(x, w, stride).cpu().double(), expected, rtol=tolerance, atol=10 * tolerance)


def tensors(format=torch.contiguous_format, dtype=torch.float32, size=9, c=40, k=36, f=3):
    x, w = torch.randn(2, c, size, size), torch.randn(k, c, f, f) / (c * f * f) ** 0.5
    return [t.to(dtype).contiguous(memory_format=format).to("ocl") for t in (x, w)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("solver", ["", *SOLVERS])
def test_changes_are_noticed(solver, format, dtype):
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    x, w = tensors(format, dtype)
    if solver:
        _C.force_solver(f"conv_fwd:{solver}")
        try:
            convolve(x, w)
        except RuntimeError:
            pytest.skip("the solver is not applicable")
    for change in (lambda: None, lambda: w.mul_(-1.5), w[3:5].zero_, lambda: w.copy_(torch.randn_like(w))):
        change()
        check(x, w, 1, tolerance)
        check(x, w, 1, tolerance)
    w.data = torch.randn_like(w)
    check(x, w, 1, tolerance)


@only_where_kept
def test_packed_once_and_freed(background_at_rest):
    _C.force_solver("conv_fwd:cpu_implicit")
    x, w = tensors()
    convolve(x, w)
    torch.ocl.synchronize()
    before = dlbackend.kernel_stats()["launches"]
    y = convolve(x, w)
    assert dlbackend.kernel_stats()["launches"] - before == 1  # it packs no more
    gc.collect()
    held = torch.ocl.memory_allocated()
    bytes_of = [t.untyped_storage().nbytes() for t in (x, w, y)]
    assert held >= sum(bytes_of) + w.untyped_storage().nbytes()
    del w
    gc.collect()
    assert torch.ocl.memory_allocated() <= held - 2 * bytes_of[1]


@only_where_kept
def test_other_sizes_share_it():
    _C.force_solver("conv_fwd:cpu_implicit")
    x, w = tensors(c=64, k=64)
    for size in (9, 17, 30, 9, 5):
        check(torch.randn(1, 64, size, size, device="ocl"), w)
    views = torch.randn(2, 64, 64, 3, 3, device="ocl") / 24  # two weights in one memory
    for _ in range(2):
        check(x, views[0])
        check(x, views[1])


def test_inference_tensors():
    x, w = tensors()
    with torch.inference_mode():
        w = w.clone()  # no version tells of its changes
        check(x, w)
        w.mul_(2)
        check(x, w)


def test_streams_and_threads():
    x, w = tensors(c=128, k=128)
    expected = F.conv2d(x.cpu().double(), w.cpu().double(), None, 1, 1).clamp(0, 6)
    failures = []

    def work() -> None:
        stream = torch.ocl.Stream()
        stream.wait_stream(torch.ocl.default_stream())
        with torch.ocl.stream(stream):
            for _ in range(5):
                got = convolve(x, w).cpu().double()
                if (got - expected).abs().max() > 1e-4:
                    failures.append((got - expected).abs().max())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@only_where_kept
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
def test_packed_before_and_inside(format):
    """Both ways of packing weights that are no constants are measured, and right."""
    x, w = tensors(format, size=28, c=64, k=128)
    before = set(dlbackend.solvers.problems())
    F.conv2d(x, w, stride=2, padding=1)
    (problem,) = {key for key in dlbackend.solvers.problems() if key.startswith("conv_fwd")} - before
    found = [s for s in dlbackend.solvers.tune(problem) if s.solver.startswith("cpu_implicit")]
    assert {s.config.split(",")[3] for s in found if s.config[0] != "0"} == {"0", "1"}
    assert all(s.microseconds and s.error < 3e-5 for s in found)
