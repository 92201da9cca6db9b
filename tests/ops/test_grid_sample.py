"""Sampling images at the positions of a grid, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, FLOATS, check_op, layouts

import dlbackend

MODES = [(4, "bilinear"), (4, "nearest"), (4, "bicubic"), (5, "bilinear"), (5, "nearest")]
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
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
    """As on the CPU: NaN where weights are made of such a place in two dimensions, else at an end of the image, or
    outside. What the CPU reads beside the image, or ends the process for, is left out."""
    inf, nan = float("inf"), float("nan")
    places = [(nan, 0.1), (0.1, nan), (inf, 0.1), (-inf, 0.1), (0.1, inf), (1e30, 0.1), (-1e12, 0.1), (0.1, 0.2)]
    plane = torch.tensor(places).view(1, 1, -1, 2)
    space = torch.cat([plane, torch.full((1, 1, len(places), 1), 0.3)], 3).unsqueeze(1)
    for dims, mode in MODES:
        x, grid = torch.arange(2 * 3.0 ** (dims - 2)).view(1, 2, *[3] * (dims - 2)) + 1, plane if dims == 4 else space
        for padding in PADDINGS:
            if dims == 5 and padding != "zeros":
                continue
            # The CPU's reflections of what is far away are off by its rounding.
            grid = grid[..., [0, 1, 2, 3, 4, 7], :] if padding == "reflection" else grid
            expected = F.grid_sample(x, grid, mode, padding, align_corners=False)
            there = F.grid_sample(x.to(DEVICE), grid.to(DEVICE), mode, padding, align_corners=False)
            torch.testing.assert_close(there.cpu(), expected, equal_nan=True)
            wide = x.repeat(1, 5, *[1] * (dims - 2)).to(DEVICE).to(memory_format=LAST[dims])
            there = F.grid_sample(wide, grid.to(DEVICE), mode, padding, align_corners=False)
            torch.testing.assert_close(there.cpu()[:, :2], expected, equal_nan=True)


@pytest.mark.parametrize(("mode", "padding"), [("bilinear", "zeros")] + [("bicubic", padding) for padding in PADDINGS])
def test_gradients_at_places_that_are_no_numbers(mode, padding):
    inf, nan = float("inf"), float("nan")
    for place in ((nan, 0.1), (0.1, nan), (inf, 0.1), (0.1, 0.2)):
        gradients = []
        for device in ("cpu", DEVICE):
            x = (torch.arange(9.0).view(1, 1, 3, 3) + 1).to(device).requires_grad_()
            grid = torch.tensor(place).view(1, 1, 1, 2).to(device).requires_grad_()
            F.grid_sample(x, grid, mode, padding, align_corners=False).sum().backward()
            gradients.append((x.grad.sum().cpu(), grid.grad.cpu()))
        for actual, expected in zip(gradients[1], gradients[0], strict=True):
            torch.testing.assert_close(actual, expected, equal_nan=True)


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
