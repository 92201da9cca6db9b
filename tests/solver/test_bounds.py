"""Convolutions that bring their results to bounds, by every solver, against float64 on the CPU."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from common import find_record

import dlbackend
from dlbackend import _C

GEMMS = [name.partition(":")[2] for name in _C.solver_names() if name.startswith("gemm:")]
SOLVERS = [name.partition(":")[2] for name in _C.solver_names() if name.startswith("conv_fwd:")]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
CASES = [  # channels, filters, groups, size, filter, stride, padding, dilation
    (8, 20, 1, (19, 37), 3, 1, 1, 1),  # more and fewer columns than a vector and a tile
    (40, 33, 1, (5, 6), 3, 2, 1, 1),
    (6, 12, 6, (9, 21), 3, 1, 1, 1),
    (6, 8, 2, (10, 33), 3, 1, 2, 2),
    (70, 40, 1, (6, 7), 1, 1, 0, 1),
]


def bounded(x, w, bias, stride, padding, dilation, groups, low, high):
    two = ([stride] * 2, [padding] * 2, [dilation] * 2)
    return torch.ops.dlbackend.convolution_bounded(x, w, bias, *two, groups, low, high)


def check(solver: str, case, dtype: torch.dtype) -> bool:
    """Whether the solver could do it; fails where it did it wrong."""
    c, k, groups, size, f, *geometry = case
    x, w, bias = (torch.randn(*s).to(dtype) for s in ((2, c, *size), (k, c // groups, f, f), (k,)))
    _C.force_solver(solver)
    try:
        for layout, has_bias in itertools.product((torch.contiguous_format, torch.channels_last), (True, False)):
            args = (x, w, bias if has_bias else None)
            wide = F.conv2d(*(t.double() if t is not None else None for t in args), *geometry, groups)
            place = [t.to("ocl", memory_format=layout) if t is not None and t.dim() == 4 else t for t in args]
            place[2] = bias.to("ocl") if has_bias else None
            for low, high in ((0.0, float("inf")), (0.0, 1.5), (-0.5, 0.25)):
                got = bounded(*place, *geometry, groups, low, high).cpu().double()  # type: ignore[call-arg]
                assert got.min() >= low
                assert got.max() <= high
                # rounding is relative to the sums that there were before the bounds (docs/numerics.md)
                atol = TOLERANCE[dtype] * wide.abs().max().item()
                torch.testing.assert_close(got, wide.clamp(low, high), rtol=0, atol=atol)
    except RuntimeError as error:
        if "is not applicable" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_conv_solver(solver, dtype):
    if not sum(check(f"conv_fwd:{solver}", case, dtype) for case in CASES):
        pytest.skip(f"{solver} is not for this device or dtype")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gemm", GEMMS)
def test_every_gemm_solver(gemm, dtype):
    """Beneath a convolution with one tap: many pixels, one pixel (few columns), a deep reduction."""
    cases = [CASES[-1], (70, 40, 1, (1, 1), 1, 1, 0, 1), (2100, 36, 1, (1, 2), 1, 1, 0, 1)]
    if not sum(check(f"conv_fwd:gemm_1x1,gemm:{gemm}", case, dtype) for case in cases):
        pytest.skip(f"{gemm} is not for this device or dtype")


def test_divided_reductions():
    """Parts of a reduction are added before the bounds apply."""
    x, w, bias = torch.randn(1, 1024, 4, 4), torch.randn(24, 1024, 3, 3), torch.randn(24)
    wide = F.conv2d(x.double(), w.double(), bias.double(), padding=1)
    want, atol = wide.clamp(-1, 20), 1e-5 * wide.abs().max().item()
    place = [t.to("ocl") for t in (x, w, bias)]
    problems = set(dlbackend.solvers.problems())
    got = bounded(*place, 1, 1, 1, 1, -1.0, 20.0)
    torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=atol)
    (problem,) = set(dlbackend.solvers.problems()) - problems
    for solution in dlbackend.solvers.tune(problem):  # each way in which measuring may divide it
        _C.load_find_record(_C.find_place(0), problem, find_record([solution], solution))
        again = bounded(*place, 1, 1, 1, 1, -1.0, 20.0)
        (taken,) = (s for s in dlbackend.solvers.solutions(problem) if s.taken)
        assert (taken.solver, taken.config) == (solution.solver, solution.config)
        torch.testing.assert_close(again.cpu().double(), want, rtol=0, atol=atol)
    _C.drop_find_records()


@pytest.mark.parametrize("f", [1, 3])
def test_special_values(f):
    """NaN stays, infinities are brought to the bounds, minus zero does not count as below zero."""
    x = torch.randn(1, 4, 8, 40)
    x[0, 0, 1, 1], x[0, 1, 5, 20], x[0, 2, 6, 35] = float("nan"), float("inf"), -float("inf")
    w = torch.rand(8, 4, f, f) + 0.5
    want = F.relu6(F.conv2d(x, w, padding=f // 2))
    got = bounded(x.to("ocl"), w.to("ocl"), None, 1, f // 2, 1, 1, 0.0, 6.0)
    assert want.isnan().any()
    torch.testing.assert_close(got.cpu(), want, equal_nan=True, rtol=1e-5, atol=1e-4)


def test_other_dtypes_and_empty():
    x, w = torch.randn(2, 3, 7, 8, dtype=torch.float64), torch.randn(5, 3, 3, 3, dtype=torch.float64)
    got = bounded(x.to("ocl"), w.to("ocl"), None, 1, 1, 1, 1, 0.1, 0.7)
    torch.testing.assert_close(got.cpu(), F.conv2d(x, w, padding=1).clamp(0.1, 0.7))
    empty = bounded(torch.empty(0, 3, 7, 8, device="ocl"), w.float().to("ocl"), None, 1, 1, 1, 1, 0.0, 6.0)
    assert empty.shape == (0, 5, 7, 8)
    with pytest.raises(RuntimeError, match=r"not supported for complex|not implemented"):
        bounded(x.to("ocl").cfloat(), w.to("ocl").cfloat(), None, 1, 1, 1, 1, 0.0, 6.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": (4, 2, 3, 3)}, "expected input.*to have 2 channels"),
        ({"w": (4, 3, 3)}, "weight of 4 dimensions"),
        ({"w": (4, 3, 11, 11)}, "larger than the padded input"),
        ({"bias": (3,)}, "bias of 4 elements"),
        ({"stride": 0}, "must be positive"),
        ({"padding": -1}, "not negative"),
        ({"groups": 3}, "groups=3"),
        ({"low": 2.0}, "must not be above"),
    ],
)
def test_bad_input(change, message):
    given = {"w": (4, 3, 3, 3), "bias": (4,), "stride": 1, "padding": 1, "dilation": 1, "groups": 1, "low": 0.0}
    given |= change
    x = torch.randn(1, 3, 8, 8, device="ocl")
    w, bias = (torch.randn(*given[name], device="ocl") for name in ("w", "bias"))
    with pytest.raises(RuntimeError, match=message):
        bounded(x, w, bias, *(given[name] for name in ("stride", "padding", "dilation", "groups", "low")), 1.0)
    assert (x + 1).isfinite().all()
