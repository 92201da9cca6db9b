"""For ops that move, count or order elements: the device must give exactly what the CPU gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import dlbackend  # noqa: F401

DEVICE = "ocl:0"
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.uint8,
    torch.int8,
    torch.bool,
    torch.complex64,
]
TOLERANCE = {
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (5e-2, 5e-2),
    torch.float32: (1e-5, 1e-5),
    torch.complex64: (1e-5, 1e-5),
}


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Small numbers with repetitions, of any dtype."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    if dtype.is_complex:
        return torch.complex(x, x.flip(0) if x.dim() else x).to(dtype)
    return (x.abs() if dtype in (torch.uint8, torch.bool) else x).to(dtype)


def to_device(x: Any) -> Any:
    """Tensors on the device with the same strides; other things as they are."""
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=DEVICE).copy_(x)


def check_same(fn: Callable[..., object], *inputs: object, close: bool = False) -> None:
    """`fn` on the device gives what it gives on the CPU, exactly or to rounding (`close`)."""
    expected = fn(*[x.clone() if isinstance(x, torch.Tensor) else x for x in inputs])
    actual = fn(*[to_device(x) for x in inputs])
    as_list = lambda r: list(r) if isinstance(r, (tuple, list)) else [r]  # noqa: E731
    for a, e in zip(as_list(actual), as_list(expected), strict=True):
        assert a.device.type == "ocl"
        rtol, atol = TOLERANCE.get(e.dtype, (1e-6, 1e-6)) if close else (0, 0)
        torch.testing.assert_close(a.cpu(), e, rtol=rtol, atol=atol, equal_nan=True)
