"""Resizing with antialiasing, and of bytes."""

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, FLOATS, check_op, layouts

import dlbackend

SIZES = [(61, 50), (12, 9), (37, 11), (5, 29), (1, 1)]


@pytest.fixture(autouse=True)
def no_fallback():
    dlbackend.reset_fallback_report()
    yield
    assert not dlbackend.fallback_report()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align", [False, True])
def test_antialias(mode, align):
    for size in SIZES:
        check_op(
            lambda x, s=size: F.interpolate(x, s, mode=mode, antialias=True, align_corners=align),
            torch.randn(2, 3, 37, 29),
            scale=10,
        )
    for x in layouts(torch.randn(2, 70, 9, 7)).values():
        check_op(lambda x: F.interpolate(x, (4, 12), mode=mode, antialias=True, align_corners=align), x, scale=10)
    check_op(
        lambda x: F.interpolate(x, scale_factor=(0.4, 1.6), mode=mode, antialias=True, align_corners=align),
        torch.randn(1, 2, 12, 11),
        scale=10,
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_antialias_dtypes(dtype):
    check_op(
        lambda x: F.interpolate(x, (4, 12), mode="bicubic", antialias=True),
        torch.randn(2, 3, 9, 7),
        dtype=dtype,
        scale=9,
    )


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_upsample_lanczos2d_aa"), reason="this PyTorch has no such filter")
def test_lanczos():
    for size in SIZES[:3]:
        check_op(
            lambda x, s=size: torch.ops.aten._upsample_lanczos2d_aa(x, s, False), torch.randn(2, 3, 37, 29), scale=20
        )


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 70])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_bytes_are_pytorchs(mode, antialias, channels):
    images = torch.randint(0, 256, (2, channels, 37, 29), dtype=torch.uint8)
    for x in (images, images.contiguous(memory_format=torch.channels_last)):
        for size in [*SIZES[:4], (37, 29)]:  # PyTorch's CPU kernels fail for a single element
            for align in (False, True):
                arguments = {"size": size, "mode": mode, "antialias": antialias, "align_corners": align}
                out, expected = F.interpolate(x.to(DEVICE), **arguments), F.interpolate(x, **arguments)
                assert out.cpu().equal(expected)
                assert out.stride() == expected.stride()
        arguments = {"scale_factor": (0.7, 1.3), "mode": mode, "antialias": antialias}
        assert F.interpolate(x.to(DEVICE), **arguments).cpu().equal(F.interpolate(x, **arguments))


def test_refused_and_empty():
    x = torch.ones(1, 2, 4, 4, device=DEVICE)
    for dtype in (torch.int64, torch.int32, torch.bool, torch.complex64):
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
            with pytest.raises(NotImplementedError):
                F.interpolate(x.to(dtype), 3, mode=mode)
    for dims, mode in ((3, "linear"), (5, "trilinear")):
        with pytest.raises(NotImplementedError):
            F.interpolate(torch.ones([2] * dims, device=DEVICE, dtype=torch.uint8), 3, mode=mode)
    with pytest.raises(RuntimeError):
        F.interpolate(x, (0, 2), mode="bilinear", antialias=True)
    assert F.interpolate(x[:0], (8, 8), mode="bicubic", antialias=True).shape == (0, 2, 8, 8)
    out = torch.empty(1, 3, 5, 2, device=DEVICE).permute(0, 3, 1, 2)
    torch.ops.aten._upsample_bilinear2d_aa.out(x, [3, 5], False, out=out)
    torch.testing.assert_close(out, torch.ones_like(out))
