"""Assertions about values on the device: raised by the next call that waits, and nothing is broken after it."""

import pytest
import torch
from common import DEVICE

import dlbackend


def test_what_holds_and_what_does_not():
    dlbackend.reset_fallback_report()
    for value in (1.5, True, 2 + 0j, [3]):
        torch._assert_async(torch.tensor(value, device=DEVICE))
    torch.ocl.synchronize()
    for value in (0.0, False, 0j, [0]):
        torch._assert_async(torch.tensor(value, device=DEVICE))
        with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value, but got zero"):
            torch.ocl.synchronize()
        torch._assert_async(torch.tensor(value, device=DEVICE), "100% sure %s %lld")
        with pytest.raises(RuntimeError, match="100% sure %s %lld"):
            torch.ocl.synchronize()
    for value, word in (([1, 1], "more than one value"), ([], "no values")):
        with pytest.raises(RuntimeError, match=word):
            torch._assert_async(torch.tensor(value, device=DEVICE))
    assert not dlbackend.fallback_report()
