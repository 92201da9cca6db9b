"""Largest errors of the single-precision elementary functions against float64, in units in the last place."""

import pytest
import torch
from common import DEVICE

N = 100_000
ENDS = [
    0.0,
    -0.0,
    float("inf"),
    -float("inf"),
    float("nan"),
    1e-45,
    -1e-45,
    1e-38,
    -1e-38,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    3.4e38,
    -3.4e38,
    88.72,
    88.73,
    -87.3,
    -103.9,
    -104.5,
    -149.0,
    -150.0,
    127.99,
    128.0,
    0.70710677,
    1.4142135,
    0.925,
    4.0,
    10.0,
]

# What OpenCL C's full profile promises in ulp (section 7.4 of its specification), where the driver's functions run.
OPENCL = {"exp": 3, "exp2": 3, "expm1": 3, "log": 3, "log2": 3, "log10": 3, "log1p": 2, "sin": 4, "cos": 4, "tan": 5,
          "tanh": 5, "erf": 16, "erfc": 16, "pow": 16}  # fmt: skip
OWN_FUNCTIONS = torch.ocl.get_device_properties(0).type == "cpu"

# name: largest error of our own functions in ulp, intervals to draw from; all functions also see random bit patterns.
FUNCTIONS = {
    "exp": (1.5, [(-110, 95)]),
    "exp2": (1.5, [(-155, 130)]),
    "expm1": (2, [(-3, 3), (-25, 90)]),
    "log": (1.5, [(0.5, 2)]),
    "log2": (1.5, [(0.5, 2)]),
    "log10": (1.5, [(0.5, 2)]),
    "log1p": (1.5, [(-1, 1)]),
    "sin": (2, [(-10, 10), (-1e5, 1e5)]),
    "cos": (2, [(-10, 10), (-1e5, 1e5)]),
    "tan": (2, [(-10, 10), (-1e5, 1e5)]),
    "tanh": (2, [(-1, 1), (-11, 11)]),
    "erf": (2, [(-1, 1), (-4.5, 4.5)]),
    "erfc": (5, [(-5, 10.5)]),
}


def random_bits(n):
    return torch.randint(-(2**31), 2**31, (n,)).to(torch.int32).view(torch.float32)


def check(got, exact, limit):
    rounded = exact.float()
    assert torch.equal(got.isnan(), rounded.isnan())
    # Below the smallest normal number and at infinity a unit is taken as that of the neighbour inside.
    unit = torch.exp2(torch.floor(torch.log2(rounded.abs().double().clamp(2.0**-126, 3.4e38))) - 23)
    finite = rounded.isfinite() & got.isfinite()
    assert ((got == rounded) | finite | got.isnan() | ((exact.abs() - 3.4028235e38).abs() < 1e32)).all()
    error = ((got.double() - exact).abs() / unit)[finite]
    assert error.max() <= limit
    zeros = finite & (rounded == 0)
    assert torch.equal(got.signbit()[zeros], rounded.signbit()[zeros])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_unary(name):
    torch.manual_seed(0)
    limit, intervals = FUNCTIONS[name]
    limit = limit if OWN_FUNCTIONS else OPENCL[name]
    x = torch.cat([torch.empty(N).uniform_(*i) for i in intervals] + [random_bits(N), torch.tensor(ENDS)])
    check(getattr(torch, name)(x.to(DEVICE)).cpu(), getattr(torch, name)(x.double()), limit)


def test_pow():
    torch.manual_seed(0)
    ends = torch.tensor(ENDS)
    x = torch.cat([torch.rand(N) * 20, random_bits(N), ends.repeat_interleave(len(ends))])
    y = torch.cat([torch.randn(N) * 8, random_bits(N), ends.repeat(len(ends))])
    check(
        torch.pow(x.to(DEVICE), y.to(DEVICE)).cpu(),
        torch.pow(x.double(), y.double()),
        1 if OWN_FUNCTIONS else OPENCL["pow"],
    )
