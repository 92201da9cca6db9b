"""An op from an OpenCL kernel: the exponential moving average along the last dimension, with its gradient, in eager
mode and in torch.compile.

python examples/custom_kernel.py [--device ocl:0] [--shape 64 1000]
"""

import argparse
import functools
from typing import Any

import torch
from torch import Tensor

import dlbackend  # noqa: F401 (for the device's name, where another accelerator is there too)

SOURCE = """
// y[t] = decay * y[t - 1] + (1 - decay) * x[t], from the other end if `reverse`. A work-item computes a row.
kernel void ema(global const float* x, global float* y, const long length, const float decay, const int reverse) {
  const size_t row = get_global_id(0) * length;
  float value = 0;
  for (long t = 0; t < length; t++) {
    const size_t i = row + (reverse ? length - 1 - t : t);
    value = decay * value + (1 - decay) * x[i];
    y[i] = value;
  }
}
"""


@functools.cache
def kernel(device: torch.device) -> "torch.ocl.Kernel":  # type: ignore[name-defined]
    return torch.ocl.compile_kernel(SOURCE, "ema", device=device)  # type: ignore[attr-defined]


@torch.library.custom_op("example::ema", mutates_args=(), device_types="ocl")
def ema(x: Tensor, decay: float, reverse: bool = False) -> Tensor:
    """The moving average of x (..., T), float32, along T: a tensor of x's shape. The kernel needs rows without gaps."""
    x = x.contiguous()
    y = torch.empty_like(x)
    length = x.shape[-1]
    kernel(x.device)(x, y, length, decay, reverse, global_size=x.numel() // max(length, 1))
    return y


@ema.register_fake
def _(x: Tensor, decay: float, reverse: bool = False) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def setup_context(ctx: Any, inputs: tuple[Tensor, float, bool], output: Tensor) -> None:
    _, ctx.decay, ctx.reverse = inputs


def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    """The gradient is the moving average of the upstream gradient, from the other end."""
    return ema(grad, ctx.decay, not ctx.reverse), None, None


ema.register_autograd(backward, setup_context=setup_context)


@ema.register_kernel("cpu")
def reference(x: Tensor, decay: float, reverse: bool = False) -> Tensor:
    """The same for tensors on the CPU."""
    steps = (x.flip(-1) if reverse else x).unbind(-1)
    rows = [torch.zeros_like(steps[0])]
    for step in steps:
        rows.append(decay * rows[-1] + (1 - decay) * step)
    y = torch.stack(rows[1:], -1)
    return y.flip(-1) if reverse else y


def loss(x: Tensor) -> Tensor:
    smooth: Tensor = ema(x * 2, 0.9)
    return (smooth - x).square().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl:0")
    parser.add_argument("--shape", type=int, nargs="+", default=[64, 1000])
    options = parser.parse_args()
    cpu = torch.randn(options.shape, dtype=torch.float64).requires_grad_()
    loss(cpu).backward()  # type: ignore[no-untyped-call]
    for name, function in {"eager": loss, "compiled": torch.compile(loss)}.items():
        x = cpu.detach().float().to(options.device).requires_grad_()
        result = function(x)
        result.backward()  # type: ignore[no-untyped-call]
        assert cpu.grad is not None
        assert x.grad is not None
        error = (x.grad.cpu() - cpu.grad).abs().max() / cpu.grad.abs().max()
        print(f"{name}: loss {result.item():.6f}, largest relative error of the gradient {error:.1e}")


if __name__ == "__main__":
    main()
