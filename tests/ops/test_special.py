"""Special functions: edges and degrees as on the CPU, two results, all forms without the CPU."""

from __future__ import annotations

import pytest
import torch
from common import DEVICE

import dlbackend

special = torch.special
INF, NAN = float("inf"), float("nan")
EDGES = [0.0, -0.0, INF, -INF, NAN, 1, -1, 2, -2, 1e-38, 1e30, -1e30, 0.5, -0.5, 100, -100, 8, 5, 1e-10, -1e-10]
UNARY = [
    "i0e", "i1e", "i1", "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "spherical_bessel_j0", "erfcx",
    "log_ndtr", "ndtri", "gammaln",
]  # fmt: skip
POLYNOMIALS = [name for name in dir(special) if "_polynomial_" in name]


@pytest.fixture(autouse=True)
def _stays_on_the_device():
    dlbackend.reset_fallback_report()
    yield
    assert dlbackend.fallback_report() == {}


def same_as_cpu(function, *inputs, rtol=2e-5, atol=1e-6):
    expected = function(*inputs)
    actual = function(*[x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in inputs])
    torch.testing.assert_close(actual.cpu(), expected, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("name", UNARY)
def test_edges(name):
    same_as_cpu(getattr(special, name), torch.tensor(EDGES))


def test_edges_of_derivatives_of_digamma():
    edges = torch.tensor(EDGES)
    for n in (0, 2, 3, 10, 40):
        same_as_cpu(lambda x, n=n: torch.polygamma(n, x), edges)
    # At a pole the CPU gives what rounding pi leaves.
    assert torch.polygamma(1, torch.tensor([-1.0, 0.0, -5.0], device=DEVICE)).tolist() == [INF] * 3
    with pytest.raises(RuntimeError, match="does not support negative n"):
        torch.polygamma(-1, edges.to(DEVICE))


def test_digamma_beside_its_poles():
    """Both sides of negative whole numbers, where the reflection's tangent is small."""
    poles = -torch.arange(1.0, 60)
    x = torch.cat([poles + off for off in (1e-2, -1e-2, 1e-3, -1e-3, 0.25, -0.25)])
    expected = special.digamma(x.double()).float()
    torch.testing.assert_close(special.digamma(x.to(DEVICE)).cpu(), expected, rtol=2e-6, atol=2e-6)


def test_edges_of_two_arguments():
    ends = torch.tensor([0.0, -0.0, 1, -1, INF, -INF, NAN, 0.5, 30.0])
    a, b = ends.repeat_interleave(len(ends)), ends.repeat(len(ends))
    for function in (torch.igamma, torch.igammac, special.zeta):
        same_as_cpu(function, a, b)


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name):
    """Against float64, but for arguments that are no numbers: with these some of the CPU's read a result not set."""
    function, degrees = getattr(special, name), torch.tensor([0.0, 1, 2, 3, 5, 6, 7, 8, 9, 12, 30, -1, NAN, -INF, 2.7])
    values = torch.tensor([0.0, 1, -1, 0.3, -0.7, 0.999, -0.999, 1.5, -2.5, INF, -INF, 1e-8, 0.5])
    x, n = values.repeat_interleave(len(degrees)), degrees.repeat(len(values))
    expected = function(x.double(), n.double())
    actual = function(x.to(DEVICE), n.to(DEVICE)).cpu().double()
    torch.testing.assert_close(actual, expected, rtol=2e-3, atol=2e-3, equal_nan=True)
    if name == "legendre_polynomial_p":  # PyTorch makes these forms of the other
        same_as_cpu(lambda v: function(v, 4), values, rtol=1e-4, atol=1e-4)
        same_as_cpu(lambda d: function(0.3, d), torch.arange(5), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_frexp(dtype):
    x = torch.cat([torch.randn(50), torch.tensor([*EDGES, 1e-45, 3.4e38])]).to(dtype)
    mantissa, exponent = torch.frexp(x.to(DEVICE))
    expected = torch.frexp(x)
    torch.testing.assert_close(mantissa.cpu(), expected.mantissa, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(exponent.cpu(), expected.exponent)
    out = torch.empty(0, dtype=dtype, device=DEVICE), torch.empty(0, dtype=torch.int32, device=DEVICE)
    torch.frexp(x.to(DEVICE)[::2], out=out)
    assert torch.equal(out[1].cpu(), expected.exponent[::2])
    with pytest.raises(RuntimeError, match="expects exponent to have int dtype"):
        torch.frexp(x.to(DEVICE), out=(out[0], torch.empty(0, dtype=torch.int64, device=DEVICE)))


def test_dtypes_and_forms():
    ints, flags = torch.arange(6).view(2, 3), torch.tensor([True, False])
    same_as_cpu(torch.i0, ints)
    same_as_cpu(special.ndtri, flags)
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.rand(3, 4).to(dtype)
        same_as_cpu(torch.i0, x.t(), rtol=1e-2, atol=1e-2)
        same_as_cpu(torch.igamma, x, x + 1, rtol=1e-2, atol=1e-2)
    x = torch.rand(4, 5)
    same_as_cpu(lambda a: special.zeta(a + 2, 1.5), x)
    same_as_cpu(lambda a: special.zeta(2.5, a + 1), x)
    same_as_cpu(lambda a: a.clone().igamma_(a + 1).igammac_(a), x)
    same_as_cpu(lambda a: torch.mvlgamma(a + 2, 3), x)
    same_as_cpu(lambda a: torch.mvlgamma(a + 2, 3, out=torch.empty(0, device=a.device)), x)
    same_as_cpu(lambda a: a.clone().polygamma_(2), x[:, ::2])
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.i0(x.to(DEVICE), out=torch.empty(4, 5, dtype=torch.int64, device=DEVICE))


@pytest.mark.slow
def test_gradients():
    x = torch.rand(6) + 0.5
    functions = (torch.i0, special.i1, special.i0e, special.i1e, torch.lgamma, torch.digamma, special.ndtri,
                 special.log_ndtr, special.erfcx, lambda v: torch.igamma(torch.full_like(v, 2), v),
                 lambda v: torch.igammac(torch.full_like(v, 2), v), lambda v: torch.polygamma(2, v))  # fmt: skip
    for function in functions:
        same_as_cpu(lambda v, f=function: torch.func.grad(lambda w: f(w * 0.6).sum())(v), x, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_kaiser_window(dtype):
    """The largest beta overflows the functions that the window is a quotient of, which is 1 in the middle."""
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.float64: 1e-14}[dtype]
    for length in (0, 1, 2, 5, 12):
        for periodic in (True, False):
            for beta in (0.0, 12.0, -3.0, 100.0):
                actual = torch.kaiser_window(length, periodic, beta, dtype=dtype, device=DEVICE)
                expected = torch.kaiser_window(length, periodic, beta, dtype=torch.float64)
                torch.testing.assert_close(actual.cpu().double(), expected, rtol=3 * tolerance, atol=tolerance)
    assert torch.kaiser_window(5, device=DEVICE).dtype == torch.get_default_dtype()
    assert torch.kaiser_window(5, False, 800.0, device=DEVICE)[2] == 1
    out = torch.empty(8, dtype=dtype, device=DEVICE)
    assert torch.ops.aten.kaiser_window.beta_out(8, True, 4.0, out=out) is out
    torch.testing.assert_close(
        out.cpu().double(), torch.kaiser_window(8, True, 4.0, dtype=torch.float64), rtol=3 * tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.bfloat16], ids=str)
def test_ldexp_where_the_power_alone_is_no_number(dtype):
    x = torch.tensor([1, 1, 1.2, 1.5, INF, NAN, 3, -0.0, 0.75]).to(dtype)
    most = torch.finfo(dtype).max
    x = torch.cat([x, torch.tensor([most, torch.finfo(dtype).smallest_normal], dtype=dtype)])
    powers = torch.tensor([20, -20, 2000, -2000, -5, 4, -24, 3, 2**31 - 1, -1, 1])
    for exponent in (torch.int64, torch.int32):
        n = powers.to(exponent)
        assert_same_bits(torch.ldexp(x.to(DEVICE), n.to(DEVICE)), torch.ldexp(x, n))
    assert_same_bits(x.to(DEVICE)[:2].ldexp_(powers[:2].to(DEVICE)), torch.ldexp(x[:2], powers[:2]))
    with pytest.raises(NotImplementedError):
        torch.ldexp(x.to(DEVICE), (powers > 0).to(DEVICE))


def assert_same_bits(actual, expected):
    assert actual.dtype == expected.dtype
    assert torch.equal(actual.cpu().nan_to_num(nan=123.0), expected.nan_to_num(nan=123.0))
