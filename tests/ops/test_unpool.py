"""Max unpooling, fractional max pooling, and the dtypes that pooling refuses."""

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, FLOATS, assert_near, check_op

import dlbackend


@pytest.fixture(autouse=True)
def no_fallback():
    dlbackend.reset_fallback_report()
    yield
    assert not dlbackend.fallback_report()


@pytest.mark.parametrize("dtype", FLOATS)
def test_unpool(dtype):
    for shape, pool, unpool in (
        ((2, 3, 8, 6), F.max_pool2d, F.max_unpool2d),
        ((2, 3, 4, 8, 6), F.max_pool3d, F.max_unpool3d),
        ((3, 8, 6), F.max_pool2d, F.max_unpool2d),
    ):
        pooled, indices = pool(torch.randn(shape), 2, return_indices=True)
        check_op(lambda x, i, u=unpool: u(x, i, 2), pooled, indices, dtype=dtype)


def test_unpool_layouts_and_errors():
    pooled, indices = F.max_pool2d(torch.randn(2, 3, 8, 6), 2, return_indices=True)
    last = pooled.to(DEVICE).contiguous(memory_format=torch.channels_last)
    out = F.max_unpool2d(last, indices.to(DEVICE), 2)
    expected = F.max_unpool2d(pooled.contiguous(memory_format=torch.channels_last), indices, 2)
    assert out.stride() == expected.stride()
    assert_near(out, expected.double())
    # Where places repeat the last one stays, as on the CPU.
    same = torch.full((2, 3, 4, 3), 5)
    expected = F.max_unpool2d(pooled, same, 2)
    torch.use_deterministic_algorithms(True)
    try:
        assert F.max_unpool2d(last, same.to(DEVICE), 2).cpu().equal(expected)
    finally:
        torch.use_deterministic_algorithms(False)
    with pytest.raises(RuntimeError, match="invalid max index"):
        F.max_unpool2d(last, same.to(DEVICE) + 100, 2).cpu()
    for bad in ((last, indices.int().to(DEVICE)), (last[:, :2], indices.to(DEVICE)), (last[0, 0], indices[0, 0])):
        with pytest.raises(RuntimeError):
            torch.ops.aten.max_unpool2d(*bad, [8, 6])
    with pytest.raises(NotImplementedError):
        torch.ops.aten.max_unpool2d(last.long(), indices.to(DEVICE), [8, 6])
    assert torch.ops.aten.max_unpool2d(last[:0], indices[:0].to(DEVICE), [8, 6]).shape == (0, 3, 8, 6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axes", [2, 3])
def test_fractional(axes, dtype):
    shape, size = ((2, 3, 17, 13), (5, 4)) if axes == 2 else ((2, 3, 9, 7, 8), (4, 3, 5))
    pool = torch.ops.aten.fractional_max_pool2d if axes == 2 else torch.ops.aten.fractional_max_pool3d
    grad_of = getattr(torch.ops.aten, f"fractional_max_pool{axes}d_backward")
    x, samples = torch.randn(shape).to(dtype), torch.rand(2, 3, axes).to(dtype)
    kernel = [2, 3, 2][:axes]
    out, places = pool(x.to(DEVICE), kernel, size, samples.to(DEVICE))
    expected, expected_places = pool(x, kernel, size, samples)
    assert out.cpu().equal(expected)
    assert places.cpu().equal(expected_places)
    grad = torch.randn(expected.shape).to(dtype)
    got = grad_of(grad.to(DEVICE), x.to(DEVICE), kernel, size, places)
    assert_near(got, grad_of(grad.double(), x.double(), kernel, size, expected_places), scale=2)
    one, _ = pool(x[0].to(DEVICE).transpose(0, 1).contiguous().transpose(0, 1), kernel, size, samples[:1].to(DEVICE))
    assert one.cpu().equal(expected[0])


def test_fractional_errors():
    x, samples = torch.randn(1, 2, 5, 5, device=DEVICE), torch.rand(1, 2, 2, device=DEVICE)
    for bad in ((x, 2, (5, 5)), (x[0, 0], 2, (2, 2))):
        with pytest.raises(RuntimeError):
            F.fractional_max_pool2d(*bad, _random_samples=samples)
    with pytest.raises(RuntimeError):
        F.fractional_max_pool2d(x, 2, (2, 2), _random_samples=samples.double())
    with pytest.raises(NotImplementedError):
        torch.ops.aten.fractional_max_pool2d(x.long(), [2, 2], [2, 2], samples.long())


def test_what_adaptive_pooling_refuses():
    x = torch.ones(2, 3, 4, 4, device=DEVICE, dtype=torch.int64)
    for op in (F.adaptive_avg_pool2d, F.adaptive_max_pool2d, F.adaptive_avg_pool3d, F.adaptive_max_pool3d):
        for size in (2, 0):
            with pytest.raises(NotImplementedError):
                op(x, size)
        assert op(x.float(), 0).numel() == 0


def test_averages_of_integers():
    for x in (torch.randint(-99, 99, (2, 3, 5, 7, 6)), torch.randint(-(2**40), 2**40, (1, 2, 4, 4, 4))):
        for args in ({}, {"padding": 1}, {"padding": 1, "count_include_pad": False}, {"divisor_override": 3}):
            expected = F.avg_pool3d(x, 3, 2, **args)
            assert F.avg_pool3d(x.to(DEVICE), 3, 2, **args).cpu().equal(expected)
            assert F.avg_pool2d(x[0].to(DEVICE), 3, 2, **args).cpu().equal(F.avg_pool2d(x[0], 3, 2, **args))


def test_batch_norm_out():
    x, weight = torch.randn(4, 3, 5), torch.randn(3)
    stats = torch.zeros(3), torch.ones(3)
    for name, args in (("native_batch_norm.out", stats), ("_native_batch_norm_legit.no_stats_out", ())):
        op, overload = name.split(".")
        run = getattr(getattr(torch.ops.aten, op), overload)
        results = []
        for device in ("cpu", DEVICE):
            outs = [torch.empty(0, device=device) for _ in range(3)]
            names = ("out", "save_mean", "save_invstd")
            moved = [t.to(device).clone() for t in args]
            run(x.to(device), weight.to(device), None, *moved, True, 0.1, 1e-5, **dict(zip(names, outs, strict=True)))
            results.append([t.cpu() for t in (*outs, *moved)])
        for got, expected in zip(*reversed(results), strict=True):
            torch.testing.assert_close(got, expected)
