"""Places where Inductor lists devices by name, which know no device from outside."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import choices, codecache, compile_fx, cpp_builder, lowering, scheduler, utils
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.fx_passes import joint_graph, post_grad
from torch._inductor.virtualized import V
from torch._prims_common import suggest_memory_format
from torch._subclasses import fake_impls, fake_tensor
from torch.utils._mode_utils import no_dispatch

from dlbackend import _C
from dlbackend.compile.masks import fold_causal_masks
from dlbackend.compile.products import NARROW

_compiling = contextvars.ContextVar("_compiling", default=False)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """While Inductor works on a graph of ocl."""
    before = _compiling.set(True)
    try:
        yield
    finally:
        _compiling.reset(before)


def _gpu_type(original: Any) -> Any:
    @functools.wraps(original)
    def get_gpu_type() -> str:
        # Inductor's own expects one kind of GPU in a process, but a build for CUDA may have CUDA beside ocl.
        others = (t for t in utils.GPU_TYPES if t != "ocl" and torch.get_device_module(t).is_available())
        return "ocl" if _compiling.get() else next(others, "ocl")

    return get_gpu_type


def _joint_passes(original: Any) -> Any:
    @functools.wraps(original)
    def joint_graph_passes(module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        if _compiling.get():
            fold_causal_masks(module.graph)
        return original(module, *args, **kwargs)

    return joint_graph_passes


def _create_backend(original: Any) -> Any:
    @functools.wraps(original)
    def create_backend(self: Any, device: torch.device) -> Any:
        if device.type != "ocl":
            return original(self, device)
        # Inductor's own asks for Triton on every GPU but Apple's.
        from dlbackend.compile.inductor.scheduling import OpenCLScheduling

        V.graph.add_device_info(device)
        return OpenCLScheduling(self)

    return create_backend


def _kernel_call(original: Any) -> Any:
    @functools.wraps(original)
    def generate(self: Any, kernel_name: str, call_args: Any, *, device: Any = None, **kwargs: Any) -> None:
        device = device or V.graph.get_current_device_or_throw()
        if device.type == "ocl" and not kwargs.get("triton", True):
            self.writeline(self.wrap_kernel_call(kernel_name, call_args))
            return
        original(self, kernel_name, call_args, device=device, **kwargs)

    return generate


def _allocation(original: Any) -> Any:
    @functools.wraps(original)
    def make_allocation(
        self: Any,
        name: str,
        device: Any,
        dtype: Any,
        shape: Any,
        stride: Any,
        allocation_shape: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> str:
        if device.type != "ocl":
            made: str = original(self, name, device, dtype, shape, stride, allocation_shape, *args, **kwargs)
            return made
        wanted, steps = self.codegen_python_shape_tuple(shape), self.codegen_python_shape_tuple(stride)
        size = wanted if allocation_shape is None else self.codegen_python_shape_tuple(allocation_shape)
        text = f"{name} = empty_strided_ocl({size}, {steps}, {dtype}, {device.index or 0})"
        return text if size == wanted else f"{text}.as_strided({wanted}, {steps})"

    return make_allocation


def _unaligned(original: Any) -> Any:
    @functools.wraps(original)
    def get_input_idxs_to_check(inputs: Any, static_input_idxs: Any) -> list[int]:
        # Triton's kernels read 16 bytes at a time; ours take tensors wherever they begin, without a copy.
        found = original(inputs, static_input_idxs)
        return [i for i in found if inputs[i].device.type != "ocl"]

    return get_input_idxs_to_check


def split_factor(device: torch.device, length: int, count: int, inner: bool) -> int:
    """Into how many parts to split the reduction of `length` elements into each of `count` results, so that there is
    work for all of the device. `inner`: elements of one result lie beside each other.
    """
    properties = _C.device_properties(device.index or 0)
    units = int(properties.compute_units)
    if properties.kernel_class == "cpu":
        wanted, least = (1, 1) if count >= units else (-(-4 * units // count), 16384)
    elif inner:
        wanted, least = (1, 1) if count >= 2 * units else (-(-8 * units // count), 2048)
    else:
        # the second kernel reads as many partial results as there are parts
        wanted, least = -(-1024 * units // count), max(32, math.isqrt(length))
    parts = max(1, min(wanted, length // least))
    # Parts of one size need no condition, and their indices are simpler.
    equal = (n for n in range(-(-parts // 2), 2 * parts) if length % n == 0)
    return min(equal, key=lambda n: max(n / parts, parts / n), default=parts)


def _split(original: Any) -> Any:
    @functools.wraps(original)
    def reduction_split_factor(device: torch.device, length: int, count: int, inner_reduction: bool) -> int:
        if device.type != "ocl":
            made: int = original(device, length, count, inner_reduction)
            return made
        return split_factor(device, length, count, inner_reduction)

    return reduction_split_factor


def fake_attention(
    fake_mode: Any,
    func: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Any = None,
    dropout_p: float = 0.0,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The layouts of what ocl's attention returns (csrc/ops/attention.cpp): log-sum-exps lie beside what rounding took
    from them, and both go to the backward pass in the place of cum_seq_q.
    """
    if query.device.type != "ocl" or query.dim() != 4:
        return NotImplemented
    with fake_mode:
        result = torch.empty_like(query)
        if result.stride(3) != 1:
            result = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        pairs = torch.empty((*query.shape[:3], 2), dtype=torch.float, device=query.device)
        seed, offset = (torch.empty((), dtype=torch.long) for _ in range(2))
    return (result, pairs.select(3, 0), pairs, None, query.shape[2], key.shape[2], seed, offset, None)


def fake_rows(fake_mode: Any, func: Any, rows: str, a: torch.Tensor, b: torch.Tensor, *args: Any) -> Any:
    """What products and convolutions with rows behind them return, of sizes that may be symbolic."""
    is_product = func is torch.ops.dlbackend.product_rows.default
    with fake_mode:
        if is_product:
            first = (b if a.dtype in NARROW else a).new_empty((*a.shape[:-1], b.shape[-1]))
        else:
            bias, stride, padding, dilation, groups = args[:5]
            moved = (stride, padding, dilation, False, [0] * len(stride), groups)
            first = torch.ops.aten.convolution.default(a, b, bias, *moved)
    with no_dispatch():  # the dtypes, which do not depend on sizes
        one = torch.empty(1, 1, dtype=first.dtype, device="meta")
        extras = [torch.empty(1, dtype=x.dtype, device="meta") for x in args[3 if is_product else 5]]
        small = torch.ops.dlbackend.product_rows.default(rows, one, one, None, 0, 1, extras)
    with fake_mode:
        return [torch.empty_like(first, dtype=y.dtype) for y in small]


def _fake_convolution(original: Any) -> Any:
    """Results of convolutions and their gradients are channels last where the input or the weight is, as
    csrc/ops/conv/conv.cpp makes them.
    """

    def channels_last(x: torch.Tensor) -> bool:
        return x.dim() > 3 and suggest_memory_format(x) != torch.contiguous_format

    @functools.wraps(original)
    def fake(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(fake_mode, func, *args, **kwargs)
        first = 1 if func is torch.ops.aten.convolution_backward.default else 0
        x, weight = (kwargs[n] if n in kwargs else args[first + i] for i, n in enumerate(("input", "weight")))
        if x.device.type != "ocl" or not (channels_last(x) or channels_last(weight)):
            return found
        layout = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        with fake_mode:
            if isinstance(found, torch.Tensor):
                return torch.empty_like(found, memory_format=layout)
            return tuple(y if y is None or y.dim() < 4 else torch.empty_like(y, memory_format=layout) for y in found)

    return fake


def _average_pool_backward(original: Any, fallback: Any) -> Any:
    @functools.wraps(original)
    def lower(
        grad: Any,
        x: Any,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: Any = None,
    ) -> Any:
        arguments = (grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        # Inductor's formula divides by the size of a whole window, also where a part of it lies beyond the padding.
        beyond = ceil_mode and count_include_pad and divisor_override is None
        return (fallback if beyond and grad.get_device().type == "ocl" else original)(*arguments)

    return lower


def _replace_lowerings() -> None:
    aten = torch.ops.aten
    for op, fallback in (
        (aten.avg_pool2d_backward.default, lowering.fallback_avg_pool2d_backward),
        (aten.avg_pool3d_backward.default, lowering.fallback_avg_pool3d_backward),
    ):
        lowering.lowerings[op] = _average_pool_backward(lowering.lowerings[op], fallback)


def _build_options(original: Any) -> Any:
    @functools.wraps(original)
    def get_cpp_torch_device_options(device_type: str, *args: Any, **kwargs: Any) -> Any:
        found = original(device_type, *args, **kwargs)
        if device_type.partition(":")[0] == "ocl":
            from dlbackend.compile.inductor.cpp_wrapper import PACKAGE, headers, headers_hash

            definitions, include_dirs, _, _, libraries_dirs, libraries, _ = found
            definitions.append(f"DLB_HEADERS=0x{headers_hash()}")  # part of the key of Inductor's caches
            include_dirs.append(str(headers()))
            libraries_dirs.append(str(PACKAGE))
            libraries.append("dlbackend")
        return found

    return get_cpp_torch_device_options


def _wrapper_header(original: Any) -> Any:
    @functools.wraps(original)
    def _get_cpp_wrapper_header(device: str, aot_mode: bool = False) -> str:
        if device.partition(":")[0] == "ocl":
            return "dlb_package.h" if aot_mode else "dlb_jit.h"
        made: str = original(device, aot_mode)
        return made

    return _get_cpp_wrapper_header


def patch() -> None:
    """Applies them."""
    _replace_lowerings()
    attention = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
    fake_impls.op_implementations_checks.append((lambda func: func is attention, fake_attention))
    products = (torch.ops.dlbackend.product_rows.default, torch.ops.dlbackend.convolution_rows.default)
    fake_impls.op_implementations_checks.append((lambda func: func in products, fake_rows))
    known = fake_impls.op_implementations_dict
    for op in (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default):
        known[op] = _fake_convolution(known[op])
    fake_tensor.FakeTensorMode.cache_clear()  # of what Dynamo found before without them
    if "ocl" not in utils.GPU_TYPES:
        utils.GPU_TYPES.append("ocl")
    gpu_type: Any = _gpu_type(utils.get_gpu_type)
    for module in (utils, joint_graph, post_grad):
        module.get_gpu_type = gpu_type  # type: ignore[attr-defined]
    scheduler.Scheduler.create_backend = _create_backend(scheduler.Scheduler.create_backend)  # type: ignore[method-assign]
    choices.InductorChoices.reduction_split_factor = staticmethod(  # type: ignore[method-assign]
        _split(choices.InductorChoices.reduction_split_factor)
    )
    compile_fx.joint_graph_passes = _joint_passes(compile_fx.joint_graph_passes)
    compile_fx.get_input_idxs_to_check = _unaligned(compile_fx.get_input_idxs_to_check)
    wrapper = PythonWrapperCodegen
    wrapper._generate_kernel_call_helper = _kernel_call(wrapper._generate_kernel_call_helper)  # type: ignore[method-assign]
    wrapper.make_allocation = _allocation(wrapper.make_allocation)  # type: ignore[method-assign]
    cpp_builder.get_cpp_torch_device_options = _build_options(cpp_builder.get_cpp_torch_device_options)
    codecache._get_cpp_wrapper_header = _wrapper_header(codecache._get_cpp_wrapper_header)
