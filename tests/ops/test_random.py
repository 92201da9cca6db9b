"""Distributions: against their theory with fixed seeds, by Kolmogorov-Smirnov and chi-square distances."""

import math
from collections.abc import Callable

import pytest
import torch
from common import on_device

import dlbackend

DEVICE = "ocl:0"
COUNT = 200_001
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# The KS statistic of n numbers exceeds 1.95 / sqrt(n) with probability 0.001. Half types are coarser than that.
STEP = {torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(2024)


def empty(dtype: torch.dtype = torch.float32, count: int = COUNT) -> torch.Tensor:
    return torch.empty(count, device=DEVICE, dtype=dtype)


def ks_distance(sample: torch.Tensor, cdf: Callable[[torch.Tensor], torch.Tensor]) -> float:
    ordered = sample.cpu().double().sort().values
    n = ordered.numel()
    theory, position = cdf(ordered), torch.arange(1, n + 1, dtype=torch.float64)
    return max((theory - (position - 1) / n).abs().max().item(), (position / n - theory).abs().max().item())


DISTRIBUTIONS = {
    "uniform": (lambda t: t.uniform_(-1, 3), lambda x: ((x + 1) / 4).clamp(0, 1)),
    "normal": (lambda t: t.normal_(1, 2), lambda x: 0.5 * (1 + torch.erf((x - 1) / (2 * math.sqrt(2))))),
    "exponential": (lambda t: t.exponential_(2), lambda x: 1 - torch.exp(-2 * x)),
    "log_normal": (lambda t: t.log_normal_(0, 0.5), lambda x: 0.5 * (1 + torch.erf(x.log() / (0.5 * math.sqrt(2))))),
    "cauchy": (lambda t: t.cauchy_(1, 2), lambda x: 0.5 + torch.atan((x - 1) / 2) / math.pi),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_continuous(name: str, dtype: torch.dtype) -> None:
    fill, cdf = DISTRIBUTIONS[name]
    sample = fill(empty(dtype))
    assert not sample.isnan().any()
    assert ks_distance(sample, cdf) < 1.95 / math.sqrt(COUNT) + STEP.get(dtype, 0)


def chi_square(sample: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Normalised so that it is about standard normal."""
    observed = torch.bincount(sample.cpu().long(), minlength=probabilities.numel()).double()
    expected = probabilities.double() * sample.numel()
    used = expected > 0
    assert observed[~used].sum() == 0
    statistic = ((observed - expected)[used] ** 2 / expected[used]).sum().item()
    freedom = int(used.sum()) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32], ids=str)
def test_integers(dtype: torch.dtype) -> None:
    assert abs(chi_square(empty(dtype).random_(0, 100), torch.full((100,), 0.01))) < 5
    assert abs(chi_square(empty(dtype).random_(3, 10) - 3, torch.full((7,), 1 / 7))) < 5


def test_whole_ranges() -> None:
    assert abs(chi_square(empty(torch.uint8).random_(), torch.full((256,), 1 / 256))) < 5
    wide = empty(torch.int64).random_()
    assert wide.min() >= 0
    assert wide.double().mean().cpu().item() == pytest.approx(2**62, rel=0.01)
    both = empty(torch.int64).random_(-(2**62), 2**62).double().cpu()
    assert abs(both.mean().item()) < 2**62 * 0.01
    assert both.std().item() == pytest.approx(2**63 / math.sqrt(12), rel=0.01)
    assert set(empty(torch.bool).random_().cpu().tolist()) == {True, False}


def test_geometric_and_bernoulli() -> None:
    p = 0.3
    numbers = empty().geometric_(p).clamp(max=30) - 1
    theory = torch.tensor([p * (1 - p) ** k for k in range(29)] + [(1 - p) ** 29])
    assert abs(chi_square(numbers, theory)) < 5
    for dtype in (torch.float32, torch.bool, torch.int64, torch.float64):
        assert abs(chi_square(empty(dtype).bernoulli_(p), torch.tensor([1 - p, p]))) < 5
    chances = torch.linspace(0, 1, COUNT, device=DEVICE)
    drawn = torch.bernoulli(chances)
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.01)
    assert drawn[: COUNT // 10].mean().item() == pytest.approx(0.05, abs=0.01)
    assert empty().bernoulli_(1).all()
    assert not empty().bernoulli_(0).any()


def test_normal_with_tensors() -> None:
    mean, std = torch.arange(4.0, device=DEVICE).repeat(10000), torch.tensor([1.0, 2.0], device=DEVICE).repeat(20000)
    sample = torch.normal(mean, std).view(-1, 4).cpu()
    torch.testing.assert_close(sample.mean(0), torch.arange(4.0), rtol=0, atol=0.1)
    torch.testing.assert_close(sample.std(0), torch.tensor([1.0, 2, 1, 2]), rtol=0, atol=0.1)
    with pytest.raises(RuntimeError, match="std >= 0"):
        torch.normal(mean, -std)


def test_randperm() -> None:
    for n in (0, 1, 7, 30_000):
        assert torch.equal(torch.randperm(n, device=DEVICE).cpu().sort().values, torch.arange(n))
    places = torch.stack([torch.randperm(5, device=DEVICE) for _ in range(400)])
    for column in places.unbind(1):
        assert abs(chi_square(column, torch.full((5,), 0.2))) < 5


def test_multinomial() -> None:
    weights = torch.tensor([1.0, 2.0, 0.0, 7.0], device=DEVICE)
    drawn = torch.multinomial(weights, 20_000, replacement=True)
    assert abs(chi_square(drawn, weights.cpu() / 10)) < 5
    rows = torch.multinomial(weights.expand(200, 4), 3)
    assert torch.equal(rows.sort(1).values.cpu(), torch.tensor([0, 1, 3]).expand(200, 3))
    assert torch.multinomial(weights.expand(5, 4), 6, replacement=True).shape == (5, 6)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_draw_of_each_row(dtype: torch.dtype) -> None:
    """One draw is the same with and without replacement."""
    weights = torch.tensor([[1.0, 2.0, 0.0, 7.0]], dtype=dtype, device=DEVICE).expand(20_000, 4)
    for replacement in (True, False):
        drawn = torch.multinomial(weights, 1, replacement)
        assert drawn.shape == (20_000, 1)
        assert abs(chi_square(drawn.flatten(), torch.tensor([0.1, 0.2, 0.0, 0.7]))) < 5
    out = torch.empty(3, dtype=torch.int64, device=DEVICE)
    assert torch.multinomial(weights[0], 3, out=out) is out
    assert sorted(out.tolist()) == [0, 1, 3]
    assert torch.multinomial(weights[:0], 1).shape == (0, 1)


@pytest.mark.parametrize(
    ("weights", "samples", "message"),
    [
        (torch.ones(2, 2, 2), 1, "1 or 2 dim"),
        (torch.ones(2, dtype=torch.int64), 1, "floating-point"),
        (torch.ones(2), 0, "n_sample <= 0"),
        (torch.ones(2), 3, "without replacement"),
    ],
    ids=str,
)
def test_multinomial_refuses_as_the_cpu(weights, samples, message):
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError, match=message):
            torch.multinomial(weights.to(device), samples)


@pytest.mark.parametrize("samples", [1, 3])
def test_multinomial_waits_for_nothing(samples: int) -> None:
    """A capture refuses what waits for the device. Each replay draws anew."""
    weights = torch.rand(4, 50, device=DEVICE)
    torch.multinomial(weights, samples)
    graph = torch.ocl.OclGraph()
    with torch.ocl.graph(graph):
        drawn = torch.multinomial(weights, samples)
    graph.replay()
    first = drawn.cpu()
    assert first.min() >= 0
    assert first.max() < 50
    for _ in range(5):
        graph.replay()
        if not torch.equal(drawn.cpu(), first):
            return
    raise AssertionError("all replays drew the same")


def test_multinomial_takes_few_launches(background_at_rest: None) -> None:
    weights = torch.rand(4, 50, device=DEVICE)
    torch.multinomial(weights, 1)
    before = dlbackend.kernel_stats()["launches"]
    torch.multinomial(weights, 1)
    assert dlbackend.kernel_stats()["launches"] - before <= 5


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout(dtype: torch.dtype) -> None:
    x = torch.ones(COUNT, device=DEVICE, dtype=dtype, requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    kept = (y != 0).float().mean().item()
    assert kept == pytest.approx(0.75, abs=0.01)
    assert y.max().item() == pytest.approx(4 / 3, rel=1e-2)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    assert torch.nn.functional.dropout(x, 1.0).eq(0).all()
    assert torch.nn.functional.dropout(x, 0.5, training=False) is x


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_dropout_layout(p: float) -> None:
    wide = torch.rand(4, 8, 5, 6) + 1
    for x in (wide, wide.to(memory_format=torch.channels_last)[:, 1:7:2], wide[..., 2:4].transpose(1, 3)):
        expected, there = torch.native_dropout(x, p, True), on_device(x)
        y, mask = torch.native_dropout(there, p, True)
        assert [y.stride(), mask.stride()] == [t.stride() for t in expected]
        assert y.equal(torch.where(mask, there / (1 - p), 0.0))


@pytest.mark.parametrize("p", [0.5, 1.0])
def test_dropout_hides_no_nan_and_no_infinity(p: float) -> None:
    """Dropped they are NaN, as products with 0 are on the CPU; kept they stay."""
    x = torch.tensor([float("nan"), float("inf"), float("-inf"), 1.0], device=DEVICE).repeat(64)
    y, mask = torch.native_dropout(x, p, True)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    torch.testing.assert_close(y.cpu(), x.cpu() * (mask.cpu() * scale), rtol=0, atol=0, equal_nan=True)
    assert mask.cpu().view(-1, 4).any(0).tolist() == [p < 1] * 4
    dropped = torch.nn.functional.dropout(x, p).cpu().view(-1, 4)
    assert dropped[:, 0].isnan().all()
    assert dropped[:, 1:3].isfinite().sum() == 0


def test_dropout_of_integer_gradients_promotes() -> None:
    grad, mask = torch.arange(6), torch.tensor([True, False] * 3)
    expected = torch.ops.aten.native_dropout_backward(grad, mask, 1.5)
    actual = torch.ops.aten.native_dropout_backward(grad.to(DEVICE), mask.to(DEVICE), 1.5)
    assert actual.dtype == torch.float32
    assert actual.cpu().equal(expected)


def test_layouts_are_filled_whole() -> None:
    base = torch.zeros(50, 40, device=DEVICE)
    base[:, ::2].uniform_(1, 2)
    assert base[:, ::2].ge(1).all()
    assert base[:, 1::2].eq(0).all()
    transposed = torch.zeros(50, 40, device=DEVICE).t().normal_()
    assert transposed.ne(0).all()
    z = torch.randn(COUNT // 2, dtype=torch.complex64, device=DEVICE).cpu()
    assert z.real.std().item() == pytest.approx(math.sqrt(0.5), rel=0.02)
    assert torch.empty(0, device=DEVICE).uniform_().numel() == 0


def test_bad_arguments() -> None:
    for call in (
        lambda t: t.uniform_(2, 1),
        lambda t: t.normal_(0, -1),
        lambda t: t.exponential_(0),
        lambda t: t.geometric_(1),
        lambda t: t.bernoulli_(1.5),
        lambda t: t.random_(3, 3),
    ):
        with pytest.raises(RuntimeError):
            call(torch.empty(3, device=DEVICE))


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -1.0], "element < 0"),
        ([1.0, float("nan")], "nan"),
        ([float("inf"), 1.0], "inf"),
        ([0.0, 0.0], "sum of probabilities <= 0"),
        ([[1.0, 2.0], [0.0, 0.0]], "sum of probabilities <= 0"),
    ],
    ids=str,
)
def test_multinomial_checks_probabilities(weights, message, replacement):
    for samples in (1, 2):
        with pytest.raises(RuntimeError, match=message):
            torch.multinomial(torch.tensor(weights, device=DEVICE), samples, replacement).cpu()
    assert torch.multinomial(torch.tensor([0.0, 1.0], device=DEVICE), 3, True).tolist() == [1, 1, 1]
