"""flex_attention on the device, compiled by both backends and not, against attention in float64 on the CPU."""

import math

import pytest
import torch
from common import DEVICE
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dlbackend.compile
from dlbackend.compile import flex

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
FUSED = "_scaled_dot_product_fused_attention_overrideable"


@pytest.fixture(autouse=True)
def no_caches(fresh_dynamo):
    with torch._inductor.config.patch(force_disable_caches=True):  # graphs that are found there are not traced
        yield


def score_mods(slopes):
    return {
        "none": None,
        "alibi": lambda s, b, h, q, k: s + slopes[h] * (k - q),
        "soft_cap": lambda s, b, h, q, k: torch.tanh(s / 5) * 5,
        "causal": lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")),
    }


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    """The third query sees no key."""
    return ((q - k).abs() < 3) & (q != 2)


def dense(q, k, v, score_mod, mask):
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    b, h = torch.arange(q.shape[0]).view(-1, 1, 1, 1), torch.arange(q.shape[1]).view(-1, 1, 1)
    i, j = torch.arange(q.shape[2]).view(-1, 1), torch.arange(k.shape[2])
    if score_mod:
        scores = score_mod(scores, b, h, i, j)
    if mask:
        scores = scores.masked_fill(~mask(b, h, i, j), -math.inf)
    return scores.softmax(-1).nan_to_num(0) @ v


def operands(dtype=torch.float32):
    torch.manual_seed(0)
    on_device = [torch.randn(2, h, 24, 16).to(DEVICE, dtype).requires_grad_() for h in (4, 2, 2)]
    return on_device, [t.detach().cpu().double().requires_grad_() for t in on_device]


def function(name, mask, **options):
    blocks = None if mask is None else create_block_mask(mask, None, None, 24, 24, device=DEVICE)
    mod = score_mods(SLOPES.to(DEVICE))[name]
    return lambda q, k, v: flex_attention(q, k, v, score_mod=mod, block_mask=blocks, enable_gqa=True, **options)


def check(attend, name, mask, dtype=torch.float32):
    """Values and gradients."""
    given, exact = operands(dtype)
    actual, expected = attend(*given), dense(*exact, score_mods(SLOPES.double())[name], mask)
    assert actual.dtype == dtype
    results = (actual, *torch.autograd.grad(actual.float().square().sum(), given))
    wanted = (expected, *torch.autograd.grad(expected.square().sum(), exact))
    for a, e in zip(results, wanted, strict=True):
        error = 1e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(a.cpu().double(), e, rtol=0, atol=error * e.abs().max().item())


@pytest.fixture
def fused_calls(monkeypatch):
    """The calls of the fused attention that are traced from here on."""
    found, inner = [], flex._fused

    def note(*args):
        found.append(args)
        return inner(*args)

    monkeypatch.setattr(flex, "_fused", note)
    return found


@pytest.mark.parametrize("mask", [None, causal, window], ids=["all", "causal", "window"])
@pytest.mark.parametrize("name", ["none", "alibi", "soft_cap", "causal"])
def test_compiled(name, mask, fused_calls):
    check(torch.compile(function(name, mask), fullgraph=True), name, mask)
    assert bool(fused_calls) == (name != "soft_cap")


@pytest.mark.parametrize("name", ["alibi", "soft_cap"])
def test_bfloat16_and_eager_mode(name):
    check(torch.compile(function(name, causal), fullgraph=True), name, causal, torch.bfloat16)
    check(function(name, causal), name, causal)


def test_the_backend_ocl():
    compiled = torch.compile(function("alibi", window), backend=dlbackend.compile.backend, fullgraph=True)
    check(compiled, "alibi", window)


def test_log_sum_exps_and_gradients_of_terms():
    given, exact = operands()
    slopes = SLOPES.to(DEVICE).requires_grad_()

    def attend(q, k, v, slopes):
        mod = score_mods(slopes)["alibi"]
        return flex_attention(q, k, v, score_mod=mod, enable_gqa=True, return_lse=True)

    out, sums = torch.compile(attend, fullgraph=True)(*given, slopes)
    reference = SLOPES.double().requires_grad_()
    expected = dense(*exact, score_mods(reference)["alibi"], None)
    scores = exact[0] @ exact[1].repeat_interleave(2, 1).transpose(-1, -2) / 4
    distance = torch.arange(24) - torch.arange(24).view(-1, 1)
    scores = scores + reference.view(-1, 1, 1) * distance
    torch.testing.assert_close(sums.cpu().double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)
    actual = torch.autograd.grad(out.sum() + sums.square().sum(), [*given, slopes])
    wanted = torch.autograd.grad(expected.sum() + scores.logsumexp(-1).square().sum(), [*exact, reference])
    for a, e in zip(actual, wanted, strict=True):
        torch.testing.assert_close(a.cpu().double(), e, rtol=1e-4, atol=1e-4 * e.abs().max().item())


def test_without_gradients_and_in_autocast(fused_calls):
    given, exact = operands()
    expected = dense(*exact, score_mods(SLOPES.double())["alibi"], causal)
    compiled = torch.compile(function("alibi", causal), fullgraph=True)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            torch.testing.assert_close(compiled(*given).cpu().double(), expected, rtol=1e-4, atol=1e-5)
        torch._dynamo.reset()
    assert len(fused_calls) == 2
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        y = compiled(*given)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.cpu().double(), expected, rtol=0, atol=2e-2)


def test_nothing_but_the_mask_is_of_two_lengths():
    """Scores and their log-sum-exps are not in the graph where nothing takes them."""
    from torch._inductor.utils import run_and_get_code

    given, _ = operands()
    with torch.no_grad():
        _, (code,) = run_and_get_code(torch.compile(function("none", causal), fullgraph=True), *given)
        assert FUSED in code
        assert "24, 24" not in code[code.index("def call(") :]
        _, (code,) = run_and_get_code(torch.compile(function("none", window), fullgraph=True), *given)
        assert FUSED in code
        assert "empty_strided_ocl((1, 1, 24, 24)" in code
        assert "2, 4, 24, 24" not in code[code.index("def call(") :]


def test_what_adds_to_a_score():
    def traced(function):
        return torch.fx.symbolic_trace(function)

    for function in (
        lambda s, b, h, q, k: s,
        lambda s, b, h, q, k: (q - k) + s - h,
        lambda s, b, h, q, k: torch.where(q > k, s + b, -float("inf")),
        lambda s, b, h, q, k: torch.where(q > k, s + b, s),
    ):
        assert flex.adds_to_score(traced(function))
    for function in (
        lambda s, b, h, q, k: s * 2,
        lambda s, b, h, q, k: s + s,
        lambda s, b, h, q, k: q - s,
        lambda s, b, h, q, k: torch.where(q > k, s, -1e9),
        lambda s, b, h, q, k: torch.where(s > 0, s, -float("inf")),
        lambda s, b, h, q, k: s + s * q,
        lambda s, b, h, q, k: q,
        lambda s, b, h, q, k: torch.add(s, q, alpha=2),
    ):
        assert not flex.adds_to_score(traced(function))
