"""Sampling images at the positions of a grid, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, FLOATS, check_op, layouts

import dlbackend

MODES = [(4, "bilinear"), (4, "nearest"), (4, "bicubic"), (5, "bilinear"), (5, "nearest")]
PADDINGS = ["zeros", "border", "reflection"]


def grid_of(dims: int, samples: int = 2) -> torch.Tensor:
    """Positions in the image and well outside of it, none within rounding of a tie."""
    size = {4: (samples, 5, 70, 2), 5: (samples, 3, 4, 9, 3)}[dims]
    return (torch.rand(size, dtype=torch.float64) * 5 - 2.5).mul(64).round().div(64).add(0.003).float()


def image_of(dims: int) -> torch.Tensor:
    return torch.randn({4: (2, 3, 6, 7), 5: (2, 3, 4, 6, 5)}[dims])


@pytest.mark.parametrize(("dims", "mode"), MODES)
@pytest.mark.parametrize("padding", PADDINGS)
def test_modes(dims, mode, padding):
    dlbackend.reset_fallback_report()
    for align in (False, True):
        check_op(lambda x, g, a=align: F.grid_sample(x, g, mode, padding, a), image_of(dims), grid_of(dims), scale=20)
    assert not dlbackend.fallback_report()


@pytest.mark.parametrize("dims", [4, 5])
def test_layouts(dims):
    for name, x in layouts(torch.randn({4: (2, 19, 6, 7), 5: (2, 19, 4, 6, 5)}[dims])).items():
        grid = layouts(grid_of(dims))["transposed" if name == "sliced" else "sliced"]
        check_op(lambda x, g: F.grid_sample(x, g, align_corners=False), x, grid, scale=20)


@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes(dtype):
    # Coordinates that half precision holds exactly.
    grid = (torch.randint(-40, 40, (2, 4, 5, 2)) / 32).float()
    for mode in ("bilinear", "bicubic"):
        check_op(
            lambda x, g, m=mode: F.grid_sample(x, g, m, align_corners=True),
            image_of(4),
            grid + 1 / 128,
            dtype=dtype,
            scale=20,
        )


def test_few_samples_and_rows_have_owners():
    """One image of one channel: the rows of its gradient are divided."""
    check_op(lambda x, g: F.grid_sample(x, g, align_corners=False), torch.randn(1, 1, 40, 3), grid_of(4, 1), scale=40)


def test_gradient_is_deterministic_when_asked():
    x, grid = torch.randn(1, 2, 5, 6), grid_of(4, 1)
    torch.use_deterministic_algorithms(True)
    try:
        check_op(lambda x, g: F.grid_sample(x, g, align_corners=False), x, grid, scale=20)
    finally:
        torch.use_deterministic_algorithms(False)


def test_places_that_are_no_numbers():
    grid = torch.tensor([[[[float("nan"), 0.0], [float("inf"), 0.0], [-1e30, 1e30]]]], device=DEVICE)
    x = torch.ones(1, 1, 3, 3, device=DEVICE)
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in PADDINGS:
            out = F.grid_sample(x, grid, mode, padding, align_corners=False).cpu()
            assert not out.isnan().any()
    assert F.grid_sample(x, grid, padding_mode="zeros", align_corners=False).cpu().eq(0).all()


def test_empty_and_errors():
    image, grid = torch.randn(2, 3, 4, 5, device=DEVICE), torch.zeros(2, 6, 7, 2, device=DEVICE)
    assert F.grid_sample(image, grid[:, :0], align_corners=False).shape == (2, 3, 0, 7)
    assert F.grid_sample(image[:0], grid[:0], align_corners=False).shape == (0, 3, 6, 7)
    empty = image[:, :0].clone().requires_grad_()
    F.grid_sample(empty, grid, align_corners=False).sum().backward()
    assert empty.grad.shape == (2, 0, 4, 5)
    for bad in (grid[:1], grid.double(), grid[..., :1], grid.cpu()):
        with pytest.raises(RuntimeError):
            F.grid_sample(image, bad, align_corners=False)
    with pytest.raises(RuntimeError):
        F.grid_sample(image[:, :, :0], grid, align_corners=False)
    with pytest.raises(NotImplementedError):
        torch.grid_sampler(image.long(), grid.long(), 0, 0, False)
    out = torch.ops.aten._grid_sampler_2d_cpu_fallback(image, grid, 0, 0, False)
    assert out.equal(F.grid_sample(image, grid, align_corners=False))
