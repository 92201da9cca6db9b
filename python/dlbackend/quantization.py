"""Linear layers with weights of 8 bits: a quarter of float32's memory, which is what a layer of few rows waits for.

    dlbackend.quantization.quantize_weights(model)  # in place; also precision="int8-weights" of dlbackend.tune()

Weights are rounded to 255 steps, each row of the weight (an output of the layer) with a scale of its own. Activations
stay as they are, and products convert the weight while they load it (docs/quantization.md).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["Int8Linear", "quantize_weights"]

_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_STEPS = 127


class Int8Linear(nn.Module):
    """A linear layer for inference: `weight` is int8 [out, in], `scale` [out] of the layer's dtype."""

    weight: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        """ValueError for weights that hold infinities or NaN."""
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach()
        if weight.dtype not in _NAMES:
            raise ValueError(f"weights of {weight.dtype} are not quantized: {', '.join(map(str, _NAMES))} are")
        largest = weight.abs().amax(1).float()
        if not largest.isfinite().all():
            raise ValueError("the weight holds infinities or NaN, which int8 does not")
        scale = torch.where(largest > 0, largest / _STEPS, 1).to(weight.dtype)  # as products have it
        steps = (weight.float() / scale.float()[:, None]).round().clamp(-_STEPS, _STEPS)
        self.register_buffer("weight", steps.to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[.., in] of float32, float16 or bfloat16 to [.., out] of the same dtype. Gradients do not flow through it."""
        operands = [self.scale.to(x.dtype), *([] if self.bias is None else [self.bias.to(x.dtype)])]
        matrix = x.reshape(-1, self.in_features)
        if x.device.type != "ocl" or x.dtype not in _NAMES:
            y = torch.mm(matrix, self.weight.t().to(x.dtype)) * operands[0]
            y = y if self.bias is None else y + operands[1]
        else:
            t = _NAMES[x.dtype]
            rows = f"v = mul.{t}(x0, x1); y0 = " + ("v" if self.bias is None else f"add_alpha.{t}(v, x2, 1)")
            (y,) = torch.ops.dlbackend.product_rows.default(rows, matrix, self.weight.t(), None, 0, 1, operands)
        return y.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def quantizable(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers that quantize_weights() replaces, by name: of the plain class, without hooks, of floats."""
    found: dict[str, nn.Linear] = {}
    for name, layer in model.named_modules():
        hooks: Any = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)
        if name and type(layer) is nn.Linear and layer.weight.dtype in _NAMES and not any(hooks):
            found[name] = layer
    return found


def quantize_weights(model: nn.Module) -> int:
    """Replaces the linear layers of a model by Int8Linear; returns how many. A weight that other modules hold too, such
    as an embedding's, stays with them as it is. ValueError for a model that is training, and for infinities and NaN in
    a layer, which it names; nothing is changed then.
    """
    if model.training:
        raise ValueError("weights of 8 bits do not train: call eval() first")
    made: dict[str, Int8Linear] = {}
    for name, layer in quantizable(model).items():
        try:
            made[name] = Int8Linear(layer).eval()
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    for name, instead in made.items():
        model.set_submodule(name, instead)
    return len(made)
