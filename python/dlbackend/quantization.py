"""Layers of 8 and 4 bits.

Linear layers with narrow weights have less memory to read, which is what a layer of few rows waits for:

    dlbackend.quantization.quantize_weights(model)  # in place; also precision="int8-weights" of dlbackend.tune()
    dlbackend.quantization.quantize_weights(model, bits=4, group=64)  # "int4-weights"

Weights of 8 bits are rounded to 255 steps, each row of the weight (an output of the layer) with a scale of its own;
those of 4 bits to 16 steps between the least and the greatest of each group of neighbours in a row. Activations stay as
they are, and products convert the weight while they load it (docs/quantization.md).

Convolutions and linear layers whose inputs are rounded to 8 bits too multiply integers:

    dlbackend.quantization.quantize_static(model, batches)  # which tell how large each layer's inputs are
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["Int4Linear", "Int8Layer", "Int8Linear", "quantize_static", "quantize_weights"]

_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_STEPS = 127
_LEAST_GROUP = 32
GROUP = 64  # by default


class _NarrowLinear(nn.Module):
    """A linear layer for inference, with whatever weight the classes below make of the layer's."""

    bias: torch.Tensor | None
    bits: int

    def __init__(self, layer: nn.Linear) -> None:
        """ValueError for weights that hold infinities or NaN, or are of a dtype that is not quantized."""
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach()
        if weight.dtype not in _NAMES:
            raise ValueError(f"weights of {weight.dtype} are not quantized: {', '.join(map(str, _NAMES))} are")
        if not weight.isfinite().all():
            raise ValueError(f"the weight holds infinities or NaN, which int{self.bits} does not")
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """The weight [out, in] that the layer computes with."""
        raise NotImplementedError

    def product(self, rows: str, matrix: torch.Tensor, extras: list[torch.Tensor]) -> torch.Tensor:
        """The rows behind the product of [n, in] with the weight, on the device: x1 .. are the extras."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[.., in] of float32, float16 or bfloat16 to [.., out] of the same dtype. Gradients do not flow through it."""
        matrix = x.reshape(-1, self.in_features)
        extras = [] if self.bias is None else [self.bias.to(x.dtype)]
        if x.device.type == "ocl" and x.dtype in _NAMES:
            rows = f"y0 = add_alpha.{_NAMES[x.dtype]}(x0, x1, 1)" if extras else "y0 = x0"
            y = self.product(rows, matrix, extras)
        else:
            y = torch.mm(matrix, self.dequantized(x.dtype).t())
            y = y + extras[0] if extras else y
        return y.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Int8Linear(_NarrowLinear):
    """A linear layer for inference: `weight` is int8 [out, in], `scale` [out] of the layer's dtype."""

    weight: torch.Tensor
    scale: torch.Tensor
    bits = 8

    def __init__(self, layer: nn.Linear) -> None:
        """ValueError for weights that hold infinities or NaN."""
        super().__init__(layer)
        weight = layer.weight.detach()
        largest = weight.abs().amax(1).float()
        scale = torch.where(largest > 0, largest / _STEPS, 1).to(weight.dtype)  # as products have it
        steps = (weight.float() / scale.float()[:, None]).round().clamp(-_STEPS, _STEPS)
        self.register_buffer("weight", steps.to(torch.int8))
        self.register_buffer("scale", scale)

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        return self.weight.to(dtype) * self.scale.to(dtype)[:, None]

    def product(self, rows: str, matrix: torch.Tensor, extras: list[torch.Tensor]) -> torch.Tensor:
        t = _NAMES[matrix.dtype]
        rows = f"v = mul.{t}(x0, x1); y0 = " + (f"add_alpha.{t}(v, x2, 1)" if extras else "v")
        operands = [self.scale.to(matrix.dtype), *extras]
        run = torch.ops.dlbackend.product_rows.default
        results: list[torch.Tensor] = run(rows, matrix, self.weight.t(), None, 0, 1, operands)
        return results[0]


class Int4Linear(_NarrowLinear):
    """A linear layer for inference whose weight has 4 bits.

    `weight` is uint8 [out, in / 2], pairs of numbers of which the first is in the high bits. `scale_and_zero`
    [in / group, out, 2] of the layer's dtype is for groups of neighbours: q stands for (q - 8) * scale + zero.
    """

    weight: torch.Tensor
    scale_and_zero: torch.Tensor
    bits = 4

    def __init__(self, layer: nn.Linear, group: int = GROUP) -> None:
        """ValueError for weights that hold infinities or NaN, and for a group that does not divide the inputs."""
        check_group(group)
        if layer.in_features % group:
            raise ValueError(f"{layer.in_features} inputs are no multiple of the group, {group}")
        super().__init__(layer)
        self.group = group
        groups = layer.weight.detach().float().reshape(self.out_features, -1, group)
        least, greatest = groups.amin(2), groups.amax(2)
        dtype = layer.weight.dtype
        varies = greatest > least
        scale = torch.where(varies, (greatest - least) / 15, 1).to(dtype)  # as products have it
        zero = torch.where(varies, least + 8 * scale.float(), least).to(dtype)
        q = (groups - zero.float()[..., None]).div_(scale.float()[..., None]).round_().add_(8).clamp_(0, 15)
        pairs = q.to(torch.uint8).reshape(self.out_features, -1, 2)
        self.register_buffer("weight", pairs[..., 0] << 4 | pairs[..., 1])
        self.register_buffer("scale_and_zero", torch.stack([scale.t(), zero.t()], 2))

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        q = torch.stack([self.weight >> 4, self.weight & 15], 2).reshape(self.out_features, -1, self.group)
        scale, zero = (self.scale_and_zero[..., i].t().float()[..., None] for i in (0, 1))
        return ((q.float() - 8) * scale + zero).reshape(self.out_features, -1).to(dtype)

    def product(self, rows: str, matrix: torch.Tensor, extras: list[torch.Tensor]) -> torch.Tensor:
        parameters = self.scale_and_zero.to(matrix.dtype)
        run = torch.ops.dlbackend.group_product_rows.default
        results: list[torch.Tensor] = run(rows, matrix, self.weight, self.group, parameters, extras)
        return results[0]

    def extra_repr(self) -> str:
        return super().extra_repr() + f", group={self.group}"


def check_group(group: int) -> None:
    """ValueError for what no product takes as a group."""
    if group < _LEAST_GROUP or group % _LEAST_GROUP:
        raise ValueError(f"groups of weights are multiples of {_LEAST_GROUP}, but the group is {group}")


def quantizable(model: nn.Module, group: int = 1) -> dict[str, nn.Linear]:
    """The linear layers that quantize_weights() replaces, by name: of the plain class, without hooks, of floats, with a
    multiple of `group` inputs.
    """
    found: dict[str, nn.Linear] = {}
    for name, layer in model.named_modules():
        hooks: Any = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)
        plain = type(layer) is nn.Linear and layer.weight.dtype in _NAMES and not any(hooks)
        if name and plain and layer.in_features % group == 0:
            found[name] = layer
    return found


def quantize_weights(model: nn.Module, bits: int = 8, group: int = GROUP) -> int:
    """Replaces the linear layers of a model by Int8Linear or, for 4 bits, Int4Linear; returns how many.

    `group` is how many neighbours in a row of a weight of 4 bits share a scale, a multiple of 32; layers whose inputs
    it does not divide are left as they are. A weight that other modules hold too, such as an embedding's, stays with
    them as it is. ValueError for other bits, for a model that is training, and for infinities and NaN in a layer, which
    it names; nothing is changed then.
    """
    if bits not in (8, 4):
        raise ValueError(f"weights are quantized to 8 or 4 bits, not to {bits}")
    if bits == 4:
        check_group(group)
    if model.training:
        raise ValueError(f"weights of {bits} bits do not train: call eval() first")
    made: dict[str, nn.Module] = {}
    for name, layer in quantizable(model, group if bits == 4 else 1).items():
        try:
            made[name] = (Int8Linear(layer) if bits == 8 else Int4Linear(layer, group)).eval()
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    for name, instead in made.items():
        model.set_submodule(name, instead)
    return len(made)


_CONVOLUTIONS: dict[type, Any] = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}


class Int8Layer(nn.Module):
    """A convolution or linear layer for inference that multiplies integers of 8 bits and sums them up in 32.

    `weight` is int8 in the layer's shape, `weight_scale` [out] float32. Inputs are rounded to multiples of
    `input_scale`, to nearest with ties to even, from -128 to 127 of them. Scales, bias and, with `relu`, a ReLU
    are applied to the sums in the same launch.
    """

    weight: torch.Tensor
    weight_scale: torch.Tensor
    input_scale: torch.Tensor
    bias: torch.Tensor

    def __init__(self, layer: nn.Module, input_scale: float, relu: bool = False) -> None:
        """TypeError for other layers than Conv1d to Conv3d, padded by zeros, and Linear; ValueError for weights that
        hold infinities or NaN, and for a scale that is not a number above zero.
        """
        super().__init__()
        if not takes_integers(layer):
            raise TypeError(f"Int8Layer takes Linear and Conv1d to Conv3d that pad zeros, not {layer}")
        if not 0 < input_scale < float("inf"):
            raise ValueError(f"the scale of the inputs is {input_scale}, but has to be a number above zero")
        source: Any = layer
        weight = source.weight.detach().float()
        largest = weight.abs().flatten(1).amax(1)
        if not largest.isfinite().all():
            raise ValueError("the weight holds infinities or NaN, which int8 does not")
        self.relu = relu
        self.convolve = _CONVOLUTIONS.get(type(layer))
        self.where = (source.stride, source.padding, source.dilation, source.groups) if self.convolve else None
        scale = torch.where(largest > 0, largest / _STEPS, 1)
        shape = (-1, *[1] * (weight.dim() - 1))
        steps = (weight / scale.view(shape)).round().clamp(-_STEPS, _STEPS)
        bias = torch.zeros_like(scale) if source.bias is None else source.bias.detach().float().clone()
        self.register_buffer("weight", steps.to(torch.int8))
        self.register_buffer("weight_scale", scale)
        self.register_buffer("input_scale", torch.tensor(float(input_scale), device=weight.device))
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the layer's, in x's dtype: float32, float16 or bfloat16. Gradients do not flow through it."""
        scale, bias = self.weight_scale * self.input_scale, self.bias
        if self.convolve:  # one for each channel
            scale, bias = (t.view(-1, *[1] * (self.weight.dim() - 2)) for t in (scale, bias))
        if x.device.type != "ocl" or x.dtype not in _NAMES:
            q = (x.double() / self.input_scale).round().clamp(-128, 127)  # sums of integers are exact
            w = self.weight.double()
            sums = self.convolve(q, w, None, *self.where) if self.convolve and self.where else F.linear(q, w)
            y = sums.float() * scale + bias
            return (y.relu() if self.relu else y).to(x.dtype)
        rounding = (
            "a = copy.f32(x0); v = div.f32(a, x1); r = round.f32(v); c = clamp.f32(r, -128, 127); y0 = copy.i8(c)"
        )
        (q,) = torch.ops.dlbackend.rows.default(rounding, [x, self.input_scale], [], None, False, [])
        rows = "s = copy.f32(x0); v = mul.f32(s, x1); w = add_alpha.f32(v, x2, 1); "
        rows += ("p = relu.f32(w); " if self.relu else "p = w; ") + f"y0 = copy.{_NAMES[x.dtype]}(p)"
        if self.where:
            run = torch.ops.dlbackend.convolution_rows.default
            made: list[torch.Tensor] = run(rows, q, self.weight, None, *self.where, [scale, bias], False)
            return made[0]
        run = torch.ops.dlbackend.product_rows.default
        matrix = q.reshape(-1, q.shape[-1])
        made = run(rows, matrix, self.weight.t(), None, 0, 1, [scale, bias])
        return made[0].reshape(*x.shape[:-1], self.weight.shape[0])

    def extra_repr(self) -> str:
        return f"weight={tuple(self.weight.shape)}, input_scale={self.input_scale.item():.3g}, relu={self.relu}"


def takes_integers(layer: nn.Module) -> bool:
    """Whether Int8Layer takes the layer: of the plain class, without hooks, of floats."""
    hooks: Any = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)
    if any(hooks) or type(layer) not in (nn.Linear, *_CONVOLUTIONS) or layer.weight.dtype not in _NAMES:
        return False
    return isinstance(layer, nn.Linear) or (layer.padding_mode == "zeros" and not isinstance(layer.padding, str))


def quantize_static(model: nn.Module, calibration: Iterable[Any], percentile: float = 100.0) -> int:
    """Replaces the convolutions and linear layers of a model by Int8Layer; returns how many.

    `calibration`: inputs of the model, tensors or tuples of its arguments, which are run through it. The scale of a
    layer's inputs has `percentile` of their absolute values, of the batch where that is greatest, at 127 steps; 100
    takes the greatest. Layers that no input reaches, or zeros alone, stay as they are. Batch norms and activations that
    are to be part of the layers' launches are folded first: dlbackend.tuning does that.

    ValueError for a model that is training, for no inputs, and for infinities and NaN in a layer's weight or inputs,
    with the layer's name; nothing is changed then.
    """
    if model.training:
        raise ValueError("layers of integers do not train: call eval() first")
    if not 0 < percentile <= 100:
        raise ValueError(f"a percentile is above 0 and at most 100, not {percentile}")
    layers = {name: layer for name, layer in model.named_modules() if name and takes_integers(layer)}
    largest = _observe(model, layers, calibration, percentile)
    made: dict[str, Int8Layer] = {}
    for name, layer in layers.items():
        try:
            if largest.get(name):
                made[name] = Int8Layer(layer, largest[name] / _STEPS).eval()
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    for name, instead in made.items():
        model.set_submodule(name, instead)
    return len(made)


def _observe(
    model: nn.Module, layers: dict[str, nn.Module], calibration: Iterable[Any], percentile: float
) -> dict[str, float]:
    """The absolute value that `percentile` of each layer's inputs reach, of the batch where that is greatest."""
    largest: dict[str, float] = {}

    def hook(name: str) -> Any:
        def observe(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            values = inputs[0].detach().abs().float().flatten()
            if not values.numel():
                return
            rank = max(round(percentile / 100 * values.numel()), 1)
            value = (values.amax() if percentile == 100 else values.kthvalue(rank).values).item()
            if not values.isfinite().all():
                raise ValueError(f"{name}: its inputs hold infinities or NaN")
            largest[name] = max(largest.get(name, 0.0), value)

        return observe

    hooks = [layer.register_forward_pre_hook(hook(name)) for name, layer in layers.items()]
    count = 0
    try:
        with torch.no_grad():
            for inputs in calibration:
                count += 1
                model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
    finally:
        for handle in hooks:
            handle.remove()
    if not count:
        raise ValueError("calibration has no inputs")
    return largest
