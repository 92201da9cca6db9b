"""Shared by the tests of solvers for GPU-class devices: all configs of a problem, and convolutions against float64."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from common import relative_error
from fresh_process import forked_python
from stores import cache_with_programs

import dlbackend
from dlbackend import _C


def shifted(t: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy on the device with the same strides and gaps, so many elements into its memory."""
    size = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1
    memory = torch.full((offset + size,), float("nan") if t.is_floating_point() else 77, dtype=t.dtype)
    memory[offset:] = torch.as_strided(t, (size,), (1,))
    return memory.to("ocl").as_strided(t.shape, t.stride(), offset)


def check_products(m: int, n: int, k: int, dtype: torch.dtype, tolerance: float) -> None:
    """Both layouts of both operands, gaps and unaligned offsets, an addend: relative errors against float64."""
    a, b, d = torch.randn(2, m, k).to(dtype), torch.randn(2, k, n).to(dtype), torch.randn(n).to(dtype)
    wide = torch.randn(2, k, 2 * n).to(dtype)[:, :, ::2]
    for x in (a, a.mT.contiguous().mT, a[:1].expand(2, -1, -1)):
        for y in (b, b.mT.contiguous().mT, wide):
            for offset in (0, 3):
                product = x.double() @ y.double()
                x_ocl, y_ocl = shifted(x, offset), shifted(y, offset)
                assert relative_error(torch.bmm(x_ocl, y_ocl), product) < tolerance
                got = torch.baddbmm(d.to("ocl"), x_ocl, y_ocl, beta=0.5, alpha=-2).cpu().double()
                difference = got - (0.5 * d.double() - 2 * product)  # of two numbers that may cancel out
                assert difference.norm() < tolerance * (0.5 * d.double().abs() + 2 * product.abs()).norm()


OPS = ("gemm:", "conv_", "attention:")


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


# Each problem is solved and measured, then its record is given a program of its sizes as its fastest solution, which
# the search checks against the one in use before it runs. The search waits for nothing, so that few runs are enough.
_OF_ONE_PROBLEM = """
import json, torch, dlbackend
import torch.nn.functional as F
from dlbackend import _C
names = [name for name in _C.solver_names() if name.startswith(("gemm:", "conv_"))]
others = [name for name in names if name.split(":")[1] not in (*SOLVERS, "reference")]
dlbackend.solvers.force(",".join(name.replace(":", ":-") for name in others))
torch.backends.ocl.fp32_precision = PRECISION
_C.set_search_allowance(burst_us=1e9, worth_us=0, marking_us=0, lasting_us=0, lasting_runs=2)
torch.manual_seed(0)
wrong = 0
def run(case, x, w, shift):
    def place(t):
        memory = torch.cat([torch.zeros(shift, dtype=t.dtype), t.flatten()]).to("ocl")
        return memory[shift:].view(t.shape).requires_grad_(GRADIENTS)
    return results(case, place(x), place(w))
def results(case, x, w):
    y = getattr(F, case[0])(x, w, **case[3])
    if not GRADIENTS: return y,
    y.backward(torch.ones_like(y))
    return y, x.grad, w.grad
for case in CASES:
  for dtype in DTYPES:
    seen = set(dlbackend.solvers.problems())
    x, w = torch.randn(*case[1]).to(dtype), torch.randn(*case[2]).to(dtype)
    run(case, x, w, 0)
    met = [p for p in dlbackend.solvers.problems() if p not in seen and p.startswith(("gemm:", "conv_"))]
    for problem in met:
        head, considered, *solutions = _C.find_record(problem).splitlines()
        own = next(line for line in solutions if line.startswith(SOLVERS)).replace(" ", " s", 1)
        _C.store_find_record(problem, "\\n".join([head, considered, own, *solutions]) + "\\n")
    for times in range(100):
        run(case, x, w, 0)
        if times % 10 == 0: torch.ocl.synchronize(); dlbackend.solvers.wait()
    right = results(case, *(t.double().requires_grad_(GRADIENTS) for t in (x, w)))
    for shift in (0, 1):  # aligned and at odd addresses
        for got, want in zip(run(case, x, w, shift), right, strict=True):
            wrong += (got.detach().cpu() - want.detach()).abs().max().item() > TOLERANCE
print(json.dumps({"wrong": wrong, **dlbackend.solvers.stats(), **dlbackend.kernel_stats()}))
"""


def run_programs_of_one_problem(
    cache: Path,
    *,
    solvers: tuple[str, ...],
    cases: str,
    dtypes: tuple[torch.dtype, ...] = (torch.float32,),
    precision: str = "ieee",
    gradients: bool,
    tolerance: float,
) -> dict[str, int]:
    """Runs the cases (function, sizes of input and weight, arguments) by programs compiled for their problems, in a
    process of its own whose cache begins empty. Fails when a result is further than the tolerance from float64; returns
    the process's counts.
    """
    head = (
        f"import torch\nSOLVERS, CASES, DTYPES = {solvers!r}, {cases}, {dtypes!r}\n"
        f"PRECISION, GRADIENTS, TOLERANCE = {precision!r}, {gradients}, {tolerance}\n"
    )
    environment = {"DLBACKEND_FIND_SHARE": "1", "DLBACKEND_FIND_MODE": "normal", "DLBACKEND_VERBOSE": "1"}
    done = forked_python(head + _OF_ONE_PROBLEM, DLBACKEND_CACHE_DIR=cache_with_programs(cache), **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    state: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert state["wrong"] == state["rejected"] == 0, done.stderr[-3000:]
    return state
