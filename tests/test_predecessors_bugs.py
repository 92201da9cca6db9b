"""Faults and gaps of earlier OpenCL devices for PyTorch, each as a case against the CPU."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dlbackend
from dlbackend import _C

DEVICE = "ocl:0"


@pytest.fixture(autouse=True)
def _no_fallbacks(monkeypatch):
    monkeypatch.setenv("DLBACKEND_FALLBACK", "error")
    dlbackend.reset_fallback_report()
    yield
    assert dlbackend.fallback_report() == {}


def check(fn, *inputs, **tolerance):
    """`fn` gives on the device what it gives on the CPU, and the gradients of floating inputs too."""
    results = []
    for device in ("cpu", DEVICE):
        leaves = [x.detach().to(device).requires_grad_(x.is_floating_point()) for x in inputs]
        out = fn(*leaves)
        if out.requires_grad:
            out.sin().sum().backward()
        results.append([out.detach().cpu(), *[x.grad.cpu() for x in leaves if x.grad is not None]])
    torch.testing.assert_close(results[1], results[0], equal_nan=True, **tolerance)


# --- Silent wrong results ---------------------------------------------------------------------------------------------


def test_integers_divide_and_promote_as_on_the_cpu():
    check(lambda a, b: a / b, torch.arange(5), torch.arange(1, 6))
    check(lambda a: a * 2.5, torch.arange(5))


def test_nan_survives_relu_and_max_pooling():
    nan = float("nan")
    check(torch.relu, torch.tensor([nan, -1.0, 2.0]))
    x = torch.tensor([[[1.0, nan, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]])
    with torch.no_grad():
        check(lambda t: F.max_pool2d(t, 2), x)


def test_scatter_add_into_a_scalar_adds():
    check(lambda s, i, v: s.scatter_add(0, i, v), torch.tensor(2.0), torch.tensor(0), torch.tensor(3.0))


def test_memory_formats_and_strides_are_kept():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for fn in (lambda t: t + 1, torch.relu, lambda t: t.clone(), lambda t: F.max_pool2d(t, 2), torch.empty_like):
        assert fn(x.to(DEVICE)).stride() == fn(x).stride()
    transposed = torch.randn(3, 4).t()
    assert (transposed.to(DEVICE) * 2).stride() == (transposed * 2).stride()


# --- Kernels that did not build ---------------------------------------------------------------------------------------


def test_a_device_is_what_its_type_says_not_its_vendor():
    """A Xeon under PoCL has Intel's vendor id, and is no Intel GPU."""
    if torch.ocl.get_device_properties(0).type != "cpu":
        pytest.skip("needs a CPU device")
    gemm = "gemm:float32 b=2 m=33 n=65 k=40 sa=1320,40,1 sb=2600,65,1 sc=2145,65,1 sd=0,0,1 add=1"
    assert "gpu" not in _C.explain_problem(gemm).split(" for ")[0]


def test_random_numbers_build():
    assert torch.randn(1000, device=DEVICE).std().item() == pytest.approx(1, abs=0.2)
    assert 0 < F.dropout(torch.ones(1000, device=DEVICE), 0.5).eq(0).sum().item() < 1000
    assert 0 < torch.full((1000,), 0.5, device=DEVICE).bernoulli().sum().item() < 1000


def test_softmax_attention_and_bias_gradients_build():
    x = torch.randn(4, 7)
    check(lambda t: F.softmax(t, 1), x)
    check(lambda t: F.log_softmax(t, 0), x)
    check(F.linear, x, torch.randn(5, 7), torch.randn(5))
    q, k, v = torch.randn(3, 2, 2, 6, 8)
    check(F.scaled_dot_product_attention, q, k, v, rtol=1e-4, atol=1e-5)


# --- What was missing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_matmul_in_other_types(dtype):
    tolerance = {} if dtype == torch.float64 else {"rtol": 2e-2, "atol": 2e-2}
    check(torch.matmul, torch.randn(5, 8).to(dtype), torch.randn(8, 6).to(dtype), **tolerance)


def test_convolution_and_pooling_variants():
    check(F.conv3d, torch.randn(1, 2, 4, 5, 6), torch.randn(3, 2, 2, 3, 3), rtol=1e-4, atol=1e-4)
    check(lambda t: F.adaptive_avg_pool2d(t, (3, 2)), torch.randn(2, 3, 7, 5))
    check(lambda t: F.max_pool2d(t, 2, dilation=2), torch.randn(2, 3, 8, 9))
    check(lambda t: F.batch_norm(t, None, None, training=True), torch.randn(4, 3, 5, 5), rtol=1e-4, atol=1e-5)


def test_the_device_module_is_whole():
    assert torch.ocl.is_available()
    assert torch.ocl.device_count() > torch.ocl.current_device() >= 0
    x = torch.ones(3).ocl()
    assert x.is_ocl
    assert nn.Linear(2, 2).ocl().weight.is_ocl
    assert torch.ocl.memory_allocated() > 0
    with torch.ocl.stream(torch.ocl.Stream()):
        torch.ocl.Event().record()
    torch.ocl.synchronize(0)
    torch.ocl.synchronize(DEVICE)
    pinned = torch.ones(3).pin_memory()
    assert pinned.is_pinned()
    assert (pinned.to(DEVICE, non_blocking=True) + 1).tolist() == [2, 2, 2]
    with torch.autocast("ocl", dtype=torch.bfloat16):
        assert (torch.ones(2, 2, device=DEVICE) @ torch.ones(2, 2, device=DEVICE)).dtype == torch.bfloat16


def test_compiled_functions_run():
    compiled = torch.compile(lambda t: (t * 2).relu() + 1, backend="aot_eager")
    x = torch.randn(5)
    torch.testing.assert_close(compiled(x.to(DEVICE)).cpu(), (x * 2).relu() + 1)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_recurrent_networks_need_no_cpu(cell):
    torch.manual_seed(0)
    net = cell(4, 5)
    x = torch.randn(6, 2, 4)
    expected = net(x)[0]
    torch.testing.assert_close(net.to(DEVICE)(x.to(DEVICE))[0].cpu(), expected, rtol=1e-4, atol=1e-5)


def test_index_put_and_upsample_gradients_stay_on_the_device():
    index = torch.tensor([0, 2, 2])
    check(lambda t, i, v: t.index_put((i,), v, accumulate=True), torch.randn(4, 3), index, torch.randn(3, 3))
    check(lambda t: F.interpolate(t, scale_factor=2, mode="bilinear"), torch.randn(1, 2, 4, 5), rtol=1e-4, atol=1e-5)
