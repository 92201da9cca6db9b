"""Depthwise convolutions by sliding windows, configs of solver gpu_depthwise, on whatever device there is."""

import pytest
import torch
import torch.nn.functional as F
from common import on_gpu_class, relative_error
from gpu_solvers import check_configs

GPU_CLASS = torch.ocl.is_available() and on_gpu_class()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPU_CLASS, reason="the device is not of the GPU class")]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 4e-3}
CASES = [  # images, channels, multiplier, size, filter, stride, padding, dilation
    (2, 40, 1, (9, 11), (3, 3), 1, 1, 1),
    (3, 33, 2, (15, 8), (5, 5), 2, 2, 1),
    (2, 70, 1, (20, 9), (7, 7), 1, 3, 1),
    (1, 5, 1, (31, 13), (3, 2), (3, 2), (2, 1), (1, 3)),  # stride as many as the rows of the filter
    (2, 4, 1, (7, 6), (2, 4), (3, 1), 0, 1),  # rows of x that no tap reaches
    (2, 6, 1, (1, 1), (7, 7), 1, 3, 1),  # one pixel
    (2, 9, 1, (5, 6, 7), (3, 3, 3), (1, 2, 1), (1, 0, 1), (2, 1, 2)),
    (2, 9, 1, (50,), (7,), 1, 3, 4),
    (0, 4, 1, (9, 9), (3, 3), 1, 1, 1),
    (1, 4, 1, (12, 9), (3, 3), 1, 1, (2, 1)),
    (1, 4, 1, (12, 9), (1, 9), 1, (0, 4), 1),
]
NOT_SLIDING = CASES[-2:]  # a dilation along height, and a wide filter


def train(case, dtype, channels_last: bool) -> None:
    """Forward with a bias and both gradients against float64."""
    n, c, multiplier, size, f, *geometry = case
    conv = (F.conv1d, F.conv2d, F.conv3d)[len(size) - 1]
    layout = {2: torch.channels_last, 3: torch.channels_last_3d}.get(len(size)) if channels_last else None

    def laid_out(x: torch.Tensor) -> torch.Tensor:
        return x.contiguous(memory_format=layout) if layout else x

    k = c * multiplier
    inputs = [laid_out(torch.randn(n, c, *size).to(dtype)), torch.randn(k, 1, *f).to(dtype), torch.randn(k).to(dtype)]
    want = [x.double().clone().requires_grad_() for x in inputs]
    got = [x.to("ocl").requires_grad_() for x in inputs]
    expected, y = conv(*want, *geometry, c), conv(*got, *geometry, c)
    grad = torch.randn(expected.shape).to(dtype)
    expected.backward(grad.double())
    y.backward(laid_out(grad).to("ocl"))
    if n == 0:
        weight_grad = got[1].grad
        assert weight_grad is not None
        assert weight_grad.eq(0).all()
        return
    pairs = [(y.detach(), expected.detach()), *((a.grad, b.grad) for a, b in zip(got, want, strict=True))]
    assert max(relative_error(a, b) for a, b in pairs) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_configs(case, dtype):
    """All configs of each problem, which measuring compares with the reference; what is taken against float64."""
    torch.manual_seed(0)

    def run() -> None:
        for channels_last in (False, True):
            train(case, dtype, channels_last)

    windows = {config.split(",")[1] for config in check_configs("gpu_depthwise", run, 0)}
    assert windows == (set() if case[0] == 0 else {"0"} if case in NOT_SLIDING else {"0", "1"})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types(dtype):
    torch.manual_seed(0)
    check_configs("gpu_depthwise", lambda: train(CASES[1], dtype, True), 1)


@pytest.mark.parametrize("channels_last", [False, True])
def test_segments_and_parts(channels_last):
    """Columns that several work-items share, and several parts of them, on few channels."""
    torch.manual_seed(0)
    case = (2, 3, 1, (200, 90), (3, 3), 1, 1, 1)
    configs = check_configs("gpu_depthwise", lambda: train(case, torch.float32, channels_last), 1)
    assert any(splits != "1" for splits, windows, *_ in (config.split(",") for config in configs) if windows == "1")
