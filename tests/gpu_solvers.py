"""What the tests of solvers for GPU-class devices share: all configs of a problem, and convolutions against float64."""

import torch
import torch.nn.functional as F
from common import relative_error

import dlbackend
from dlbackend import _C


def shifted(t: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy on the device with the same strides and gaps, so many elements into its memory."""
    size = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1
    memory = torch.full((offset + size,), float("nan"), dtype=t.dtype)
    memory[offset:] = torch.as_strided(t, (size,), (1,))
    return memory.to("ocl").as_strided(t.shape, t.stride(), offset)


OPS = ("gemm:", "conv_")


def check_configs(solver: str, run, least: int) -> set[str]:
    """Tunes the problems that `run` meets, with this solver and the reference; the solver's configs that were right.

    Fails when one was wrong, or when a problem had fewer than `least` configs.
    """
    names = [name for name in _C.solver_names() if name.startswith(OPS)]
    others = {name for name in names if name.split(":")[1] not in (solver, "reference")}
    _C.force_solver(",".join(name.replace(":", ":-") for name in sorted(others)))
    seen = set(dlbackend.solvers.problems())
    run()
    found: set[str] = set()
    for problem in set(dlbackend.solvers.problems()) - seen:
        if not problem.startswith(OPS):  # a sum of the test's own
            continue
        rejected = dlbackend.solvers.stats()["rejected"]
        solutions = dlbackend.solvers.tune(problem)
        assert dlbackend.solvers.stats()["rejected"] == rejected, (problem, solutions)
        right = {s.config for s in solutions if s.solver.split("@")[0] == solver and s.error is not None}
        assert len(right) >= least, (problem, solutions)
        found |= right
    return found


def first_values(configs: set[str]) -> set[int]:
    return {int(config.split(",")[0]) for config in configs}


def convolve(case, tolerance: float, channels_last: bool) -> None:
    """Forward and both gradients of (size, channels, filters, groups, filter, stride, padding, dilation, dtype): their
    relative error against float64 is below the tolerance.
    """
    size, c, k, groups, f, stride, padding, dilation, dtype = case
    conv = (F.conv1d, F.conv2d, F.conv3d)[len(size) - 1]
    layout = {1: torch.channels_last, 2: torch.channels_last_3d}.get(len(size) - 1) if channels_last else None
    inputs = [torch.randn(2, c, *size), torch.randn(k, c // groups, *f), torch.randn(k)]
    got, want = [], []
    for t in inputs:
        rounded = t.to(dtype)
        want.append(rounded.to(torch.float64, copy=True).requires_grad_())
        laid_out = rounded.contiguous(memory_format=layout) if layout and t.dim() > 3 else rounded
        got.append(laid_out.to("ocl").requires_grad_())
    y = conv(*got, stride, padding, dilation, groups)
    expected = conv(*want, stride, padding, dilation, groups)
    grad = torch.randn(expected.shape).to(dtype)
    y.backward(grad.contiguous(memory_format=layout).to("ocl") if layout else grad.to("ocl"))
    expected.backward(grad.double())
    for a, b in zip((y, got[0].grad, got[1].grad), (expected, want[0].grad, want[1].grad), strict=True):
        assert relative_error(a, b.detach()) < tolerance, channels_last
