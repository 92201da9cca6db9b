"""torchvision's own ops: suppression, pooling of boxes and deformable convolution, forward and backward.

Where torchvision's compiled part does not fit this PyTorch, the reference is its stand-in, tests/nets/tv_shim.py.
"""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from common import DEVICE, assert_near

import dlbackend

sys.path.insert(0, str(Path(__file__).parent.parent / "nets"))
if importlib.util.find_spec("torchvision") is None:
    pytest.skip("no torchvision", allow_module_level=True)
import tv_shim  # noqa: F401  isort: skip  (before torchvision)
from torchvision import ops  # isort: skip

# float32 is what all other tests take.
DTYPES = [torch.float16, *(pytest.param(t, marks=pytest.mark.slow) for t in (torch.float64, torch.bfloat16))]


@pytest.fixture(autouse=True)
def no_fallback():
    dlbackend.reset_fallback_report()
    yield
    assert not dlbackend.fallback_report()


def boxes(count: int, size: float) -> torch.Tensor:
    """Corners of boxes, some of which leave the image or are empty; neither they nor the boxes' sizes are near ties of
    rounding or whole numbers, of which float32 and float64 might make different numbers of samples.
    """
    start = torch.rand(count, 2) * size * 0.8 - size * 0.1
    extent = torch.rand(count, 2) * size * 0.6
    extent[0] = 0
    corners = torch.cat([start, start + extent], 1).mul(16).round() / 16 + 0.01
    corners[1:, 2:] += 0.013  # the first is empty
    return corners


def rois_of(count: int, images: int, size: float) -> torch.Tensor:
    return torch.cat([torch.randint(images, (count, 1)).float(), boxes(count, size)], 1)


def check(fn, *inputs: torch.Tensor, dtype=torch.float32, scale=10.0, grads=(0,)) -> None:
    rounded = [t.to(dtype) if t.is_floating_point() else t for t in inputs]
    reference = [t.double() if t.is_floating_point() else t for t in rounded]
    device = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=DEVICE).copy_(t) for t in rounded]
    for i in grads:
        reference[i].requires_grad_()
        device[i].requires_grad_()
    expected, actual = fn(*reference), fn(*device)
    assert_near(actual.detach(), expected.detach(), scale)
    upstream = torch.randn(expected.shape).to(dtype)
    wanted = torch.autograd.grad(expected, [reference[i] for i in grads], upstream.double())
    got = torch.autograd.grad(actual, [device[i] for i in grads], upstream.to(DEVICE))
    for g, w in zip(got, wanted, strict=True):
        assert_near(g, w, scale)


def images(channels: int = 5) -> list[torch.Tensor]:
    x = torch.randn(2, channels, 13, 11)
    return [x, x.contiguous(memory_format=torch.channels_last), torch.randn(13, 2, 11, channels).permute(1, 3, 0, 2)]


@pytest.mark.parametrize("ratio", [-1, 2])
@pytest.mark.parametrize("aligned", [False, True])
def test_roi_align(ratio, aligned):
    for x in images(70):
        check(lambda x, r: ops.roi_align(x, r, (3, 4), 0.5, ratio, aligned), x, rois_of(6, 2, 24))


@pytest.mark.parametrize("dtype", DTYPES)
def test_roi_align_dtypes(dtype):
    check(lambda x, r: ops.roi_align(x, r, 2, 1.0, 2, True), images()[0], rois_of(4, 2, 11), dtype=dtype)


def test_roi_pool():
    for x in images(67):
        check(lambda x, r: ops.roi_pool(x, r, (3, 2), 0.5), x, rois_of(6, 2, 24))


def test_ps_roi_align():
    for x in images(12):
        check(lambda x, r: ops.ps_roi_align(x, r, (2, 3), 0.5, 2), x, rois_of(5, 2, 24)[1:])


def ps_roi_pool(x: torch.Tensor, rois: torch.Tensor, bins: tuple[int, int], scale: float) -> torch.Tensor:
    """The function of torchvision's CPU kernel, made of differentiable ops. Forward the kernel leaves out the image's
    last row and column, and backward it does not: boxes of this test end before them."""
    height, width = x.shape[2:]
    result = []
    for roi in rois:
        x1, y1, x2, y2 = (torch.floor(roi[1:] * scale + 0.5)).int().tolist()
        size_y, size_x = max(y2 - y1, 1) / bins[0], max(x2 - x1, 1) / bins[1]
        rows = []
        for i in range(bins[0] * bins[1]):
            ph, pw = divmod(i, bins[1])
            low_y, high_y = int(ph * size_y) + y1, -int(-(ph + 1) * size_y // 1) + y1
            low_x, high_x = int(pw * size_x) + x1, -int(-(pw + 1) * size_x // 1) + x1
            low_y, high_y = (min(max(v, 0), height - 1) for v in (low_y, high_y))
            low_x, high_x = (min(max(v, 0), width - 1) for v in (low_x, high_x))
            part = x[int(roi[0]), i :: bins[0] * bins[1], low_y:high_y, low_x:high_x]
            rows.append(part.mean((1, 2)) if part.numel() else x.new_zeros(part.shape[0]))
        result.append(torch.stack(rows, 1).view(-1, *bins))
    return torch.stack(result)


def test_ps_roi_pool():
    rois = rois_of(6, 2, 14)
    for x in images(12):
        expected = ps_roi_pool(x.double(), rois, (2, 3), 0.5)
        assert_near(ops.ps_roi_pool(x.to(DEVICE), rois.to(DEVICE), (2, 3), 0.5), expected)
        device, wanted = x.to(DEVICE).requires_grad_(), x.double().requires_grad_()
        upstream = torch.randn(expected.shape)
        ops.ps_roi_pool(device, rois.to(DEVICE), (2, 3), 0.5).backward(upstream.to(DEVICE))
        ps_roi_pool(wanted, rois, (2, 3), 0.5).backward(upstream.double())
        assert_near(device.grad, wanted.grad)


def test_gradients_are_deterministic_when_asked():
    torch.use_deterministic_algorithms(True)
    try:
        x, rois = torch.randn(2, 3, 40, 9), rois_of(9, 2, 36)
        check(lambda x, r: ops.roi_align(x, r, 3, 0.5, 2), x, rois)
        check(lambda x, r: ops.roi_pool(x, r, 3, 0.5), x, rois)
    finally:
        torch.use_deterministic_algorithms(False)


def test_boxes_that_are_not_there():
    x = torch.randn(2, 4, 5, 6, device=DEVICE, requires_grad=True)
    none = torch.zeros(0, 5, device=DEVICE)
    for out in (ops.roi_align(x, none, 2), ops.roi_pool(x, none, 2), ops.ps_roi_pool(x, none, 2)):
        assert out.shape == (0, 1 if out.shape[1] == 1 else 4, 2, 2)
        x.grad = None
        out.sum().backward()
        assert x.grad.eq(0).all()
    for op in (ops.roi_align, ops.roi_pool, ops.ps_roi_align, ops.ps_roi_pool):
        for bad in (torch.zeros(3, 4, device=DEVICE), torch.zeros(3, 5, device=DEVICE, dtype=torch.float64)):
            with pytest.raises((RuntimeError, AssertionError)):
                op(x, bad, 2)
    with pytest.raises(RuntimeError):
        ops.ps_roi_pool(x, torch.zeros(3, 5, device=DEVICE), 3)


@pytest.mark.parametrize("count", [1, 150])
def test_nms(count):
    corners, scores = boxes(count, 40), torch.rand(count)
    scores[: count // 2] = scores[count // 2 :][: count // 2]  # ties
    for threshold in (0.0, 0.4):
        kept = ops.nms(corners.to(DEVICE), scores.to(DEVICE), threshold)
        assert kept.cpu().equal(ops.nms(corners, scores, threshold))
    groups, scores = torch.randint(3, (count,)), torch.randperm(count).float()
    kept = ops.batched_nms(corners.to(DEVICE), scores.to(DEVICE), groups.to(DEVICE), 0.4)
    assert kept.cpu().equal(ops.batched_nms(corners, scores, groups, 0.4))


def test_nms_of_other_types_and_errors():
    corners, scores = boxes(90, 40), torch.rand(90)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        rounded = corners.to(dtype), (torch.arange(90) / 128).to(dtype)
        kept = ops.nms(*(t.to(DEVICE) for t in rounded), 0.5)
        assert kept.cpu().equal(ops.nms(*(t.double() for t in rounded), 0.5))
    kept = ops.nms(corners.to(DEVICE)[:0], scores.to(DEVICE)[:0], 0.5)
    assert kept.shape == (0,)
    assert kept.dtype == torch.int64
    twice = torch.cat([corners, corners], 1).to(DEVICE)[:, 2:6]
    assert ops.nms(twice, scores.to(DEVICE), 0.5).cpu().equal(ops.nms(twice.cpu(), scores, 0.5))
    for bad in ((corners[0], scores), (corners[:, :3], scores), (corners, scores[1:]), (corners, scores.double())):
        with pytest.raises(RuntimeError):
            ops.nms(*(t.to(DEVICE) for t in bad), 0.5)


def deform_inputs(groups=1, offset_groups=1, masked=True):
    x, weight = torch.randn(3, 4, 9, 8), torch.randn(6, 4 // groups, 3, 2)
    out = (3, offset_groups * 6, 5, 8)
    offset = (torch.randn(out[0], out[1] * 2, *out[2:]) * 2 * 16).round() / 16 + 0.01
    return x, weight, offset, torch.randn(6), *([torch.rand(out)] if masked else [])


@pytest.mark.parametrize(("groups", "offset_groups", "masked"), [(2, 2, True), (1, 4, False)])
def test_deform_conv2d(groups, offset_groups, masked):
    inputs = deform_inputs(groups, offset_groups, masked)

    def run(x, weight, offset, bias, mask=None):
        return ops.deform_conv2d(x, offset, weight, bias, (2, 1), (1, 1), (1, 2), mask)

    check(run, *inputs, grads=range(len(inputs)), scale=50)
    check(run, inputs[0].contiguous(memory_format=torch.channels_last), *inputs[1:], grads=(0, 2), scale=50)


@pytest.mark.parametrize("dtype", DTYPES)
def test_deform_conv2d_dtypes(dtype):
    def run(x, weight, offset, bias, mask):
        return ops.deform_conv2d(x, offset, weight, bias, (2, 1), (1, 1), (1, 2), mask)

    x, weight, offset, bias, mask = deform_inputs()
    check(run, x, weight, (offset.clamp(-3, 3) * 8).round() / 8 + 1 / 16, bias, mask, dtype=dtype, scale=60)


def test_deform_conv2d_errors():
    x, weight, offset, bias, mask = (t.to(DEVICE) for t in deform_inputs())

    def run(x=x, offset=offset, mask=mask, weight=weight):
        return ops.deform_conv2d(x, offset, weight, bias, (2, 1), (1, 1), (1, 2), mask)

    assert run().shape == (3, 6, 5, 8)
    assert run(x[:0], offset[:0], mask[:0]).shape == (0, 6, 5, 8)
    for bad in ({"offset": offset[:, :4]}, {"mask": mask[:, :4]}, {"offset": offset[:, :, 1:]}, {"x": x[:2]}):
        with pytest.raises(RuntimeError):
            run(**bad)
    with pytest.raises(RuntimeError):
        run(weight=weight.double())


def test_autocast():
    x = torch.randn(1, 4, 6, 6, device=DEVICE, dtype=torch.float16, requires_grad=True)
    rois = torch.tensor([[0, 1.0, 1, 4, 4]], device=DEVICE)
    with torch.autocast("ocl"):
        out = ops.roi_align(x, rois, 2, 1.0, 2)
        pooled = ops.roi_pool(x, rois, 2)
        kept = ops.nms(rois[:, 1:].half(), torch.ones(1, device=DEVICE), 0.5)
        convolved = ops.deform_conv2d(
            x, torch.zeros(1, 2, 6, 6, device=DEVICE), torch.randn(2, 4, 1, 1, device=DEVICE, requires_grad=True)
        )
    assert out.dtype == pooled.dtype == convolved.dtype == torch.float16
    assert kept.cpu().tolist() == [0]
    out.sum().backward()
    assert x.grad.dtype == torch.float16
