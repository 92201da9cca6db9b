"""The calls of benchmarks/host_cost.py, and the two programs that measure them in processes of their own.

`python -m benchmarks.host_calls times DEVICE LAYER` prints a JSON line for each call; `instructions DEVICE LAYER
COUNT`, which runs under callgrind, has it write a profile of COUNT calls of each. LAYER is what driver_time.c makes, or
"" where there is no compiler.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import dlbackend
from dlbackend import ocl

Call = Callable[[], Any]


def _trained(forward: Callable[..., Tensor], *inputs: Tensor) -> Call:
    """Forward and backward; gradients are handed over, not added up."""
    grad = torch.ones_like(forward(*inputs))
    inputs = tuple(tensor.requires_grad_() for tensor in inputs)
    return lambda: torch.autograd.grad(forward(*inputs), inputs, grad)


def _convolutions(rand: Callable[..., Tensor]) -> dict[str, Call]:
    x, w, b = rand(1, 8, 8, 8), rand(8, 8, 3, 3), rand(8)
    scale, shift = rand(8), rand(8)
    mean, variance = torch.zeros_like(scale), torch.ones_like(scale)

    def norm(training: bool) -> Callable[..., Tensor]:
        return lambda x, scale, shift: F.batch_norm(x, mean, variance, scale, shift, training)

    return {
        "conv2d 3x3": lambda: F.conv2d(x, w, b, padding=1),
        "conv2d 3x3, forward and backward": _trained(lambda x, w: F.conv2d(x, w, padding=1), rand(1, 8, 8, 8), w),
        "batch_norm, training": lambda: norm(True)(x, scale, shift),
        "batch_norm, training, forward and backward": _trained(norm(True), rand(1, 8, 8, 8), rand(8), rand(8)),
        "batch_norm, evaluation": lambda: norm(False)(x, scale, shift),
        "batch_norm, evaluation, forward and backward": _trained(norm(False), rand(1, 8, 8, 8), rand(8), rand(8)),
    }


def _products(rand: Callable[..., Tensor]) -> dict[str, Call]:
    x, w, b, stacked = rand(4, 16), rand(16, 16), rand(16), rand(2, 16, 16)
    labels = torch.tensor([1, 2, 3, 0], device=x.device)
    return {
        "linear": lambda: F.linear(x, w, b),
        "linear, forward and backward": _trained(F.linear, rand(4, 16), rand(16, 16), rand(16)),
        "mm": lambda: x @ w,
        "bmm": lambda: stacked @ stacked,
        "layer_norm": lambda: F.layer_norm(x, (16,), b, b),
        "layer_norm, forward and backward": _trained(
            lambda x, w, b: F.layer_norm(x, (16,), w, b), rand(4, 16), rand(16), rand(16)
        ),
        "softmax": lambda: x.softmax(-1),
        "softmax, forward and backward": _trained(lambda x: x.softmax(-1), rand(4, 16)),
        "cross_entropy": lambda: F.cross_entropy(x, labels),
        "cross_entropy, forward and backward": _trained(lambda x: F.cross_entropy(x, labels), rand(4, 16)),
        "dropout": lambda: F.dropout(x, 0.1),
        "dropout, forward and backward": _trained(lambda x: F.dropout(x, 0.1), rand(4, 16)),
        "embedding": lambda: F.embedding(labels, w),
        "embedding, forward and backward": _trained(lambda w: F.embedding(labels, w), rand(16, 16)),
    }


def _movements(rand: Callable[..., Tensor]) -> dict[str, Call]:
    a, b, square = rand(16), rand(16), rand(16, 16)
    text = "kernel void add(global float* a, global const float* b) { a[get_global_id(0)] += b[get_global_id(0)]; }"
    kernel = ocl.compile_kernel(text, "add", device=a.device)
    return {
        "a + b, 16 elements": lambda: a + b,
        "gradient added in place": lambda: a.add_(b),
        "gradient added in place, by compile_kernel()": lambda: kernel(a, b, global_size=16),
        "copy_": lambda: a.copy_(b),
        "to bfloat16": lambda: a.to(torch.bfloat16),
        "t().contiguous()": lambda: square.t().contiguous(),
        "empty": lambda: torch.empty(16, device=a.device),
    }


def _optimizers(rand: Callable[..., Tensor]) -> dict[str, Call]:
    def step(kind: type[torch.optim.Optimizer], **options: Any) -> Call:
        parameters = [torch.nn.Parameter(rand(4, 4)) for _ in range(161)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        return kind(parameters, **options).step

    return {
        "SGD, 161 parameters": step(torch.optim.SGD, lr=1e-3),
        "SGD with momentum, 161 parameters": step(torch.optim.SGD, lr=1e-3, momentum=0.9),
        "Adam, 161 parameters": step(torch.optim.Adam),
        "AdamW, 161 parameters": step(torch.optim.AdamW),
        "AdamW fused, 161 parameters": step(torch.optim.AdamW, fused=True),
    }


def calls(device: str) -> dict[str, Call]:
    """Each call's name and the call, on tiny tensors, so that hosts do most of the work."""
    torch.manual_seed(0)

    def rand(*size: int) -> Tensor:
        return torch.randn(*size).to(device)

    return _movements(rand) | _convolutions(rand) | _products(rand) | _optimizers(rand)


def _times(call: Call, spent: Callable[[], float], batches: int = 60) -> dict[str, float]:
    """Microseconds of a call, in batches that no queue is full of: of the batch whose own part is least, as where the
    device is the CPU its threads take time from most; and the time of a turn of a Python loop.
    """
    start = time.perf_counter()
    call()
    repeats = max(5, min(300, int(3e-3 / (time.perf_counter() - start))))
    rows, paces = [], []
    for turn in range(batches):
        ocl.synchronize()
        spent()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        whole, driver = time.perf_counter() - start, spent()
        start = time.perf_counter()
        for _ in range(3000):
            pass
        paces.append((time.perf_counter() - start) / 3000 * 1e9)
        if turn >= batches // 10:
            rows.append([seconds / repeats * 1e6 for seconds in (whole - driver, whole, driver)])
    own, whole, driver = min(rows)
    median_own, median_whole, _ = (statistics.median(column) for column in zip(*rows, strict=True))
    return {"own": own, "whole": whole, "driver": driver, "median_own": median_own, "median": median_whole,
            "turn": statistics.median(paces)}  # fmt: skip


def _launches(call: Call) -> int:
    ocl.synchronize()
    before = dlbackend.kernel_stats()["launches"]
    call()
    return int(dlbackend.kernel_stats()["launches"] - before)


def print_times(device: str, layer: str) -> None:
    """A line for each call."""
    spent: Callable[[], float] = lambda: 0.0  # noqa: E731
    if layer:
        spent = ctypes.CDLL(layer).driver_seconds
        spent.restype = ctypes.c_double
    for name, call in calls(device).items():
        for _ in range(20):
            call()
        row: dict[str, Any] = {"name": name, "launches": _launches(call)}
        print(json.dumps(row | _times(call, spent)), flush=True)


def write_profiles(device: str, layer: str, count: str) -> None:
    """A profile of so many of each call, whose launches the driver never sees."""
    library = ctypes.CDLL(layer)
    library.driver_skip(1)
    library.profile_end.argtypes = [ctypes.c_char_p]
    for name, call in calls(device).items():
        for _ in range(4):
            call()
        library.profile_begin()
        for _ in range(int(count)):
            call()
        library.profile_end(name.encode())


if __name__ == "__main__":
    torch.set_num_threads(1)
    programs: dict[str, Callable[..., None]] = {"times": print_times, "instructions": write_profiles}
    programs[sys.argv[1]](*sys.argv[2:])
