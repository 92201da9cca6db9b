"""Automatic mixed precision: the ops of GradScaler, autocast's dtypes op by op, and training with both."""

import math

import pytest
import torch
from torch.nn import functional as F

import dlbackend  # noqa: F401

DEVICE = "ocl:0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_unscale(dtype):
    for bad in (None, math.inf, -math.inf, math.nan):
        grads = [torch.randn(n).to(dtype) for n in (5, 70, 0, 3)]
        if bad is not None:
            grads[1][41] = bad
        there = [g.to(DEVICE) for g in grads]
        found = torch.zeros(1, device=DEVICE)
        torch._amp_foreach_non_finite_check_and_unscale_(there, found, torch.tensor([0.25], device=DEVICE))
        assert found.item() == (bad is not None)
        for a, e in zip(there, grads, strict=True):
            torch.testing.assert_close(a.cpu(), (e.float() * 0.25).to(dtype) if dtype != torch.float64 else e * 0.25,
                                       equal_nan=True)  # fmt: skip
        torch._amp_foreach_non_finite_check_and_unscale_(there, found, torch.ones(1, device=DEVICE))
        assert found.item() == (bad is not None)  # never reset here


def test_unscale_mixed_and_strided():
    base = torch.ones(4, 6, device=DEVICE)
    grads = [base[:, ::2], torch.full((3,), 2.0, device=DEVICE, dtype=torch.float16)]
    found = torch.zeros(1, device=DEVICE)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.tensor([0.5], device=DEVICE))
    assert found.item() == 0
    assert base.cpu().tolist() == [[0.5, 1.0] * 3] * 4
    assert grads[1].tolist() == [1.0] * 3


def test_unscale_errors():
    grads = [torch.ones(3, device=DEVICE)]
    one = torch.ones(1, device=DEVICE)
    with pytest.raises(RuntimeError, match="1-element"):
        torch._amp_foreach_non_finite_check_and_unscale_(grads, torch.zeros(2, device=DEVICE), one)
    with pytest.raises(RuntimeError, match="float tensor"):
        torch._amp_foreach_non_finite_check_and_unscale_(grads, one.int(), one)


def test_update_scale():
    def both(scale, tracker, found):
        results = []
        for device in ("cpu", DEVICE):
            s, t = torch.tensor([scale], device=device), torch.tensor([tracker], dtype=torch.int32, device=device)
            torch._amp_update_scale_(s, t, torch.tensor([found], device=device), 2.0, 0.5, 4)
            results.append((s.item(), t.item()))
        assert results[0] == results[1]
        return results[1]

    assert both(8.0, 0, 0.0) == (8.0, 1)
    assert both(8.0, 3, 0.0) == (16.0, 0)
    assert both(8.0, 3, 1.0) == (4.0, 0)
    assert both(3e38, 3, 0.0) == (pytest.approx(3e38), 0)  # never grows to infinity


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_dtypes(dtype):
    a, w = torch.randn(4, 6, device=DEVICE), torch.randn(5, 6, device=DEVICE)
    image, kernel = torch.randn(1, 2, 5, 5, device=DEVICE), torch.randn(3, 2, 3, 3, device=DEVICE)
    with torch.autocast("ocl", dtype=dtype):
        assert torch.is_autocast_enabled("ocl")
        lower = [a @ w.t(), F.linear(a, w), F.conv2d(image, kernel), torch.mm(a, w.t()), torch.einsum("ij,kj", a, w)]
        assert all(t.dtype == dtype for t in lower)
        half = lower[0]
        classes = torch.arange(4).to(DEVICE)
        wide = [half.exp(), half.softmax(-1), half.log_softmax(-1), half.sum(), half.pow(2), half.norm()]
        wide += [F.layer_norm(half, (5,)), F.mse_loss(half, half), F.cross_entropy(half, classes)]
        assert all(t.dtype == torch.float32 for t in wide)
        assert torch.addcmul(a[:, :5], half, half).dtype == torch.float32  # the widest
        assert (half + half).dtype == dtype  # not listed: as it comes
        assert half.relu().dtype == dtype
        with pytest.raises(RuntimeError, match="with_logits"):
            F.binary_cross_entropy(half.float().sigmoid(), half.float().sigmoid())
        with torch.autocast("ocl", enabled=False):
            assert (a @ w.t()).dtype == torch.float32
    assert (a @ w.t()).dtype == torch.float32
    torch.testing.assert_close(half.cpu().float(), (a.cpu() @ w.cpu().t()), rtol=4e-2, atol=6e-2)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adam])
def test_training_with_scaler(cls, fused):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).to(DEVICE)
    optimizer = cls(model.parameters(), lr=0.02, fused=fused)
    scaler = torch.amp.GradScaler("ocl", init_scale=2.0**10, growth_interval=4)
    x, y = torch.randn(32, 8), torch.randint(3, (32,))
    losses = []
    for step in range(12):
        optimizer.zero_grad()
        with torch.autocast("ocl", dtype=torch.float16):
            loss = F.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        scaler.scale(loss).backward()
        if step == 5:  # an overflow: the step is skipped and the scale halves
            model[0].weight.grad[0, 0] = math.inf
            before, scale = model[0].weight.detach().cpu(), scaler.get_scale()
        if step % 2 and not fused:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        if step == 5:
            assert torch.equal(model[0].weight.detach().cpu(), before)
            assert scaler.get_scale() == scale / 2
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert scaler.get_scale() > 2.0**9
    state = scaler.state_dict()
    again = torch.amp.GradScaler("ocl")
    again.load_state_dict(state)
    assert again.get_scale() == scaler.get_scale()
