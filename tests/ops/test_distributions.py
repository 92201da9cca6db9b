"""Distributions with parameters from tensors: moments and the largest distance to the distribution function."""

from __future__ import annotations

import mpmath
import pytest
import torch
from common import DEVICE

import dlbackend

N = 40_000
BOUND = 2.0 / N**0.5  # of the largest distance: exceeded once in 3000 draws, and seeds are fixed


@pytest.fixture(autouse=True)
def _stays_on_the_device():
    torch.manual_seed(7)
    dlbackend.reset_fallback_report()
    yield
    assert dlbackend.fallback_report() == {}


def filled(value, dtype=torch.float32, n=N):
    return torch.full((n,), value, dtype=dtype, device=DEVICE)


def check_moments(x, mean, variance):
    x = x.cpu().double()
    assert abs(x.mean() - mean) < 5 * (variance / len(x)) ** 0.5
    assert abs(x.var() / variance - 1) < 0.08


def check_distribution(x, function):
    """`function(values)` is the distribution function; for whole numbers at each of them."""
    values, counts = x.cpu().double().unique(return_counts=True)
    empirical = counts.cumsum(0) / len(x)
    if len(values) > 5000:
        values, empirical = values[::20], empirical[::20]
    assert (empirical - function(values)).abs().max() < BOUND


@pytest.mark.parametrize("alpha", [0.1, 0.7, 1.0, 3.0, 500.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gamma(alpha, dtype):
    x = torch._standard_gamma(filled(alpha, dtype))
    check_moments(x, alpha, alpha)
    check_distribution(x, lambda v: torch.special.gammainc(torch.full_like(v, alpha), v))
    assert (x > 0).all()


@pytest.mark.parametrize("rate", [0.5, 9.5, 10.5, 80.0, 1e5])
def test_poisson(rate):
    x = torch.poisson(filled(rate))
    check_moments(x, rate, rate)
    check_distribution(x, lambda v: torch.special.gammaincc(v + 1, torch.full_like(v, rate)))
    assert torch.equal(x, x.round())


@pytest.mark.parametrize(("n", "p"), [(5, 0.3), (40, 0.9), (30, 0.5), (1000, 0.02), (1000, 0.7), (1e6, 0.3)])
def test_binomial(n, p):
    x = torch.binomial(filled(n), filled(p))
    check_moments(x, n * p, n * p * (1 - p))
    if n <= 1000:
        terms = [mpmath.binomial(int(n), k) * mpmath.mpf(p) ** k * mpmath.mpf(1 - p) ** (int(n) - k) for k in
                 range(int(n) + 1)]  # fmt: skip
        below = torch.tensor([float(t) for t in terms], dtype=torch.float64).cumsum(0)
        check_distribution(x, lambda v: below[v.long()])


def test_dirichlet():
    alpha = torch.tensor([0.5, 2.0, 3.5], device=DEVICE)
    x = torch._sample_dirichlet(alpha.expand(N, 3))
    torch.testing.assert_close(x.sum(1).cpu(), torch.ones(N))
    for column, a in zip(x.unbind(1), alpha.tolist(), strict=True):
        check_moments(column, a / 6, a * (6 - a) / 36 / 7)
    assert torch._sample_dirichlet(filled(0.3, torch.bfloat16, 6).view(2, 3)).dtype == torch.bfloat16


def check_variance(x, mean, variance):
    """Within five standard errors, which the draws' own fourth moments tell."""
    squares = (x.cpu().double() - mean).square()
    assert abs(squares.mean() - variance) < 5 * squares.std() / len(x) ** 0.5 + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("a", [1e-30, 1e-3, 0.01, 0.1])
def test_beta_with_small_parameters(a, dtype):
    """Gamma numbers of most rows are less than the least number: x is near 0 or near 1 all the same."""
    x = torch._sample_dirichlet(filled(a, dtype, 2 * N).view(N, 2))[:, 0]
    assert x.eq(0.5).sum() <= N / 1000
    assert abs(x.cpu().double().mean() - 0.5) < 5 * (0.25 / N) ** 0.5
    check_variance(x, 0.5, 0.25 / (2 * a + 1))


def test_dirichlet_with_small_and_large_parameters():
    alpha = torch.tensor([0.002, 0.001, 0.005], device=DEVICE)
    x = torch._sample_dirichlet(alpha.expand(N, 3))
    torch.testing.assert_close(x.sum(1).cpu(), torch.ones(N))
    for column, a in zip(x.unbind(1), alpha.tolist(), strict=True):
        mean = a / 0.008
        assert abs(column.cpu().double().mean() - mean) < 5 * (0.25 / N) ** 0.5
        check_variance(column, mean, mean * (1 - mean) / 1.008)
    large = torch._sample_dirichlet(torch.tensor([1e6, 3e6], device=DEVICE).expand(N, 2))[:, 0]
    check_moments(large, 0.25, 0.25 * 0.75 / 4e6)
    assert torch._sample_dirichlet(filled(1e-38, n=4).view(2, 2)).isfinite().all()
    assert torch._sample_dirichlet(torch.tensor([0.0, 2.0], device=DEVICE))[1] > 0.999
    assert torch._sample_dirichlet(torch.tensor([float("nan"), 2.0], device=DEVICE)).isnan().all()


def test_ends():
    assert torch.poisson(filled(0.0, n=3)).tolist() == [0] * 3
    n, p = torch.tensor([0.0, 5, 5, 5, -1]), torch.tensor([0.5, 0, 1, float("nan"), 0.5])
    result = torch.binomial(n.to(DEVICE), p.to(DEVICE)).cpu()
    assert result[[0, 1, 2, 4]].tolist() == [0, 0, 5, 0]
    assert result[3].isnan()
    of_both = torch.binomial(torch.tensor([2.0, 3, 4], device=DEVICE), torch.tensor([[0.0], [1.0]], device=DEVICE))
    assert of_both.tolist() == [[0, 0, 0], [2, 3, 4]]
    for dtype in (torch.float16, torch.bfloat16):
        assert (torch._standard_gamma(filled(0.01, dtype, 1000)) > 0).all()
        assert torch.poisson(filled(3.0, dtype, 100)).dtype == dtype
    assert torch.poisson(torch.ones(3, 4, device=DEVICE).t()).shape == (4, 3)
    assert torch.poisson(torch.ones(0, device=DEVICE)).shape == (0,)
    with pytest.raises(NotImplementedError):
        torch.poisson(torch.ones(2, dtype=torch.int64, device=DEVICE))
    with pytest.raises(ValueError, match="floating-point dtypes for prob"):
        torch.binomial(filled(1.0, n=2), torch.ones(2, dtype=torch.int64, device=DEVICE))
    with pytest.raises(RuntimeError, match="invalid Poisson rate"):
        torch.poisson(filled(-1.0, n=2)).cpu()


def test_seeds():
    first = torch.poisson(filled(50.0))
    assert not torch.equal(first, torch.poisson(filled(50.0)))
    torch.manual_seed(7)
    assert torch.equal(first, torch.poisson(filled(50.0)))
    generators = [torch.Generator(DEVICE).manual_seed(3) for _ in range(2)]
    a, b = (torch._standard_gamma(filled(2.0), generator=g) for g in generators)
    assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ends_of_intervals(dtype):
    for low, high in ((1, 3), (10, 11), (-1, 0), (-3, -2)):
        x = torch.empty(300_000, dtype=dtype, device=DEVICE).uniform_(low, high)
        assert low <= x.min()
        assert x.max() < high
        assert abs(x.double().mean().item() - (low + high) / 2) < 0.02
    assert torch.empty(3, dtype=dtype, device=DEVICE).uniform_(2, 2).tolist() == [2] * 3
    x = torch.empty(3_000_000, dtype=dtype, device=DEVICE).exponential_()
    assert (x > 0).all()


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-5), (torch.float64, 1e-12)])
def test_gradient_of_gamma(dtype, limit):
    """Where alpha is small, x is less and more, and both are large: minus dP/da over the density."""
    alpha = torch.tensor(
        [1e-3, 0.01, 0.05, 0.5, 1.5, 1.5, 5.0, 5.0, 18.0, 25.0, 30.0, 60.0, 60.0, 500.0, 500.0, 40.0], dtype=dtype
    )
    x = torch.tensor(
        [1e-30, 1.2e-38, 1e-9, 0.3, 0.4, 7.0, 3.0, 15.0, 22.0, 24.0, 30.0, 50.0, 90.0, 520.0, 499.0, 25.0], dtype=dtype
    )
    result = torch._standard_gamma_grad(alpha.to(DEVICE), x.to(DEVICE)).cpu()
    with mpmath.workdps(40):
        for a, v, r in zip(alpha.tolist(), x.tolist(), result.tolist(), strict=True):

            def below(t, v=v):
                return mpmath.gammainc(t, 0, v, regularized=True)

            density = mpmath.mpf(v) ** (a - 1) * mpmath.exp(-v) / mpmath.gamma(a)
            exact = -(below(mpmath.mpf(a) + 1e-12) - below(mpmath.mpf(a) - 1e-12)) / 2e-12 / density
            assert abs(r - exact) <= limit * abs(exact), (a, v, r, exact)


def test_backward_of_gamma():
    a = torch.rand(50, device=DEVICE).add(0.5).requires_grad_()
    torch._standard_gamma(a).sum().backward()
    assert (a.grad > 0).all()


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.float64, 1e-11)])
def test_gradient_of_dirichlet(dtype, limit):
    """Below and beyond the mean, with parameters below and above 1: minus dI/da over the density and 1 - x."""
    a = torch.tensor(
        [1e-3, 0.01, 0.01, 1e-5, 0.1, 0.5, 0.5, 2.0, 2.0, 7.0, 7.0, 0.3, 50.0, 50.0, 3.0, 1.0], dtype=dtype
    )
    b = torch.tensor(
        [1e-3, 0.01, 0.01, 0.3, 0.2, 0.5, 3.0, 0.4, 5.0, 8.0, 8.0, 20.0, 40.0, 40.0, 90.0, 1.0], dtype=dtype
    )
    x = torch.tensor(
        [1e-30, 1.2e-38, 0.999, 1e-9, 0.01, 0.9, 0.05, 0.97, 0.2, 0.3, 0.7, 0.02, 0.5, 0.6, 0.03, 0.5], dtype=dtype
    )
    result = torch._dirichlet_grad(x.to(DEVICE), a.to(DEVICE), (a + b).to(DEVICE)).cpu()
    with mpmath.workdps(40):
        for value, p, total, r in zip(x.tolist(), a.tolist(), (a + b).tolist(), result.tolist(), strict=True):
            v, q = mpmath.mpf(value), mpmath.mpf(total) - mpmath.mpf(p)
            step = mpmath.mpf("1e-12")
            ends = [mpmath.betainc(p + s, q, 0, v, regularized=True) for s in (step, -step)]
            density = v ** (mpmath.mpf(p) - 1) * (1 - v) ** (q - 1) / mpmath.beta(p, q)
            exact = -(ends[0] - ends[1]) / (2 * step) / density / (1 - v)
            assert abs(r - exact) <= limit * abs(exact), (v, p, q, r, exact)


def test_backward_of_dirichlet():
    alpha = (torch.rand(20, 3, device=DEVICE) + 0.5).requires_grad_()
    torch.distributions.Dirichlet(alpha).rsample()[:, 0].sum().backward()
    assert (alpha.grad[:, 0] > 0).all()
