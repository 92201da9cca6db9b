"""Resizing, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, FLOATS, check_op, layouts

LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}
SHAPES = [
    ((2, 3, 11), 7),
    ((2, 3, 5), 80),
    ((2, 3, 6, 7), (9, 5)),
    ((2, 70, 4, 3), (8, 6)),
    ((1, 2, 4, 5, 3), (3, 8, 6)),
]


@pytest.mark.parametrize(("shape", "size"), SHAPES, ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest(shape, size, mode):
    for x in layouts(torch.randn(shape)).values():
        check_op(lambda x: F.interpolate(x, size, mode=mode), x)
    check_op(lambda x: F.interpolate(x, scale_factor=2.0, mode=mode), torch.randn(shape))


@pytest.mark.parametrize(("shape", "size"), SHAPES, ids=str)
@pytest.mark.parametrize("align", [True, False])
def test_linear(shape, size, align):
    mode = LINEAR[len(shape)]
    for x in layouts(torch.randn(shape)).values():
        check_op(lambda x: F.interpolate(x, size, mode=mode, align_corners=align), x, scale=2)
    for scale in (1.7, 0.6):
        check_op(
            lambda x, s=scale: F.interpolate(x, scale_factor=s, mode=mode, align_corners=align),
            torch.randn(shape),
            scale=4,
        )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_no_neighbour_where_the_size_stays(bad):
    line = torch.tensor([[[1.0, bad, 3.0]]])
    for x, size in ((line, 3), (line[None], (2, 3)), (line[None].mT, (3, 2)), (line[None, None], (2, 1, 3))):
        for align in (True, False):
            expected = F.interpolate(x, size, mode=LINEAR[x.dim()], align_corners=align)
            got = F.interpolate(x.to(DEVICE), size, mode=LINEAR[x.dim()], align_corners=align)
            torch.testing.assert_close(got.cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("size", [(9, 5), (3, 14), (1, 1), (6, 7)], ids=str)
@pytest.mark.parametrize("align", [True, False])
def test_bicubic(size, align):
    for x in layouts(torch.randn(2, 3, 6, 7)).values():
        check_op(lambda x: F.interpolate(x, size, mode="bicubic", align_corners=align), x, scale=2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes(dtype):
    for mode in ("nearest", "bilinear", "bicubic"):
        check_op(lambda x, m=mode: F.interpolate(x, (9, 5), mode=m), torch.randn(2, 3, 6, 7), dtype=dtype, scale=8)


def test_bytes_and_errors():
    x = torch.randint(0, 256, (2, 3, 6, 7), dtype=torch.uint8)
    assert F.interpolate(x.to(DEVICE), (9, 5)).cpu().equal(F.interpolate(x, (9, 5)))
    assert F.interpolate(x.to(DEVICE), (9, 5), mode="bilinear").cpu().equal(F.interpolate(x, (9, 5), mode="bilinear"))
    with pytest.raises(RuntimeError):
        F.interpolate(torch.ones(1, 1, 4, 4, device=DEVICE), (0, 2))
    assert F.interpolate(torch.empty(0, 3, 4, 4, device=DEVICE), (8, 8)).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("size", [5, 10, 9])
@pytest.mark.parametrize("scale", [None, 1.3, 0.6, 2.0])
@pytest.mark.parametrize("name", ["upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"])
def test_scale_beside_a_size(name, scale, size):
    """A scale that is not what the sizes say counts, also where the size stays; for linear it does not there."""
    ops, x = torch.ops.aten, torch.randn(2, 3, 5)
    aligned = [[False], [True]] if "linear" in name else [[]]
    for extra in aligned:
        resize, grad_of = getattr(ops, name), getattr(ops, name + "_backward")
        torch.testing.assert_close(resize(x.to(DEVICE), [size], *extra, scale).cpu(), resize(x, [size], *extra, scale))
        # The gradient is the transpose of what forward computes.
        identity = torch.eye(5).unsqueeze(1)
        forward = resize(identity.to(DEVICE), [size], *extra, scale).cpu()[:, 0]
        ones = torch.eye(size).unsqueeze(1).to(DEVICE)
        backward = grad_of(ones, [size], [size, 1, 5], *extra, scale).cpu()[:, 0]
        torch.testing.assert_close(backward, forward.T.contiguous())


SIZES = [(97, 171, None), (48, 121, None), (189, 126, None), (83, 108, 1.3), (105, 126, 1.2), (120, 126, 1.05),
         (100, 210, 2.1), (130, 91, 0.7), (141, 42, 0.3), (90, 30, 1 / 3), (20, 22, 1.1), (31, 62, 2.05)]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("beside", [(), (3,), (130,), (3, 2)], ids=str)
def test_the_nearest_of_two_as_near(beside, mode, dtype):
    """The CPU rounds the coordinate of an output, and for some layouts and sizes the scale too, to a float."""
    axes = len(beside) + 1
    name = {"nearest": "upsample_nearest", "nearest-exact": "_upsample_nearest_exact"}[mode] + f"{axes}d"
    resize, grad_of = getattr(torch.ops.aten, name), getattr(torch.ops.aten, name + "_backward")
    formats = {1: [], 2: [torch.channels_last], 3: [torch.channels_last_3d]}[axes]
    for size, wanted, scale in SIZES:
        for channels in (1, 4):
            line = torch.arange(size, dtype=dtype).expand(1, channels, *beside, size)
            for layout in [torch.contiguous_format, *formats]:
                x = line.contiguous(memory_format=layout)
                arguments = [[*beside, wanted], *[None] * len(beside), scale]
                expected = resize(x, *arguments)
                there = x.to(DEVICE)
                got = resize(there, *arguments)
                torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0)
                # The gradient of the sum of all outputs at once counts how often each input was read.
                ones = torch.ones_like(got)
                counts = grad_of(ones, arguments[0], x.shape, *arguments[1:]).cpu()
                read = torch.bincount(expected.flatten(2)[0, 0].long(), minlength=size)
                torch.testing.assert_close(counts.flatten(2)[0, 0].view(-1, size).sum(0), read.to(dtype))
