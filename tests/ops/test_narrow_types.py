"""float8 and complex32: conversions, copies, fills, printing."""

from __future__ import annotations

import pytest
import torch
from exact import DEVICE, check_same

import dlbackend

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


@pytest.fixture(autouse=True)
def no_fallback():
    dlbackend.reset_fallback_report()
    yield
    assert not dlbackend.fallback_report()


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().view(torch.uint8)


def shown(x: torch.Tensor) -> str:
    return "".join(repr(x).split()).replace(",device='ocl:0'", "")


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_every_float8(dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    for wide in [torch.float32, torch.float16, torch.bfloat16]:
        expected, actual = every.to(wide), every.to(DEVICE).to(wide).cpu()
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        signs = torch.signbit(expected) == torch.signbit(actual)
        assert (signs | expected.isnan()).all()
    assert torch.equal(bits(every.to(DEVICE)), bits(every))
    assert torch.equal(bits(every.to(DEVICE).view(16, 16).t().contiguous()), bits(every.view(16, 16).t().contiguous()))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_rounding_to_float8(dtype: torch.dtype) -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    numbers = numbers[numbers.isfinite()].sort()[0]
    middle = (numbers[1:] + numbers[:-1]) / 2
    inf = float("inf")
    far = torch.tensor([300, 448, 464, 464.1, 480, 1e5, -1e5, 57344, 61440, 65536, inf, -inf])
    if dtype == torch.float8_e4m3fn:  # PyTorch before 2.13 makes NaN of what is too large
        assert (bits(far[2:].to(DEVICE).to(dtype)) & 0x7F == 0x7E).all()
        far = far[:2]
    odd = torch.tensor([0.0, -0.0, 1e-30, -1e-30, float("nan")])
    x = torch.cat(
        [numbers, middle, torch.nextafter(middle, numbers[1:]), torch.nextafter(middle, numbers[:-1]), far, odd]
    )
    assert torch.equal(bits(x.to(DEVICE).to(dtype)), bits(x.to(dtype)))
    for wide in [torch.float16, torch.bfloat16]:
        narrow = x[: numbers.numel()].to(wide)
        assert torch.equal(bits(narrow.to(DEVICE).to(dtype)), bits(narrow.to(dtype)))


def test_float8_without_arithmetic() -> None:
    dtype = torch.float8_e4m3fn
    x = torch.randn(6, 5).to(dtype)
    there = x.to(DEVICE)
    assert torch.equal(
        bits(torch.full((3,), 1.3, device=DEVICE, dtype=dtype)), bits(torch.full((3,), 1.3, dtype=dtype))
    )
    assert torch.equal(bits(torch.zeros(2, device=DEVICE, dtype=dtype)), torch.zeros(2, dtype=torch.uint8))
    assert torch.equal(bits(torch.ones(2, device=DEVICE, dtype=dtype)), bits(torch.ones(2, dtype=dtype)))
    assert torch.equal(bits(torch.cat([there, there], 1)), bits(torch.cat([x, x], 1)))
    assert torch.equal(bits(there[torch.tensor([3, 0])]), bits(x[torch.tensor([3, 0])]))
    assert there[0, 0].item() == x[0, 0].item()
    assert shown(there) == shown(x)
    assert torch.equal(bits(there.to(torch.float8_e5m2)), bits(x.to(torch.float8_e5m2)))
    with pytest.raises(NotImplementedError):
        there + there


def test_complex32() -> None:
    z = torch.complex(torch.randn(4, 3), torch.randn(4, 3))
    half = z.to(torch.complex32)
    check_same(lambda z: (z.to(torch.complex32), z.t().to(torch.complex32), z.to(torch.complex32).to(z.dtype)), z)
    check_same(lambda h: (h.clone(), h.t().contiguous(), torch.view_as_real(h), h.real, h.imag.float()), half)
    check_same(
        lambda h: (h.conj().resolve_conj(), h.to(torch.complex128), torch.view_as_complex(torch.view_as_real(h))), half
    )
    check_same(lambda h: (torch.zeros_like(h), torch.ones_like(h), torch.full_like(h, 1.5 - 2j), h[1:, [0, 2]]), half)
    check_same(lambda h: (h.index_select(0, torch.tensor([2, 0], device=h.device)), h.ne(0), torch.cat([h, h])), half)
    check_same(lambda h: (h + h, h * 2, -h, h.abs()), half, close=True)
    assert half.to(DEVICE)[1, 1].item() == half[1, 1].item()
    assert shown(half.to(DEVICE)) == shown(half)
    assert torch.tensor([1.5], device=DEVICE).to(torch.complex32).cpu().tolist() == [1.5 + 0j]
    assert torch.empty(3, dtype=torch.complex32, device=DEVICE).fill_(2j).cpu().tolist() == [2j] * 3
