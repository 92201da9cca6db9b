"""Batch, layer and group normalisation, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from common import (
    DEVICE,
    FLOATS,
    TOLERANCE,
    assert_layout_as_on_cpu,
    assert_near,
    check_op,
    layouts,
    on_gpu_class,
    with_input_grad,
)

import dlbackend

BATCH_SHAPES = [(6, 5), (4, 3, 17), (3, 5, 6, 7), (2, 70, 3, 3), (2, 3, 4, 5, 3), (4, 7, 1, 1), (1, 2, 90, 100)]


@pytest.mark.parametrize("shape", BATCH_SHAPES, ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(shape, affine, training):
    channels = shape[1]
    w, b = torch.rand(channels) + 0.5, torch.randn(channels)
    mean, var = torch.randn(channels), torch.rand(channels) + 0.5

    def fn(x, *params):
        stats = [t.to(x.device, x.dtype) for t in (mean, var)]
        return F.batch_norm(x, *stats, *(params if affine else (None, None)), training=training)

    for x in layouts(torch.randn(shape) * 2 + 1).values():
        check_op(fn, x, *((w, b) if affine else ()), scale=4)


@pytest.mark.parametrize("dtype", FLOATS)
def test_batch_norm_dtypes(dtype):
    for fmt in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(4, 6, 5, 5).contiguous(memory_format=fmt)
        check_op(
            lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
            x,
            torch.rand(6),
            torch.randn(6),
            dtype=dtype,
            scale=4,
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_batch_norm_mixed(dtype):
    """Half input with float parameters and running statistics, as under autocast."""
    x = torch.randn(8, 4, 6, 6).to(dtype)
    reference, module = (torch.nn.BatchNorm2d(4).to(d, t) for d, t in (("cpu", torch.float64), (DEVICE, torch.float32)))
    a, b = x.double().requires_grad_(), x.to(DEVICE).requires_grad_()
    expected, actual = reference(a), module(b)
    assert actual.dtype == dtype
    assert_near(actual.detach(), expected.detach(), 2)
    g = torch.randn(x.shape).to(dtype)
    expected.backward(g.double())
    actual.backward(g.to(DEVICE))
    assert_near(b.grad, a.grad, 2)
    assert module.weight.grad.dtype == torch.float32
    assert_near(module.weight.grad, reference.weight.grad, 10)


def test_running_statistics():
    reference, module = torch.nn.BatchNorm2d(3, momentum=0.3).double(), torch.nn.BatchNorm2d(3, momentum=0.3).to(DEVICE)
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5) * 3 + 2
        reference(x.double())
        module(x.to(DEVICE))
    assert_near(module.running_mean, reference.running_mean)
    assert_near(module.running_var, reference.running_var)
    reference.eval()
    module.eval()
    assert_near(module(x.to(DEVICE)).detach(), reference(x.double()).detach())


@pytest.mark.parametrize("fmt", [torch.contiguous_format, torch.channels_last])
def test_variance_of_large_mean(fmt):
    """A mean of 10,000 standard deviations: sums of squares would have no correct digit."""
    x = (torch.randn(16, 8, 20, 20) + 1e4).contiguous(memory_format=fmt)
    _, mean, rstd = torch.native_batch_norm(x.to(DEVICE), None, None, None, None, True, 0.1, 1e-5)
    d = x.double()
    assert_near(mean, d.mean((0, 2, 3)), 1)
    assert_near(rstd, (d.var((0, 2, 3), unbiased=False) + 1e-5).rsqrt(), 50)


def test_batch_norm_one_pass_of_variants():
    x, stats = torch.randn(4, 3, 5), [torch.zeros(3), torch.ones(3)]
    device = [t.to(DEVICE) for t in stats]
    outputs = torch.ops.aten._batch_norm_with_update(x.to(DEVICE), None, None, *device, 0.1, 1e-5)
    expected = torch.native_batch_norm(x.double(), None, None, *(t.double() for t in stats), True, 0.1, 1e-5)
    for a, e in zip(outputs[:3], expected, strict=True):
        assert_near(a, e)
    legit = torch.ops.aten._native_batch_norm_legit.no_stats(x.to(DEVICE), None, None, True, 0.1, 1e-5)
    assert_near(legit[0], expected[0])
    functional = torch.ops.aten._native_batch_norm_legit_functional(x.to(DEVICE), None, None, *device, True, 0.1, 1e-5)
    assert_near(functional[0], expected[0])


def test_batch_norm_empty_and_errors():
    x = torch.empty(0, 3, 4, device=DEVICE, requires_grad=True)
    y = F.batch_norm(x, torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE), training=False)
    assert y.shape == (0, 3, 4)
    with pytest.raises(RuntimeError):
        F.batch_norm(torch.ones(2, 3, 4, device=DEVICE), torch.zeros(4, device=DEVICE), torch.ones(4, device=DEVICE))


def test_instance_norm():
    for x in layouts(torch.randn(3, 4, 6, 5)).values():
        check_op(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), x, torch.rand(4), torch.randn(4), scale=4)


@pytest.mark.parametrize(
    ("shape", "normalized"),
    [
        ((5, 7), (7,)),
        ((3, 4, 130), (130,)),
        ((3, 5, 6), (5, 6)),
        ((2, 3000), (3000,)),
        ((300, 33), (33,)),
        ((4,), (4,)),
    ],
    ids=str,
)
def test_layer_norm(shape, normalized):
    for x in layouts(torch.randn(shape) * 2 + 1).values():
        check_op(
            lambda x, w, b: F.layer_norm(x, normalized, w, b),
            x,
            torch.rand(normalized),
            torch.randn(normalized),
            scale=4,
        )
        check_op(lambda x: F.layer_norm(x, normalized), x, scale=4)
    check_op(lambda x, w: F.layer_norm(x, normalized, w), torch.randn(shape), torch.rand(normalized), scale=4)


@pytest.mark.parametrize(("shape", "normalized"), [((3, 5, 6), (6,)), ((3, 5, 6), (5, 6)), ((33,), (33,))], ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64], ids=str)
def test_rms_norm(shape, normalized, dtype):
    for x in layouts(torch.randn(shape) + 1).values():
        for weight in (None, torch.rand(normalized) + 0.5):
            results = []
            for device, compute in ((DEVICE, dtype), ("cpu", torch.complex128 if dtype.is_complex else torch.float64)):
                rounded = [t.to(dtype) for t in (x, weight) if t is not None]
                own = [t.to(device, compute).detach().requires_grad_() for t in rounded]
                y = F.rms_norm(own[0], normalized, own[1] if len(own) > 1 else None, 1e-3)
                results.append((y, *torch.autograd.grad(y, own, torch.ones_like(y))))
            assert results[0][0].stride() == results[1][0].stride()
            for actual, expected in zip(*results, strict=True):
                assert actual.dtype == dtype
                torch.testing.assert_close(
                    actual.cpu().to(expected.dtype),
                    expected,
                    rtol=4 * TOLERANCE.get(dtype, (2e-5,))[0],
                    atol=1e-2 if dtype in (torch.half, torch.bfloat16) else 1e-4,
                )


def test_rms_norm_launches_and_derivatives(background_at_rest):
    x, w = (torch.randn(s, dtype=torch.float64, device=DEVICE, requires_grad=True) for s in ((4, 8), (8,)))

    def norm(x, w):
        return F.rms_norm(x, (8,), w)

    assert torch.autograd.gradcheck(norm, (x, w), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(norm, (x, w))
    norm(x, w)
    torch.ocl.synchronize()
    before = dlbackend._C.kernel_stats()["launches"]
    norm(x, w)
    torch.ocl.synchronize()
    assert dlbackend._C.kernel_stats()["launches"] == before + 2
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        F.rms_norm(torch.ones(3, 4, dtype=torch.long, device=DEVICE), (4,))
    with pytest.raises(RuntimeError, match="expected input with shape"):
        F.rms_norm(x, (3,))


@pytest.mark.parametrize("dtype", FLOATS)
def test_norm_dtypes(dtype):
    w, b = torch.rand(36), torch.randn(36)
    check_op(lambda x, w, b: F.layer_norm(x, (36,), w, b), torch.randn(5, 9, 36), w, b, dtype=dtype, scale=8)
    check_op(lambda x, w, b: F.group_norm(x, 4, w, b), torch.randn(5, 36, 9), w, b, dtype=dtype, scale=8)


def test_layer_norm_errors():
    with pytest.raises(RuntimeError, match="normalized_shape"):
        F.layer_norm(torch.ones(3, 4, device=DEVICE), (5,))


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((3, 6), 2), ((2, 6, 10), 3), ((2, 8, 5, 4), 8), ((2, 8, 5, 4), 1), ((1, 4, 60, 70), 2), ((2, 6, 3, 2, 4), 2)],
    ids=str,
)
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm(shape, groups, affine):
    params = (torch.rand(shape[1]), torch.randn(shape[1])) if affine else ()
    for x in layouts(torch.randn(shape) * 2 + 1).values():
        check_op(lambda x, *p: F.group_norm(x, groups, *p), x, *params, scale=4)


@pytest.mark.parametrize("shape", [(2, 6, 5, 4), (2, 6, 3, 2, 4), (1, 64, 9, 9), (2, 6, 1, 1)], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_group_norm_layout(shape, groups):
    """Channels-last inputs have channels-last results and gradients."""
    for x in layouts(torch.randn(shape)).values():
        assert_layout_as_on_cpu(with_input_grad(lambda x: F.group_norm(x, groups)), x)


def test_long_rows_are_added_up_without_loss() -> None:
    length = 5_000_000
    x = torch.randn(1, length, generator=torch.Generator().manual_seed(0)) + 3
    there = x.to("ocl")
    rstd = (x.double().var(unbiased=False) + 1e-5).rsqrt().item()
    _, _, actual = torch.native_layer_norm(there, (length,), None, None, 1e-5)
    assert abs(actual.item() / rstd - 1) < 1e-6
    _, _, actual = torch.native_group_norm(there, None, None, 1, 1, length, 1, 1e-5)
    assert abs(actual.item() / rstd - 1) < 1e-6


@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_norm(dim, dtype):
    dlbackend.reset_fallback_report()
    v = torch.randn(4, 3, 5).to(dtype)
    g = torch.rand([v.shape[d] if d == dim else 1 for d in range(3)]).to(dtype)
    results = []
    for move in (lambda t: t.double(), lambda t: t.to(DEVICE)):
        a, b = (move(t.clone()).requires_grad_() for t in (v, g))
        w = torch._weight_norm(a, b, dim)
        w.backward(move(torch.linspace(-1, 1, v.numel()).view(v.shape).to(dtype)))
        results.append([w.detach(), a.grad, b.grad])
    for actual, expected in zip(results[1], results[0], strict=True):
        assert_near(actual, expected, 4)
    assert dlbackend.fallback_report() == {}


def test_statistics_beside_an_element_unlike_all_others():
    """The first one, as at a corner that padding changed: deviations from it cancel where they are squared."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 48, 48) * 0.3 + 1
    x[0, :, 0, 0] = 8
    for memory_format in (torch.contiguous_format, torch.channels_last):
        laid = x.contiguous(memory_format=memory_format)
        _, mean, rstd = torch.native_batch_norm(laid.to("ocl"), None, None, None, None, True, 0.1, 1e-5)
        _, expected_mean, expected = torch.native_batch_norm(x.double(), None, None, None, None, True, 0.1, 1e-5)
        torch.testing.assert_close(rstd.cpu().double(), expected, rtol=3e-6, atol=0)
        torch.testing.assert_close(mean.cpu().double(), expected_mean, rtol=3e-6, atol=0)


@pytest.fixture
def estimates_alone():
    """Nothing is measured, so that what runs now is what stays."""
    before, torch.backends.ocl.find_mode = torch.backends.ocl.find_mode, "fast"
    yield
    torch.backends.ocl.find_mode = before


@pytest.mark.parametrize("shape", [(4, 6, 5, 7), (3, 20, 7, 7), (40, 300), (8, 24, 64, 64)], ids=str)
def test_launches_of_a_batch_norm(shape, background_at_rest, estimates_alone):
    """GPUs finish the statistics and apply them in one launch; no pass's parts are merged in one of their own."""
    x, channels = torch.randn(shape, device=DEVICE, requires_grad=True), shape[1]
    weight, bias = (torch.ones(channels, device=DEVICE, requires_grad=True) for _ in range(2))
    statistics = torch.zeros(channels, device=DEVICE), torch.ones(channels, device=DEVICE)
    grad, inputs = torch.ones_like(x), (x, weight, bias)

    def forward(training=True):
        return F.batch_norm(x, *statistics, weight, bias, training)

    def launched(call):
        for _ in range(2):  # the first run of a large one is chosen for
            call()
        before = dlbackend.kernel_stats()["launches"]
        call()
        return dlbackend.kernel_stats()["launches"] - before

    passes, rest = 1, 1 if on_gpu_class() else 2
    assert launched(forward) == passes + rest
    y = forward()
    assert launched(lambda: torch.autograd.grad(y, inputs, grad, retain_graph=True)) == passes + rest
    assert launched(lambda: forward(training=False)) == rest


def test_batch_norm_without_an_update():
    x, w, mean, var = torch.randn(3, 4, 5), torch.randn(4), torch.randn(4), torch.rand(4) + 0.5
    expected = torch.ops.aten._batch_norm_no_update(
        x.double(), w.double(), None, mean.double(), var.double(), 0.1, 1e-5
    )
    on_device = [t.to(DEVICE) for t in (x, w, mean, var)]
    actual = torch.ops.aten._batch_norm_no_update(*on_device[:2], None, *on_device[2:], 0.1, 1e-5)
    assert_near(actual[0], expected[0])
    assert [t.shape for t in actual[1:]] == [t.shape for t in expected[1:]]
    assert torch.equal(on_device[2].cpu(), mean)
