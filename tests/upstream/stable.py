"""Stable forms of PyTorch's sorts, for the CPU: the device's are always stable, and equals have no other order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Pair = tuple[torch.Tensor, torch.Tensor]


def sort(x: torch.Tensor, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Pair:
    values, indices = torch.sort(x, dim=dim, descending=descending, stable=True)
    return values, indices


def argsort(x: torch.Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> torch.Tensor:
    return sort(x, dim, descending)[1]


def msort(x: torch.Tensor) -> torch.Tensor:
    return sort(x, 0)[0]


def topk(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    values, indices = sort(x, dim, largest)
    return (values, indices) if x.dim() == 0 else (values.narrow(dim, 0, k), indices.narrow(dim, 0, k))


def kthvalue(x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    values, indices = sort(x, dim)
    if x.dim() == 0:
        return values, indices
    values, indices = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


STABLE: dict[str, Callable[..., Any]] = {
    "sort": sort, "argsort": argsort, "msort": msort, "topk": topk, "kthvalue": kthvalue,
}  # fmt: skip
