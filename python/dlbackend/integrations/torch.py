"""PyTorch itself: what it does by lists of its own devices, and DistributedDataParallel's hooks that begin collectives
in callbacks.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dlbackend.integrations.patching import DoesNotFit, Exchange, Patch, Wrap, exchanged

INSTEAD = (
    "Give DistributedDataParallel a bucket_cap_mb of the net's size where you register a PowerSGD hook; use "
    "DistributedDataParallel in place of DataParallel, and no torch.compile."
)


def in_order(hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A hook that ends one bucket's collectives before the caller can begin the next one's.

    PowerSGD's second and third all_reduce begin in callbacks of the first. Where data comes by the host, callbacks
    run when it is there: on one rank before the next bucket's first all_reduce, on another behind it. Collectives are
    matched by their order, so that this ends the process, or both ranks wait for each other. (It does so in plain
    gloo too. CUDA's futures complete before the data is there, in the call that makes them.)
    """

    @functools.wraps(hook)
    def wrapper(state: Any, bucket: Any) -> Any:
        future = hook(state, bucket)
        if bucket.buffer().device.type == "ocl":
            future.wait()
        return future

    return wrapper


@dataclass(frozen=True)
class Supply:
    """A function that torch._C has only in builds with CUDA."""

    target: str
    upstream: str
    function: Callable[..., Any]

    def apply(self, _module: types.ModuleType) -> None:
        """Adds it where it is missing."""
        if not hasattr(torch._C, self.target):
            setattr(torch._C, self.target, self.function)


def _on(device: int) -> torch.device:
    """The device of an index as comm.py uses it; -1 is the CPU."""
    return torch.device("cpu") if device < 0 else torch.device("ocl", device)


def scatter(
    tensor: torch.Tensor, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, _streams: Any
) -> list[torch.Tensor]:
    """A piece of the tensor on each device. Copies keep their order on the devices' current streams."""
    pieces = torch.split(tensor, list(sizes), dim) if sizes else tensor.chunk(len(devices), dim)
    return [piece.to(_on(device), non_blocking=True) for piece, device in zip(pieces, devices, strict=False)]


def scatter_out(tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int, _streams: Any) -> Sequence[torch.Tensor]:
    """The pieces in the given tensors."""
    for piece, to in zip(torch.split(tensor, [to.size(dim) for to in out], dim), out, strict=True):
        to.copy_(piece, non_blocking=True)
    return out


def gather(tensors: Sequence[torch.Tensor], dim: int, device: int) -> torch.Tensor:
    """The tensors behind each other on one device."""
    return torch.cat([tensor.to(_on(device)) for tensor in tensors], dim)


def gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    """The tensors behind each other in `out`."""
    return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))


def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    """The tensor on each device; the tensor itself on its own device."""
    return [tensor.to(_on(device), non_blocking=True) for device in devices]


def broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The tensor in the given tensors."""
    for to in out:
        to.copy_(tensor, non_blocking=True)
    return out


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], _buffer_size: int
) -> list[list[torch.Tensor]]:
    """The tensors on each device. Each is a copy of its own: there is no round trip that a large one would save."""
    return [[tensor.to(_on(device), non_blocking=True) for tensor in tensors] for device in devices]


COMM = "torch._C._scatter(tensor, devices, ...) and its like, which builds without CUDA lack"


@dataclass(frozen=True)
class WrapConvolutions:
    """Puts a function around what FakeTensorMode does for convolutions."""

    target: str
    upstream: str
    around: Callable[[Any], Any]

    def apply(self, module: types.ModuleType) -> None:
        """Changes the table of ops."""
        table = getattr(module, self.target, None)
        ops = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)
        if not isinstance(table, dict) or not all(op in table for op in ops):
            raise DoesNotFit("it has no convolutions")
        for op in ops:
            table[op] = self.around(table[op])


def in_our_layout(inner: Callable[..., Any]) -> Callable[..., Any]:
    """A fake convolution whose results have the layout of ocl's (csrc/ops/conv/conv.cpp): channels last where input or
    weight are, as cuDNN's; the weight's gradient has the weight's. PyTorch takes those of devices that it does not know
    to be contiguous.
    """

    @functools.wraps(inner)
    def wrapper(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        results = inner(fake_mode, func, *args, **kwargs)
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        tensor, weight = given["input"], given["weight"]
        device = tensor.device
        if device.type != "ocl" or tensor.dim() < 4:
            return results
        from torch._prims_common import suggest_memory_format
        from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

        weights = suggest_memory_format(weight)
        layout = max(suggest_memory_format(tensor), weights, key=lambda each: each != torch.contiguous_format)

        def laid_out(result: Any, wanted: torch.memory_format) -> Any:
            if result is None:
                return None
            with in_kernel_invocation_manager(fake_mode):
                return FakeTensor(fake_mode, result.to(memory_format=wanted), device)

        if not isinstance(results, tuple):
            return laid_out(results, layout)
        return (laid_out(results[0], layout), laid_out(results[1], weights), *results[2:])

    return wrapper


def by_rows(compile_fx: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile's default backend and AOTInductor, which hand graphs on ocl to dlbackend.compile."""

    def is_on_ocl(value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "ocl"

    def is_package() -> bool:
        from torch._inductor.virtualized import V

        return bool(V.aot_compilation)

    def values_of(model: Any) -> list[Any]:
        return [*model.parameters(), *model.buffers(), *(node.meta.get("val") for node in model.graph.nodes)]

    @functools.wraps(compile_fx)
    def wrapper(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        from_torch_compile = isinstance(model, torch.fx.GraphModule) and not args and "inner_compile" not in kwargs
        if from_torch_compile:
            values = (node.meta.get("example_value") for node in model.graph.nodes)
            if any(map(is_on_ocl, inputs)) or any(map(is_on_ocl, values)):
                from dlbackend.compile import backend, default_backend

                if (kwargs.get("config_patches") or {}).get("triton.cudagraphs"):  # as modes of inductor say it
                    return backend(model, inputs, mode="reduce-overhead")
                return default_backend(compile_fx, model, inputs)
        elif is_package() and any(map(is_on_ocl, [*inputs, *values_of(model)])):
            from dlbackend.compile import package

            return package(compile_fx, model, inputs, *args, **kwargs)
        return compile_fx(model, inputs, *args, **kwargs)

    return wrapper


def _fits(params: Sequence[torch.Tensor], grads: Sequence[torch.Tensor], *states: Sequence[torch.Tensor]) -> bool:
    """Whether the step over these lists can be one launch on ocl. Tensors of other classes, such as DTensor, say
    themselves what foreach's ops do with them.
    """
    plain = all(type(p) in (torch.Tensor, torch.nn.Parameter) for p in params)
    if torch.compiler.is_compiling() or params[0].device.type != "ocl" or not plain:
        return False
    lists = [*states, *[[]] * (3 - len(states))]
    return bool(torch.ops.dlbackend.fits_fused_step(params, grads, *lists))


def adam_in_one_launch(foreach: Callable[..., None]) -> Callable[..., None]:
    """Adam's and AdamW's foreach step, PyTorch's default, by the kernel of the fused one: a launch for some ten. State
    and arguments are foreach's; steps stay on the CPU. What does not fit one launch goes the way that it went.
    """

    @functools.wraps(foreach)
    def step(params: Any, grads: Any, averages: Any, squares: Any, largest: Any, steps: Any, **options: Any) -> None:
        numbers = (options["lr"], options["beta1"], options["beta2"])
        plain = not options["differentiable"] and not options["capturable"] and not options["has_complex"]
        plain = plain and not any(isinstance(number, torch.Tensor) for number in numbers)
        lists = (params, grads, averages, squares, largest if options["amsgrad"] else [])
        if not params or not plain or not all(each.is_cpu for each in steps) or not _fits(*lists):
            return foreach(params, grads, averages, squares, largest, steps, **options)
        torch._foreach_add_(steps, torch.tensor(1.0), alpha=1.0)
        function = torch._fused_adamw_ if options["decoupled_weight_decay"] else torch._fused_adam_
        words = ("lr", "beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize")
        function(*lists, steps, **{word: options[word] for word in words})
        return None

    return step


def sgd_in_one_launch(foreach: Callable[..., None]) -> Callable[..., None]:
    """SGD's foreach step by the kernel of the fused one, from the second step on, when there are momentum buffers."""

    @functools.wraps(foreach)
    def step(params: Any, grads: Any, buffers: Any, **options: Any) -> None:
        momentum = options["momentum"] != 0
        new = momentum and any(buffer is None for buffer in buffers)
        lists = (params, grads, buffers if momentum else [])
        if (
            not params
            or new
            or options["has_sparse_grad"]
            or isinstance(options["lr"], torch.Tensor)
            or not _fits(*lists)
        ):
            return foreach(params, grads, buffers, **options)
        words = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
        torch._fused_sgd_(*lists, **{word: options[word] for word in words}, is_first_step=False)
        return None

    return step


@dataclass(frozen=True)
class KernelsOfHpu:
    """Makes Intel Gaudi's kernels of a higher-order op ocl's: both are devices that torch/ itself does not have."""

    target: str
    upstream: str

    def apply(self, module: types.ModuleType) -> None:
        """Changes the functions that the op has for the device and for choosing it."""
        kernels = getattr(getattr(module, self.target, None), "py_kernels", {})
        for key in (torch._C.DispatchKey.HPU, torch._C.DispatchKey.BackendSelect):
            if key not in kernels:
                raise DoesNotFit(f"it has no kernel for {key}")
            kernels[key].__code__ = exchanged(kernels[key].__code__, {"hpu": "ocl"}, {"hpu": "ocl"})
        # Up to torch 2.12 this has a list of devices too.
        module.get_device.__code__ = exchanged(module.get_device.__code__, {}, {"hpu": "ocl"})


@dataclass(frozen=True)
class FlexAttention:
    """Gives the higher-order op of flex_attention kernels for ocl, which autograd goes through as it does through other
    ops: there is no gradient of the op's own.
    """

    target: str
    upstream: str

    def apply(self, module: types.ModuleType) -> None:
        """Adds the kernels."""
        op = getattr(module, self.target, None)
        if not isinstance(op, torch._ops.HigherOrderOperator):
            raise DoesNotFit("it is not there")

        def attention(*args: Any) -> Any:
            from dlbackend.compile import flex

            return flex.attention(*args)

        def attention_in_autocast(*args: Any) -> Any:
            from dlbackend.compile import flex

            return flex.attention_in_autocast(*args)

        keys: Any = torch._C.DispatchKey
        op.py_impl(keys.AutogradPrivateUse1)(attention)
        op.py_impl(keys.AutocastPrivateUse1)(attention_in_autocast)


RNG = 'impl_map = {"cuda": impl_cuda, "cpu": impl_cpu, "hpu": impl_hpu, "xpu": impl_xpu}'

PATCHES: dict[str, list[Patch]] = {
    "torch._inductor.compile_fx": [Wrap("compile_fx", "def compile_fx(model_, example_inputs_, ...)", by_rows)],
    "torch._higher_order_ops.flex_attention": [
        FlexAttention("flex_attention", "@flex_attention.py_impl(DispatchKey.Autograd)")
    ],
    "torch.nn.attention.flex_attention": [
        Exchange("_validate_device", 'supported_devices = {"cuda", "cpu", "xpu", "hpu", "mps"}', texts={"hpu": "ocl"})
    ],
    "torch._prims.rng_prims": [KernelsOfHpu("run_and_save_rng_state", RNG), KernelsOfHpu("run_with_rng_state", RNG)],
    "torch._subclasses.fake_impls": [
        WrapConvolutions(
            "op_implementations_dict",
            "mem_fmt = torch._C._conv_determine_backend_memory_format(input_, weight, conv_backend)",
            in_our_layout,
        )
    ],
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook": [
        Wrap("powerSGD_hook", "all_reduce(...).get_future().then(... all_reduce(...) ...).then(compute_qs)", in_order),
    ],
    "torch.optim.adam": [Wrap("_multi_tensor_adam", "def _multi_tensor_adam(...)", adam_in_one_launch)],
    "torch.optim.sgd": [Wrap("_multi_tensor_sgd", "def _multi_tensor_sgd(...)", sgd_in_one_launch)],
    "torch.nn.parallel.comm": [
        Supply("_scatter", COMM, scatter),
        Supply("_scatter_out", COMM, scatter_out),
        Supply("_gather", COMM, gather),
        Supply("_gather_out", COMM, gather_out),
        Supply("_broadcast", COMM, broadcast),
        Supply("_broadcast_out", COMM, broadcast_out),
        Supply("_broadcast_coalesced", COMM, broadcast_coalesced),
    ],
}
