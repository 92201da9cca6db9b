"""Python numbers beside tensors of few bits: which overflow raises, what is rounded to which dtype, as on the CPU."""

from __future__ import annotations

import pytest
import torch
from common import DEVICE

import dlbackend

HALF, BF16, U8, I8 = torch.float16, torch.bfloat16, torch.uint8, torch.int8
functional = torch.nn.functional


def made(device, dtype):
    return torch.tensor([3, 1], dtype=dtype, device=device)


def assigned(device, dtype, where, value):
    x = made(device, dtype)
    x[where if where == 0 else torch.tensor([True, False], device=device)] = value
    return x


RAISING = {
    "pow int8": lambda d: made(d, I8) ** 130,
    "pow half": lambda d: made(d, HALF) ** 1e5,
    "pow_": lambda d: made(d, U8).pow_(256),
    "foreach pow": lambda d: torch._foreach_pow([made(d, I8)], 130),
    "threshold": lambda d: functional.threshold(made(d, U8), 300, 1),
    "threshold value": lambda d: functional.threshold(made(d, HALF), 1, 7e4),
    "alpha": lambda d: torch.add(made(d, HALF), made(d, HALF), alpha=7e4),
    "alpha int": lambda d: torch.sub(made(d, U8), made(d, U8), alpha=300),
    "hardtanh": lambda d: functional.hardtanh(made(d, HALF), -7e4, 7e4),
    "hardshrink": lambda d: functional.hardshrink(made(d, HALF), 7e4),
    "leaky_relu": lambda d: functional.leaky_relu(made(d, torch.float32), 1e300),
    "elu of integers": lambda d: functional.elu(made(d, U8), 300),
    "lerp": lambda d: torch.lerp(made(d, BF16), made(d, BF16), 3.4e39),
    "addcmul": lambda d: torch.addcmul(made(d, BF16), made(d, BF16), made(d, BF16), value=3.4e39),
    "foreach clamp": lambda d: torch._foreach_clamp_min([made(d, HALF)], 7e4),
    "foreach addcmul": lambda d: torch._foreach_addcmul([made(d, U8)], [made(d, U8)], [made(d, U8)], 300),
    "fill": lambda d: made(d, HALF).fill_(7e4),
    "index_fill": lambda d: made(d, HALF).index_fill(0, torch.tensor([0], device=d), 7e4),
    "scatter": lambda d: made(d, HALF).scatter(0, torch.tensor([0], device=d), 7e4),
    "assigned int": lambda d: assigned(d, U8, 0, 300),
    "arange": lambda d: torch.arange(2, dtype=torch.bool, device=d),
    "randperm": lambda d: torch.randperm(257, dtype=U8, device=d),
    "randperm half": lambda d: torch.randperm(2050, dtype=HALF, device=d),
}
GIVING = {
    "where": lambda d: torch.where(torch.tensor([True, False], device=d), made(d, HALF), -1e9),
    "assigned": lambda d: assigned(d, HALF, 0, 7e4),
    "assigned by mask": lambda d: assigned(d, HALF, None, -7e4),
    "full": lambda d: torch.full((1,), 7e4, dtype=HALF, device=d),
    "new_full": lambda d: made(d, BF16).new_full((), 3.4e39),
    "addcmul": lambda d: torch.addcmul(made(d, HALF), made(d, HALF), made(d, HALF), value=7e4),
    "addcdiv": lambda d: torch.addcdiv(made(d, HALF), made(d, HALF), made(d, HALF), value=-7e4),
    "threshold": lambda d: functional.threshold(made(d, HALF), 7e4, 1),
    "foreach clamp of another dtype": lambda d: torch._foreach_clamp_min([made(d, U8)], 1e10)[0],
    "randperm": lambda d: torch.randperm(2049, dtype=HALF, device=d).sort()[0],
}


@pytest.mark.parametrize("name", RAISING)
def test_what_raises(name):
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        RAISING[name]("cpu")
    with pytest.raises(expected.type):
        RAISING[name](DEVICE)


@pytest.mark.parametrize("name", GIVING)
def test_what_does_not(name):
    assert torch.equal(GIVING[name](DEVICE).cpu(), GIVING[name]("cpu"))


@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_numbers_are_rounded(dtype):
    torch.manual_seed(0)
    a, b = torch.randn(500).to(dtype), torch.randn(500).to(dtype)
    calls = {
        "add": lambda x, _: x + 1.3,
        "sub": lambda x, _: 2.7 - x,
        "mul": lambda x, _: x * 1.3,
        "div": lambda x, _: x / 1.3,
        "quotient of a number": lambda x, _: torch.div(torch.tensor(1.3), x),
        "atan2": lambda x, _: torch.atan2(x, torch.tensor(1.3)),
        "remainder": lambda x, _: x % 1.3,
        "alpha": lambda x, y: torch.add(x, y, alpha=1.3),
        "addcmul": lambda x, y: torch.addcmul(x, x, y, value=1.3),
    }
    for name, call in calls.items():
        same = call(a.to(DEVICE), b.to(DEVICE)).cpu() == call(a, b)
        assert same.float().mean() >= 0.95, name  # the CPU rounds products too where elements fill no vector


@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_wide_results_have_the_digits_of_the_common_dtype(dtype, wide):
    torch.manual_seed(0)
    a, b = (torch.rand(500) * 300).to(dtype), (torch.rand(500) * 300).to(dtype)
    for function in (torch.add, torch.mul, torch.atan2, torch.hypot):
        out = torch.empty(0, dtype=wide, device=DEVICE)
        function(a.to(DEVICE), b.to(DEVICE), out=out)
        expected = function(a, b, out=torch.empty(0, dtype=wide))
        assert (out.cpu() == expected).float().mean() >= 0.995
        assert torch.equal(out.cpu(), out.cpu().to(dtype).to(wide))
    out = torch.empty(0, dtype=wide, device=DEVICE)
    torch.exp(a.to(DEVICE), out=out)
    assert torch.equal(out.cpu(), out.cpu().to(dtype).to(wide))


def test_shifts():
    dlbackend.reset_fallback_report()
    for dtype in (torch.int32, U8):
        x = torch.arange(-8, 8).to(dtype)
        for call in (
            lambda t: t << 2,
            lambda t: t >> 1,
            lambda t: t << t,
            lambda t: 2 << t,
            lambda t: t.clone().__ilshift__(1).__irshift__(t),
            lambda t: torch.bitwise_left_shift(t, 3),
        ):
            assert torch.equal(call(x.to(DEVICE)).cpu(), call(x))
    with pytest.raises(NotImplementedError):
        torch.ones(2, device=DEVICE) << 1
    assert dlbackend.fallback_report() == {}


@pytest.mark.parametrize("dtype", [HALF, BF16, torch.float32])
@pytest.mark.parametrize("bound", [0.3, 0.29])
def test_hardshrinks_bound_is_rounded_as_the_elements_are(dtype, bound):
    results = []
    for device in ("cpu", DEVICE):
        x = torch.tensor([0.3, -0.3, 0.29, 0.31], dtype=dtype).to(device).requires_grad_()
        y = functional.hardshrink(x, bound)
        y.sum().backward()
        results.append([*y.tolist(), *x.grad.tolist()])
    assert results[0] == results[1]
