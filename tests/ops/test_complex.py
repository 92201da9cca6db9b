"""Pointwise ops of complex numbers: inverse functions against mpmath, infinities, NaN and powers of 0 as on the CPU."""

from __future__ import annotations

import mpmath
import pytest
import torch
from common import DEVICE, on_gpu_class

import dlbackend

INF, NAN = float("inf"), float("nan")
INVERSE = ["asin", "acos", "atan", "asinh", "acosh", "atanh"]
PARTS = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.0, INF, -INF, NAN, 1e-10, -1e30]
ENDS = torch.tensor([complex(a, b) for a in PARTS for b in PARTS], dtype=torch.complex128)


@pytest.fixture(autouse=True)
def _stays_on_the_device():
    dlbackend.reset_fallback_report()
    yield
    assert dlbackend.fallback_report() == {}


def assert_parts_equal(actual, expected, rtol=1e-5, atol=1e-20):
    torch.testing.assert_close(
        torch.view_as_real(actual.cpu()), torch.view_as_real(expected), rtol=rtol, atol=atol, equal_nan=True
    )


@pytest.mark.parametrize("name", INVERSE)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_inverse_functions(name, dtype):
    torch.manual_seed(0)
    spread = lambda: torch.randn(40, dtype=torch.float64).mul(3).exp() * (torch.randint(2, (40,)) * 2 - 1)  # noqa: E731
    near = torch.complex(1 + spread() * 1e-3, spread() * 1e-3)
    z = torch.cat([torch.randn(40, dtype=torch.complex128), torch.complex(spread(), spread()), near]).to(dtype)
    unit = 2.0**-23 if dtype == torch.complex64 else 2.0**-52
    function = getattr(torch, name)
    with mpmath.workdps(40):
        for value, result in zip(z.tolist(), function(z.to(DEVICE)).cpu().tolist(), strict=True):
            exact = getattr(mpmath, name)(mpmath.mpc(value))
            for part, wanted in ((result.real, exact.real), (result.imag, exact.imag)):
                assert abs(part - wanted) <= 3 * unit * abs(wanted), (value, result, exact)
    ends = ENDS.to(dtype)
    assert_parts_equal(function(ends.to(DEVICE)), function(ends))


# Each part's size: 0, subnormals, tiny, beside 1, huge, the greatest. Of 0.6 and 0.8 the logarithm is nearly imaginary.
SIZES = {
    torch.complex64: [0, 1.4e-45, 1e-40, 3e-38, 1e-9, 0.6, 0.8, 1, 1 + 2**-21, 1e9, 1e38, 3.4e38],
    torch.complex128: [0, 5e-324, 5e-308, 0.6, 0.8, 1 + 2**-50, 1e17, 1.79e308],
}
BY_MODULUS = {
    "sqrt": mpmath.sqrt,
    "rsqrt": lambda z: 1 / mpmath.sqrt(z),
    "log": mpmath.log,
    "log2": lambda z: mpmath.log(z) / mpmath.log(2),
    "log10": mpmath.log10,
    "log1p": lambda z: mpmath.log(1 + z),
    "sgn": lambda z: z / abs(z),
    "reciprocal": lambda z: 1 / z,
    "abs": abs,
    "angle": mpmath.arg,
}

BY_EXPONENTIAL = ["exp", "expm1", "sinh", "cosh", "sin", "cos"]


def unit_of(dtype):
    """The distance of 1 to the next number, and the least positive number."""
    return (2.0**-23, 2.0**-149) if dtype == torch.complex64 else (2.0**-52, 2.0**-1074)


def assert_within(units, results, exact, dtype):
    """Both parts, relative to the larger; what is too large for the dtype is infinite."""
    unit, least = unit_of(dtype)
    most = mpmath.mpf(2) ** (128 if dtype == torch.complex64 else 1024)
    for result, value in zip(results, exact, strict=True):
        wanted = mpmath.mpc(value)
        size = max(abs(wanted.real), abs(wanted.imag))
        for part, right in ((complex(result).real, wanted.real), (complex(result).imag, wanted.imag)):
            if abs(right) >= most * (1 - units * unit):
                assert abs(part) == INF or size < most, (result, wanted)
            else:
                assert abs(part - right) <= units * (unit * min(size, most) + least), (result, wanted)


@pytest.mark.parametrize("name", [*BY_MODULUS, *INVERSE])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_the_largest_and_the_smallest_numbers(name, dtype):
    parts = [sign * size for size in SIZES[dtype] for sign in (1, -1)]
    z = torch.tensor([complex(a, b) for a in parts for b in parts], dtype=torch.complex128).to(dtype)
    # Not the branch cuts, whose sides mpmath does not know, and not the poles.
    z = z[(z.real != 0) & (z.imag != 0)] if name in INVERSE else z[(~z.real.signbit() | (z.imag != 0)) & (z != 0)]
    function = BY_MODULUS.get(name) or getattr(mpmath, name)
    cancels = name in INVERSE or name == "log1p"  # in mpmath, which has digits enough
    with mpmath.workdps(40 if not cancels else 130 if dtype == torch.complex64 else 680):
        exact = [function(mpmath.mpc(v)) for v in z.tolist()]
        assert_within(4, getattr(torch, name)(z.to(DEVICE)).cpu().tolist(), exact, dtype)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_quotients_of_the_largest_and_the_smallest_numbers(dtype):
    least, most = (-149, 127) if dtype == torch.complex64 else (-1074, 1023)

    def numbers():
        exponents = torch.randint(least, most, (2000, 1)) + torch.randint(-30, 31, (2000, 2))
        parts = torch.rand(2000, 2, dtype=torch.float64).add(1) * exponents.clamp(least, most).double().exp2()
        return torch.view_as_complex(parts * (torch.randint(2, (2000, 2)) * 2 - 1)).to(dtype)

    torch.manual_seed(0)
    a, b = numbers(), numbers()
    with mpmath.workdps(40):
        exact = [mpmath.mpc(x) / mpmath.mpc(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert_within(4, (a.to(DEVICE) / b.to(DEVICE)).cpu().tolist(), exact, dtype)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_products_with_an_exponential_that_overflows_alone(dtype):
    edge = 89 if dtype == torch.complex64 else 710
    z = torch.tensor([edge + 1.5j, edge + 1e-6 + 1.57j, complex(edge, 1e-30), 2 - 1.5j, -edge + 1j], dtype=dtype)
    for name in BY_EXPONENTIAL:
        points = z if name not in ("sin", "cos") else z * 1j
        with mpmath.workdps(40):
            exact = [getattr(mpmath, name)(mpmath.mpc(v)) for v in points.tolist()]
            assert_within(16, getattr(torch, name)(points.to(DEVICE)).cpu().tolist(), exact, dtype)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_tangents_of_an_angle_whose_double_overflows(dtype):
    large = torch.finfo(dtype).max * 0.9
    z = torch.tensor([complex(21, large), complex(-large, -large), complex(1, large)], dtype=dtype)
    for name, points in (("tanh", z), ("tan", z * 1j)):
        with mpmath.workdps(400):
            exact = [getattr(mpmath, name)(mpmath.mpc(v)) for v in points.tolist()]
        assert_within(4, getattr(torch, name)(points.to(DEVICE)).cpu().tolist(), exact, dtype)


@pytest.mark.parametrize("name", [*BY_MODULUS, *BY_EXPONENTIAL, "tan", "tanh"])
def test_infinities_and_nan(name):
    z = ENDS.to(torch.complex64)
    if name == "log1p":  # the length beside an infinite part is infinite, which the CPU has for log alone
        z = z[~z.isinf()]
    expected, actual = getattr(torch, name)(z), getattr(torch, name)(z.to(DEVICE)).cpu()
    if expected.is_complex():
        assert_parts_equal(actual, expected)
    else:
        torch.testing.assert_close(actual, expected, equal_nan=True)


def test_foreach_of_inverse_functions():
    lists = [torch.randn(3, dtype=torch.complex64), torch.randn(2, 2, dtype=torch.complex64)]
    for name in ("acos", "asin", "atan"):
        actual = getattr(torch, f"_foreach_{name}")([t.to(DEVICE) for t in lists])
        for a, e in zip(actual, getattr(torch, f"_foreach_{name}")(lists), strict=True):
            assert_parts_equal(a, e)


EXPONENTS = [2, 3, 0.5, -0.5, -1, -2, 0, 1, -3, 2.5, 1j, -1j, 1 + 1j, -1 + 1j]
BASES = torch.tensor(
    [0, INF, -INF, complex(0, INF), complex(INF, INF), complex(1, INF), complex(NAN, 0), 2, 1j], dtype=torch.complex64
)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_powers(exponent):
    there, close = BASES.to(DEVICE), {"rtol": 1e-4, "atol": 1e-5}
    tensor = torch.full_like(BASES, exponent)
    assert_parts_equal(there**exponent, BASES**exponent, **close)
    assert_parts_equal(there ** tensor.to(DEVICE), BASES**tensor, **close)
    assert_parts_equal(torch._foreach_pow([there], exponent)[0], torch._foreach_pow([BASES], exponent)[0], **close)
    for base in (0, INF, 2):
        assert_parts_equal(torch.pow(base, tensor.to(DEVICE)), torch.pow(base, tensor), **close)


def test_logaddexp_and_square_roots():
    a, b = torch.randn(20, dtype=torch.complex64), torch.randn(20, dtype=torch.complex64)
    assert_parts_equal(torch.logaddexp(a.to(DEVICE), b.to(DEVICE)), torch.logaddexp(a, b), rtol=1e-4, atol=1e-5)
    ends = torch.tensor([complex(x, y) for x in (0.0, INF, -INF, 1) for y in (0.0, INF, -INF)], dtype=torch.complex64)
    assert_parts_equal(ends.to(DEVICE).sqrt(), ends.sqrt())
    low = torch.complex(torch.tensor([-INF, -INF, 1.0, NAN]), torch.tensor([0.5, 0.5, 0.0, 0.0]))
    high = torch.complex(torch.tensor([-INF, 2.0, INF, 1.0]), torch.tensor([0.5, 1.0, 0.0, 0.0]))
    assert_parts_equal(torch.logaddexp(low.to(DEVICE), high.to(DEVICE)), torch.logaddexp(low, high))
    low, high = torch.complex(torch.full((2, 2), -INF), torch.tensor([[1.0, INF], [2.0, 0.0]])).unbind()
    assert_parts_equal(torch.logaddexp(low.to(DEVICE), high.to(DEVICE)), torch.logaddexp(low, high))


def test_logcumsumexp():
    x = torch.randn(5, 40, dtype=torch.complex64)
    for dim in (0, 1):
        assert_parts_equal(torch.logcumsumexp(x.to(DEVICE), dim), torch.logcumsumexp(x, dim), rtol=1e-4, atol=1e-5)
    first = torch.tensor([complex(-INF, 0), 1 + 2j, complex(NAN, 0), 1], dtype=torch.complex64)
    assert_parts_equal(torch.logcumsumexp(first.to(DEVICE), 0), torch.logcumsumexp(first, 0))
    out = torch.empty(0, dtype=torch.complex64, device=DEVICE)
    assert torch.logcumsumexp(x.to(DEVICE), 1, out=out).shape == x.shape


@pytest.mark.parametrize(("shape", "dim"), [((3, 5000), 1), ((5000, 3), 0), ((2, 100_000), 1)])
def test_logcumsumexp_is_as_exact_as_the_cpus(shape, dim):
    x = torch.randn(shape, dtype=torch.complex64)
    exact = x.to(torch.complex128).logcumsumexp(dim)
    error = (x.to(DEVICE).logcumsumexp(dim).cpu() - exact).norm() / exact.norm()
    assert error < (5e-8 if not on_gpu_class() else 3e-7)


def test_logcumsumexp_of_infinities():
    rows = [[complex(-INF, INF), 1 + 2j], [complex(-INF, INF), complex(-INF, 1), 2], [1j, complex(-INF, -INF), 3j]]
    rows += [
        [complex(INF, 1), complex(INF, 1)],
        [complex(INF, 1), 2, 3j],
        [2, complex(1, INF)],
        [2, complex(NAN, 1), 1],
    ]
    for row in rows:
        x = torch.tensor(row, dtype=torch.complex64)
        assert_parts_equal(torch.logcumsumexp(x.to(DEVICE), 0), torch.logcumsumexp(x, 0))


def test_gradient_of_silu():
    x, grad = torch.randn(2, 40, dtype=torch.complex64)
    actual = torch.ops.aten.silu_backward(grad.to(DEVICE), x.to(DEVICE))
    assert_parts_equal(actual, torch.ops.aten.silu_backward(grad, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
@pytest.mark.parametrize("base", [10.0, 1.0, 0.5])
def test_logspace(steps, base):
    expected = torch.logspace(1 + 2j, -2 + 1j, steps, base=base, dtype=torch.complex64)
    actual = torch.logspace(1 + 2j, -2 + 1j, steps, base=base, dtype=torch.complex64, device=DEVICE)
    assert_parts_equal(actual, expected, rtol=1e-4, atol=1e-5)
    strided = torch.zeros(steps, 2, dtype=torch.complex64, device=DEVICE)[:, 0]
    assert_parts_equal(torch.logspace(1 + 2j, -2 + 1j, steps, base=base, out=strided), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("shape", "dim"), [((3, 5000), 1), ((5000, 3), 0), ((2, 100_000), 1)])
def test_sums_along_a_dimension_are_as_exact_as_the_cpus(shape, dim):
    x = torch.randn(shape, dtype=torch.complex64)
    exact = x.to(torch.complex128).cumsum(dim)
    error = (x.to(DEVICE).cumsum(dim).cpu() - exact).norm() / exact.norm()
    assert error < (1e-7 if not on_gpu_class() else 2e-5)


def test_a_truth_value_of_an_imaginary_number():
    x = torch.zeros(2, dtype=torch.bool, device=DEVICE)
    assert x.clone().fill_(1j).tolist() == torch.full((2,), 1j, dtype=torch.bool, device=DEVICE).tolist() == [True] * 2
    assert x.masked_fill(torch.tensor([True, False], device=DEVICE), 1j).tolist() == [True, False]
    assert x.scatter(0, torch.tensor([1], device=DEVICE), 1j).tolist() == [False, True]
