"""Sequences, triangles and rearrangements by position."""

import pytest
import torch
from exact import DEVICE, DTYPES, check_same, values

NUMBERS = [d for d in DTYPES if d not in (torch.bool, torch.complex64)]


def device_of(*inputs: torch.Tensor) -> torch.device:
    return inputs[0].device


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_sequences(dtype: torch.dtype) -> None:
    here = torch.zeros(())
    check_same(lambda t: torch.arange(2, 50, 3, dtype=dtype, device=t.device), here)
    low = 0 if dtype == torch.uint8 else -2
    check_same(lambda t: torch.linspace(low, 7.5, 9, dtype=dtype, device=t.device), here, close=True)
    check_same(lambda t: torch.linspace(3, 3, 1, dtype=dtype, device=t.device), here)
    if dtype.is_floating_point:
        check_same(lambda t: torch.arange(5, -1, -0.3, dtype=dtype, device=t.device), here, close=True)
        check_same(lambda t: torch.logspace(0, 2, 5, dtype=dtype, device=t.device), here, close=True)


def test_sequence_edges() -> None:
    here = torch.zeros(())
    check_same(lambda t: torch.arange(0, device=t.device), here)
    check_same(lambda t: torch.arange(2**40, 2**40 + 3, device=t.device), here)
    check_same(lambda t: torch.eye(4, 5, device=t.device), here)
    check_same(lambda t: torch.eye(3, dtype=torch.bool, device=t.device), here)
    check_same(lambda t: torch.arange(6, out=torch.empty(12, device=t.device)[::2]), here)
    with pytest.raises(RuntimeError, match="inconsistent with step sign"):
        torch.arange(3, 1, device=DEVICE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triangles(dtype: torch.dtype) -> None:
    x = values((3, 4, 6), dtype)
    for k in (-5, -1, 0, 2, 7):
        check_same(lambda t, k=k: (t.tril(k), t.triu(k)), x)
    check_same(lambda t: (t.mT.tril(1), t.transpose(0, 2).triu()), x)
    check_same(lambda t: t.expand(2, 3, 4, 6).tril(), x)
    check_same(lambda t: t.triu_(1), x)


def test_triangle_indices() -> None:
    check_same(lambda t: torch.tril_indices(4, 6, 1, device=t.device), torch.zeros(()))
    check_same(lambda t: torch.triu_indices(5, 3, -1, device=t.device), torch.zeros(()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_flip_and_roll(dtype: torch.dtype) -> None:
    x = values((3, 4, 5), dtype)
    check_same(lambda t: (t.flip(0), t.flip(1, 2), t.transpose(0, 1).flip(0, 2), t[:, ::2].flip(1)), x)
    check_same(lambda t: (t.roll(2), t.roll((1, -2), (0, 2)), t.roll(7, 1)), x)


def test_repeat_interleave() -> None:
    repeats = torch.tensor([2, 0, 3, 1])
    check_same(torch.repeat_interleave, repeats)
    check_same(lambda x, r: x.repeat_interleave(r, 0), values((4, 3), torch.float32), repeats)
    check_same(lambda x: x.repeat_interleave(3, 1), values((4, 3), torch.float32))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_linspace_of_integers(dtype):
    for start, stop, steps in [(0, 10, 7), (0, 100, 13), (3, 97, 29), (1, 11, 9), (120, 5, 47)]:
        wanted = torch.linspace(start, stop, steps, dtype=dtype)
        assert torch.equal(torch.linspace(start, stop, steps, dtype=dtype, device=DEVICE).cpu(), wanted)


def test_range_without_a_step() -> None:
    for kind in (torch.float32, torch.int64):
        out = torch.empty(0, dtype=kind, device=DEVICE)
        assert torch.ops.aten.range.out_(-1, 3, out=out).tolist() == [-1, 0, 1, 2, 3]
