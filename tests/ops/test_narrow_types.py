"""float8 and complex32: conversions, copies, fills, printing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from exact import DEVICE, check_same

import dlbackend

SIGNED = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
FLOAT8 = [*SIGNED, torch.float8_e8m0fnu]


@pytest.fixture(autouse=True)
def no_fallback():
    dlbackend.reset_fallback_report()
    yield
    assert not dlbackend.fallback_report()


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().view(torch.uint8)


def every(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def check_bits(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    """`fn` gives the same dtype and bits, or numbers and truth values, as on the CPU; every NaN is one."""
    expected, actual = fn(*inputs), fn(*[x.to(DEVICE) for x in inputs])
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    nan = expected.float().isnan()
    assert torch.equal(actual.cpu().float().isnan(), nan)
    same = bits(actual) == expected.view(torch.uint8)
    assert (same.view(*expected.shape, -1).all(-1) | nan).all()


def shown(x: torch.Tensor) -> str:
    return "".join(repr(x).split()).replace(",device='ocl:0'", "")


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_every_float8(dtype: torch.dtype) -> None:
    x = every(dtype)
    for wide in [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool, torch.complex64]:
        expected, actual = x.to(wide), x.to(DEVICE).to(wide).cpu()
        if wide == torch.int32:  # of NaN the CPU's vectors and its scalar code make different ones
            expected, actual = expected[~x.isnan()], actual[~x.isnan()]
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        if wide.is_floating_point:
            signs = torch.signbit(expected) == torch.signbit(actual)
            assert (signs | expected.isnan()).all()
    assert torch.equal(bits(x.to(DEVICE)), bits(x))
    assert torch.equal(bits(x.to(DEVICE).view(16, 16).t().contiguous()), bits(x.view(16, 16).t().contiguous()))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_rounding_to_float8(dtype: torch.dtype) -> None:
    numbers = every(dtype).float()
    if dtype == torch.float8_e8m0fnu:
        numbers = torch.cat([numbers, -numbers])  # whose signs are dropped
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


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_is_compared_and_chosen(dtype: torch.dtype) -> None:
    x = every(dtype)
    rows, columns = x.view(256, 1), x.view(1, 256)
    check_bits(torch.eq, rows, columns)
    check_bits(torch.ne, rows, columns)
    check_bits(lambda x: x == 1.5, x)
    check_bits(lambda x: x != 2.1, x)  # which is compared as a number of the dtype
    check_bits(torch.isnan, x)
    mask = torch.arange(256) % 3 == 0
    check_bits(torch.where, mask, x, x.view(torch.uint8).flip(0).view(dtype))
    check_bits(lambda m, x: torch.where(m, x, 0.7), mask, x)
    check_bits(lambda m, x: x[m], mask, x)
    check_bits(lambda x: x.any(), x)
    check_bits(lambda x: x.view(16, 16).all(0), x)
    check_bits(lambda x: x.view(16, 16).any(1), torch.zeros(256).to(dtype))
    filled = x.to(DEVICE).masked_fill(mask.to(DEVICE), 2)  # which the CPU does not have
    assert torch.equal(filled.cpu().float().nan_to_num(1e9), x.float().masked_fill(mask, 2).nan_to_num(1e9))
    if dtype in SIGNED:
        check_bits(lambda x: x.abs().float().abs(), x)  # of -0 the CPU leaves the sign


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_products_of_float8(dtype: torch.dtype) -> None:
    x = every(dtype)
    rows, columns = x.view(256, 1), x[::7].clone().view(1, -1)
    if dtype == torch.float8_e4m3fn:  # PyTorch before 2.13 makes NaN of what is too large
        greatest = torch.finfo(dtype).max
        expected = (rows.float() * columns.float()).clamp(-greatest, greatest).to(dtype)
        check_bits(lambda x, y: x * y if x.device.type == "ocl" else expected, rows, columns)
    else:
        check_bits(torch.mul, rows, columns)
    with pytest.raises(NotImplementedError):
        x.to(DEVICE) + x.to(DEVICE)
    with pytest.raises(RuntimeError, match="Promotion for Float8"):
        x.to(DEVICE) * x.to(DEVICE).float()


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_is_moved_and_filled(dtype: torch.dtype) -> None:
    x = torch.arange(30).view(6, 5).to(dtype)
    index = torch.tensor([3, 0])
    check_bits(lambda x: torch.cat([x, x], 1), x)
    check_bits(lambda x, i: x[i], x, index)
    check_bits(lambda x, i: x.index_select(1, i), x, index)
    if dtype in SIGNED:
        check_bits(lambda x, i: x.index_put((i,), x[:2]), x, index)
        check_bits(lambda x, i: x.index_put((i,), x[:2], accumulate=True), x, index)
    check_bits(lambda x: x.roll(1, 0), x)
    check_bits(lambda x: x.repeat(2, 1), x)
    check_bits(lambda x: torch.nn.functional.pad(x, (1, 2), value=2.0), x)
    check_bits(lambda x: x.t().contiguous(), x)
    check_bits(lambda x: x.clone().fill_(x[2, 2]), x)
    check_bits(lambda x: x.clone().zero_(), x)
    check_bits(torch.zeros_like, x)
    check_bits(torch.ones_like, x)
    check_bits(lambda x: torch.full_like(x, 1.3), x)
    check_bits(lambda x: torch.eye(3, dtype=x.dtype, device=x.device), x)
    check_bits(lambda x: x.to(torch.float8_e5m2), x)
    check_bits(lambda x: torch.arange(40, device=x.device).to(x.dtype), x)
    there = x.to(DEVICE)
    assert there[2, 3].item() == x[2, 3].item()
    assert there.tolist() == x.tolist()
    assert shown(there) == shown(x)
    with pytest.raises(RuntimeError, match="cannot be converted"):
        torch.full((2,), 1e39, device=DEVICE, dtype=dtype)


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
