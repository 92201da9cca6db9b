"""Compares what a call gives on the device with what it gives on the CPU, where the CPU may be inexact itself, refuse
the call, or draw random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from common import DEVICE, TOLERANCE
from torch.utils._pytree import tree_leaves, tree_map

Outcome = list[torch.Tensor | None] | Exception
# Calls with copies of a sample's inputs that a function makes, and returns the tensors to compare.
Call = Callable[[Callable[[Any], Any]], list[torch.Tensor | None]]
EXACT = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
TOLERANCES = {**TOLERANCE, torch.complex64: TOLERANCE[torch.float32]}
REFUSED = "refused"  # the CPU takes no such call, so that there is nothing to compare with


Storages = dict[tuple[int, torch.dtype], torch.Tensor]


def copied(t: torch.Tensor, device: str, storages: Storages | None = None) -> torch.Tensor:
    """A copy there with the same strides, offset and gaps, for which a gradient is asked as for the original. Tensors
    that share memory do so there as well, where the same `storages` are given with them.
    """
    source = t.detach()
    if t.layout != torch.strided or t.is_conj() or t.is_neg() or t.numel() == 0:
        copy = source.clone() if device == "cpu" else source.to(DEVICE)
    else:
        # as_strided() may read what lies between the elements and before them.
        whole = source.as_strided((source.untyped_storage().nbytes() // source.itemsize,), (1,), 0)
        storages = {} if storages is None else storages
        key = (source.untyped_storage().data_ptr(), source.dtype)
        if key not in storages:
            storages[key] = whole.clone() if device == "cpu" else whole.to(DEVICE)
        copy = storages[key].as_strided(source.shape, source.stride(), source.storage_offset())
    return copy.requires_grad_(t.requires_grad)


def copies(value: Any, device: str, dtypes: dict[torch.dtype, torch.dtype] | None = None) -> Any:
    """The same arguments for a call on the device; `dtypes` says which ones other dtypes shall stand for."""
    dtypes = dtypes or {}
    storages: Storages = {}

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            wanted = dtypes.get(leaf.dtype, leaf.dtype)
            source = leaf.detach().to(wanted).requires_grad_(leaf.requires_grad)
            return copied(source, device, storages if wanted == leaf.dtype else None)
        if isinstance(leaf, torch.dtype):
            return dtypes.get(leaf, leaf)
        if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu"):
            return torch.device(device)
        return leaf

    return tree_map(one, value)


def tensors(value: Any) -> list[torch.Tensor | None]:
    """The tensors in what a call returned, and numbers as tensors."""
    found: list[torch.Tensor | None] = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, (bool, int, float, complex)):
            found.append(torch.tensor(leaf))
        elif leaf is None or isinstance(leaf, torch.Tensor):
            found.append(leaf)
    return found


def outcome(call: Call, device: str, dtypes: dict[torch.dtype, torch.dtype] | None = None) -> Outcome:
    try:
        results = call(lambda value: copies(value, device, dtypes))
        if device != "cpu":
            torch.ocl.synchronize()  # kernels report an index that is out of range only then
        return [None if r is None else r.detach().to_dense() if r.layout != torch.strided else r.detach()
                for r in results]  # fmt: skip
    except Exception as error:
        return error


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:150] if lines else ''}"


def near(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    rtol, atol = TOLERANCES.get(actual.dtype, (1e-9, 1e-9))
    return torch.allclose(actual, expected.to(actual.dtype), rtol=rtol, atol=atol, equal_nan=True)


def as_exact_as_cpu(actual: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether the device's error is at most a few times the CPU's largest, where both are finite. Where only the CPU's
    result is not, as in matrix_exp of half numbers, there is no such measure: the device's error must be small beside
    the largest exact number.
    """
    if exact.shape != actual.shape or actual.dtype not in TOLERANCES:
        return False
    wide = EXACT.get(actual.dtype, actual.dtype)
    rtol, atol = TOLERANCES[actual.dtype]
    finite = torch.isfinite(expected) & torch.isfinite(actual)
    error = (actual.to(wide) - exact.to(wide)).abs()
    alone = torch.isfinite(actual) & torch.isfinite(exact) & ~torch.isfinite(expected)
    if alone.any() and error[alone].max() > atol + rtol * exact[torch.isfinite(exact)].abs().max():
        return False
    neither = ~finite & ~alone
    if not near(actual[neither], expected[neither]) and not near(actual[neither], exact[neither]):
        return False
    if not finite.any():
        return True
    cpu_error = (expected.to(wide) - exact.to(wide)).abs()[finite].max()
    return bool((error <= 3 * cpu_error + atol + rtol * exact.to(wide).abs())[finite].all())


def describe(actual: torch.Tensor, expected: torch.Tensor, which: int) -> str:
    if actual.dtype == torch.bool or expected.numel() == 0:
        return f"values of result {which} differ"
    wide = torch.complex128 if actual.is_complex() else torch.float64
    worst = (actual.to(wide) - expected.to(wide)).abs().nan_to_num(float("inf")).max().item()
    return f"values of result {which} differ by up to {worst:.2g} of {expected.to(wide).abs().max().item():.2g}"


def differing(actual: list[torch.Tensor | None], expected: list[torch.Tensor | None]) -> tuple[str, list[int]]:
    """A difference in kind, or the numbers of the results whose values differ."""
    if len(actual) != len(expected):
        return f"{len(actual)} results, not {len(expected)}", []
    wrong: list[int] = []
    for number, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if a is None or e is None:
            if (a is None) != (e is None):
                return f"result {number} is {'missing' if a is None else 'there'}, unlike on the CPU", []
        elif a.shape != e.shape:
            return f"shape of result {number}: {list(a.shape)}, not {list(e.shape)}", []
        elif a.dtype != e.dtype:
            return f"dtype of result {number}: {a.dtype}, not {e.dtype}", []
        elif not near(a.cpu().resolve_conj().resolve_neg(), e):
            wrong.append(number)
    return "", wrong


def compare(call: Call, values: bool = True) -> str:
    """The fault of the call on the device, "" where there is none, or REFUSED. Without `values` only shapes and
    dtypes are compared.
    """
    before = torch.get_rng_state()
    expected = outcome(call, "cpu")
    values = values and torch.equal(before, torch.get_rng_state())  # else it has drawn random numbers
    if isinstance(expected, NotImplementedError) or "not implemented for" in str(expected):
        return REFUSED
    actual = outcome(call, DEVICE)
    if isinstance(expected, Exception):
        return REFUSED if isinstance(actual, Exception) else f"takes what the CPU refuses ({first_line(expected)})"
    if isinstance(actual, Exception):
        return f"raises {first_line(actual)}"
    kind, wrong = differing(actual, expected)
    if kind or not wrong or not values:
        return kind
    exact = outcome(call, "cpu", dtypes=EXACT)
    for number in wrong:
        a, e = actual[number], expected[number]
        assert a is not None
        assert e is not None
        a = a.cpu().resolve_conj().resolve_neg()
        better = exact[number] if not isinstance(exact, Exception) and len(exact) == len(expected) else None
        if better is None or not as_exact_as_cpu(a, e, better):
            return describe(a, e, number)
    return ""
