"""torch.compile for ocl: by Inductor, whose kernels dlbackend.compile.inductor generates, and by a backend of our own,
whose graphs run elementwise chains in one launch each.

    model = torch.compile(model)                 # Inductor
    model = torch.compile(model, backend="ocl")  # backend()

For the latter, AOTAutograd makes a forward and a backward graph of ATen calls. Chains of elementwise calls become
expressions of rows (dlbackend.template.rows) with the values that the ops give one by one, bit for bit; everything else
runs as in eager mode. No kernel depends on sizes, so new sizes compile no new kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

from dlbackend.compile.fuse import fuse
from dlbackend.compile.masks import fold_causal_masks
from dlbackend.compile.replay import Replayed

__all__ = ["backend", "default_backend"]

PACKAGES_OF = "2.13."  # the C++ that AOTInductor generates differs between minor versions


def _compile(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    fold_causal_masks(module.graph)
    return make_boxed_func(fuse(module).forward)


def _compile_for_replay(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    replayed = Replayed(module, lambda: _compile(module, inputs))
    return replayed


def _partition(joint: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    fold_causal_masks(joint.graph)
    return min_cut_rematerialization_partition(joint, *args, **kwargs)


def _aot(compiler: Callable[..., Any]) -> Callable[..., Any]:
    return aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        partition_fn=_partition,
        keep_inference_input_mutations=True,
    )


_eager, _replayed = _aot(_compile), _aot(_compile_for_replay)


def backend(
    module: torch.fx.GraphModule, inputs: Sequence[Any], mode: str | None = None, **_: Any
) -> Callable[..., Any]:
    """The backend "ocl" of torch.compile. With mode="reduce-overhead" graphs are replayed (dlbackend.compile.replay).
    Options and other modes are taken and change nothing.
    """
    compiled: Callable[..., Any] = (_replayed if mode == "reduce-overhead" else _eager)(module, inputs)
    return compiled


def default_backend(
    compile_fx: Callable[..., Any], module: torch.fx.GraphModule, inputs: Sequence[Any]
) -> Callable[..., Any]:
    """What torch.compile does with a graph on ocl by default: Inductor, by its own `compile_fx`."""
    from dlbackend.compile.inductor import compile_graph

    made: Callable[..., Any] = compile_graph(compile_fx, module, inputs)
    return made


def package(
    compile_fx: Callable[..., Any], module: torch.fx.GraphModule, inputs: Sequence[Any], *args: Any, **kwargs: Any
) -> Any:
    """What AOTInductor does with a graph on ocl. NotImplementedError with another torch than
    dlbackend.compile.inductor.cpp_wrapper is written for.
    """
    if not torch.__version__.startswith(PACKAGES_OF):
        raise NotImplementedError(f"AOTInductor generates code for ocl with torch {PACKAGES_OF}x alone")
    from dlbackend.compile.inductor import compile_package

    return compile_package(compile_fx, module, inputs, *args, **kwargs)
