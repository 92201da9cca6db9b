"""The roofline of a step: what its ops move and compute, the least time that the device allows, and each op's time.

The model is the roofline (Williams, Waterman, Patterson: Roofline, CACM 2009), op by op: an op takes at least as long
as its operands and results take at the rate of copies through memory, and as its operations take at the peak of their
dtype. Bytes are those of PyTorch's ops as they run, one after the other, each tensor once; ops that a device fuses, and
tensors that stay in its caches, can be faster than that. Operations are those of products, convolutions and attention,
a multiply-add being two, as torch.utils.flop_counter counts them.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

import dlbackend
from dlbackend import _C, ocl, solvers
from dlbackend.backend import fp32_precision_here

PREFIX = "roofline "
# Ops that read no more of their first tensor than they return.
GATHERS = {"aten::embedding", "aten::index", "aten::index_select", "aten::gather", "aten::take"}
# Ops that write without reading what was there.
OVERWRITES = {"aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_", "aten::bernoulli_"}
FUSED_ATTENTION = "aten::_scaled_dot_product_fused_attention_overrideable"


@dataclass
class Work:
    """The calls of one op: their number, bytes, operations, and seconds at least and in fact."""

    calls: int = 0
    bytes: float = 0.0
    operations: float = 0.0
    least: float = 0.0
    seconds: float = 0.0


@dataclass
class Roofline:
    """A step's ops by name, those that took longest first, its launches, and seconds that no op accounts for."""

    ops: dict[str, Work]
    launches: int
    idle: float

    def total(self) -> Work:
        """The sums over all ops; those of their seconds and `idle` are a step's."""
        whole = sum_of(self.ops.values())
        whole.seconds += self.idle
        return whole


def sum_of(works: Iterable[Work]) -> Work:
    whole = Work()
    for work in works:
        for what, value in vars(work).items():
            setattr(whole, what, getattr(whole, what) + value)
    return whole


def from_record(record: dict[str, Any]) -> Roofline:
    """The roofline that another process found; the inverse of dataclasses.asdict()."""
    ops = {name: Work(**work) for name, work in record["ops"].items()}
    return Roofline(ops, record["launches"], record["idle"])


def bytes_of(tensor: Tensor) -> int:
    """The size of the elements that are in memory: a dimension of stride 0 repeats one."""
    if tensor.layout != torch.strided:
        return sum(bytes_of(part) for part in (tensor._values(), tensor._indices())) if tensor.is_sparse else 0
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or size == 0 else 1
    return count * tensor.element_size()


def peak(rates: dict[str, Any], dtype: torch.dtype) -> float:
    """Operations per second of products of this dtype; float32 may be three products as TF32, or one where allowed."""
    if dtype in (torch.float16, torch.bfloat16):
        rate = max(rates["matrix16"], rates["float32"])
    elif dtype in (torch.float64, torch.complex128):
        rate = rates["float64"]
    else:
        setting = _C.fp32_precision()
        rounds = setting == "tf32" or (setting == "none" and torch.get_float32_matmul_precision() != "highest")
        rate = max(rates["float32"], rates["matrix_tf32"] / (1 if rounds else 3))
    return float(rate) * 1e6


def share_of_pairs(function: Any, args: Any, kwargs: Any, queries: int, keys: int) -> float:
    """The share of pairs of a query and a key that attention computes: a causal query i has keys 0 to i."""
    given = {argument.name: value for argument, value in zip(function._schema.arguments, args, strict=False)} | kwargs
    if not given.get("is_causal", False) or queries * keys == 0:
        return 1.0
    full = min(queries, keys)
    return (full * (full + 1) / 2 + (queries - full) * keys) / (queries * keys)


def operations_of(name: str, function: Any, args: Any, kwargs: Any, out: Any) -> float:
    """The operations of one call; 0 for ops that only move elements."""
    if name.startswith(FUSED_ATTENTION):
        backward = name != FUSED_ATTENTION
        query, key = args[backward].shape, args[backward + 1].shape
        key = query[:2] + key[2:]  # heads of keys that several share count for each
        count: Any = partial(sdpa_backward_flop_count, query) if backward else sdpa_flop_count
        return float(count(query, key, key)) * share_of_pairs(function, args, kwargs, query[-2], key[-2])
    if name == "aten::convolution_backward":  # the registry counts the gradients of weights as if there were no groups
        grad_out, x, weight, transposed, wanted = args[0], args[1], args[2], args[7], args[10]
        products = (x if transposed else grad_out).numel() * math.prod(weight.shape[1:])
        return float(2 * products * (wanted[0] + wanted[1]))
    counter = flop_registry.get(function.overloadpacket)
    return float(counter(*args, **kwargs, out_val=out)) if counter else 0.0


def is_view(function: Any) -> bool:
    """Whether a call returns its argument under other sizes and moves nothing."""
    aliases = [value.alias_info for value in function._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the work of the ops that run on a device, and gives each a range of the profiler of its own."""

    def __init__(self, device: torch.device, rates: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.rates = device, rates
        self.ops: defaultdict[str, Work] = defaultdict(Work)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        with record_function(PREFIX + name):
            out = func(*args, **kwargs)
        if not is_view(func):
            self._count(name, func, args, kwargs, out)
        return out

    def _count(self, name: str, function: Any, args: Any, kwargs: Any, out: Any) -> None:
        written = [] if is_mutation(function) else self._tensors(out)
        read: list[Tensor] = []
        for argument, value in arguments_of(function, args, kwargs):
            tensors = self._tensors(value)
            mutated = argument.alias_info is not None and argument.alias_info.is_write
            if mutated:
                written += tensors
            if not mutated or (name not in OVERWRITES and not argument.is_out):
                read += tensors
        if not read and not written:
            return
        work = self.ops[name]
        loads = [bytes_of(t) for t in read]
        stores = sum(bytes_of(t) for t in written)
        if name in GATHERS and loads:
            loads[0] = min(loads[0], stores)
        moved = sum(loads) + stores
        dtype = (read or written)[0].dtype
        # The registry counts a product of complex numbers as one of real ones, of which it has four.
        operations = operations_of(name, function, args, kwargs, out) * (4 if dtype.is_complex else 1)
        work.calls += 1
        work.bytes += moved
        work.operations += operations
        work.least += max(moved / (self.rates["bytes"] * 1e6), operations / peak(self.rates, dtype))

    def _tensors(self, values: Any) -> list[Tensor]:
        return [t for t in tree_leaves(values) if isinstance(t, Tensor) and t.device == self.device]


def is_mutation(function: Any) -> bool:
    """Whether a call returns the arguments that it wrote to."""
    return any(v.alias_info is not None and v.alias_info.is_write for v in function._schema.returns)


def arguments_of(function: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """The arguments of a call by their declarations."""
    for argument, value in zip(function._schema.arguments, args, strict=False):
        yield argument, value
    for argument in function._schema.arguments:
        if argument.name in kwargs:
            yield argument, kwargs[argument.name]


def fastest(operation: Callable[[], Any], device: torch.device, series: int = 4) -> float:
    """Microseconds of an operation, by the fastest of three series, next to which what it costs to wait is small."""
    operation()
    solvers.wait()  # for what takes over from the first solution
    best = math.inf
    for _ in range(3):
        ocl.synchronize(device)
        began = time.perf_counter()
        for _ in range(series):
            operation()
        ocl.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best / series * 1e6


def copy_rate(device: torch.device) -> float:
    """Bytes that copies read and write in a microsecond, of more than caches hold."""
    properties = ocl.get_device_properties(device)
    size = min(1 << 30 if properties.type == "gpu" else 1 << 28, properties.total_memory // 16)
    source = torch.zeros(size // 4, device=device)
    to = torch.empty_like(source)
    return 2 * size / fastest(lambda: to.copy_(source), device)


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per microsecond of products of square matrices; of float32 as TF32."""
    size = 8192 if ocl.get_device_properties(device).type == "gpu" else 2048
    a = torch.ones(size, size, device=device, dtype=dtype)
    out = torch.empty_like(a)
    with fp32_precision_here("tf32"):
        return 2 * size**3 / fastest(lambda: torch.mm(a, a, out=out), device)


@cache
def rates_of(index: int) -> dict[str, Any]:
    """A device's rates, measured once, so that all that a process examines is held against the same. Those by which
    solvers are estimated come from short copies and from one way to multiply matrices; where long copies, or products
    by the solver that is fastest here, are faster, theirs are taken.
    """
    rates = dict(_C.measure_rates(index))
    device = torch.device("ocl", index)
    rates["bytes"] = max(rates["bytes"], copy_rate(device))
    for name, dtype in (("matrix16", torch.bfloat16), ("matrix_tf32", torch.float32)):
        if rates[name] > rates["float32"]:  # by units for products
            rates[name] = max(rates[name], product_rate(device, dtype))
    return rates


def examine(step: Callable[[], Any], device: torch.device, seconds: float, steps: int = 3) -> Roofline:
    """The ops of a step that takes so many seconds and runs as it always does by now. Their times come from
    torch.profiler, by the mean of several steps; in what they leave of the seconds no kernel ran. Where they are more,
    because the profiler's own work took a CPU device's cores from the kernels, all are scaled down to the seconds.
    """
    rates = rates_of(device.index or 0)
    before = dlbackend.kernel_stats()["launches"]
    step()
    ocl.synchronize(device)
    launches = int(dlbackend.kernel_stats()["launches"] - before)
    counter = Counter(device, rates)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiled:
        for _ in range(steps):
            with counter:
                step()
        ocl.synchronize(device)
    for row in profiled.key_averages():
        name = row.key.removeprefix(PREFIX)
        if row.key.startswith(PREFIX) and row.device_type == torch.autograd.DeviceType.CPU and row.device_time_total:
            counter.ops[name].seconds = row.device_time_total * 1e-6
    for work in counter.ops.values():
        work.calls //= steps
        for what in ("bytes", "operations", "least", "seconds"):
            setattr(work, what, getattr(work, what) / steps)
    busy = sum(work.seconds for work in counter.ops.values())
    for work in counter.ops.values():
        work.seconds *= min(1.0, seconds / busy) if busy else 1.0
    ops = dict(sorted(counter.ops.items(), key=lambda item: -item[1].seconds))
    return Roofline(ops, launches, max(0.0, seconds - busy))


def lines(roofline: Roofline, most: int = 12) -> Iterator[str]:
    """A table of a step's ops, whose times add up to the step's."""
    ops = [(name.removeprefix("aten::"), work) for name, work in roofline.ops.items()]
    rows = ops[:most]
    if len(ops) > most:
        rows.append((f"{len(ops) - most} others", sum_of(work for _, work in ops[most:])))
    whole = roofline.total()
    rows += [("no kernel runs", Work(seconds=roofline.idle)), (f"step, {roofline.launches} launches", whole)]
    width = max(len(name) for name, _ in rows)
    head = f"{'calls':>6} {'ms':>9} {'of step':>8} {'MB':>10} {'GFLOP':>9} {'least ms':>9} {'least/ms':>9}"
    yield f"  {'op':{width}} {head}"
    for name, work in rows:
        share = f"{work.least / work.seconds:9.0%}" if work.seconds and work.calls else f"{'-':>9}"
        yield (
            f"  {name:{width}} {work.calls:6} {work.seconds * 1e3:9.3f} {work.seconds / whole.seconds:8.1%} "
            f"{work.bytes / 1e6:10.2f} {work.operations / 1e9:9.3f} {work.least * 1e3:9.3f} {share}"
        )
