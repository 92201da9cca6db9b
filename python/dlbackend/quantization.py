"""Layers of 8 and 4 bits.

Linear layers with narrow weights have less memory to read, which is what a layer of few rows waits for:

    dlbackend.quantization.quantize_weights(model)  # in place; also precision="int8-weights" of dlbackend.tune()
    dlbackend.quantization.quantize_weights(model, bits=4, group=64)  # "int4-weights"

Weights of 8 bits are rounded to 255 steps, each row of the weight (an output of the layer) with a scale of its own;
those of 4 bits to 16 steps between the least and the greatest of each group of neighbours in a row. Activations stay as
they are, and products convert the weight while they load it (docs/quantization.md).

Convolutions and linear layers whose inputs are rounded to 8 bits too multiply integers:

    dlbackend.quantization.quantize_static(model, batches)  # which tell how large each layer's inputs are; "int8"
    dlbackend.quantization.quantize(model, "int8-dynamic")  # linear layers, a scale for each row of inputs; or "fp8"

quantize_layers() gives each layer a precision of its own, which is what the tuner's results hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf, isfinite
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dlbackend.calibration import PERCENTILE, observe

__all__ = [
    "DynamicLinear",
    "Int4Linear",
    "Int8Layer",
    "Int8Linear",
    "LayerPrecision",
    "quantizable",
    "quantize",
    "quantize_layers",
    "quantize_static",
    "quantize_weights",
]

PRECISIONS = ("int8", "int8-dynamic", "fp8", "int8-weights", "int4-weights")
GROUP = 64  # neighbours in a row of a weight of 4 bits that share a scale, by default

_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_INTEGERS = {torch.int8: "i8", torch.uint8: "u8"}
_CONVOLUTIONS: dict[type, Any] = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}
_STEPS = 127
_LEAST_GROUP = 32
_LEAST_SCALE = 1e-30  # of a row of zeros


@dataclass(frozen=True, order=True)
class LayerPrecision:
    """How one layer computes: one of PRECISIONS and, for "int8" alone, how its inputs are rounded: to multiples of
    `input_scale`, from 0 to 255 of them where inputs are `unsigned`, else from -128 to 127.
    """

    precision: str
    input_scale: float = 0.0
    unsigned: bool = False


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
        scale = _scales(weight.float(), _STEPS, torch.int8).to(weight.dtype)  # as products have it
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


class DynamicLinear(nn.Module):
    """A linear layer for inference that rounds each row of its inputs with a scale of its own, as it comes.

    `weight` [out, in] is int8, with sums in int32, or float8_e4m3fn, with sums in float32; `weight_scale` [out] is
    float32. The greatest absolute value of a row of inputs, or of the weight, is the greatest of the dtype.
    """

    weight: torch.Tensor
    weight_scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, layer: nn.Linear, dtype: torch.dtype = torch.int8) -> None:
        """ValueError for weights that hold infinities or NaN, and for other dtypes than the two."""
        super().__init__()
        if dtype not in (torch.int8, torch.float8_e4m3fn):
            raise ValueError(f"inputs are rounded to int8 or float8_e4m3fn, not to {dtype}")
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.greatest = float(_STEPS if dtype == torch.int8 else torch.finfo(dtype).max)
        weight = layer.weight.detach().float()
        scale = _scales(weight, self.greatest, dtype)
        self.register_buffer("weight", _rounded(weight / scale[:, None], dtype))
        self.register_buffer("weight_scale", scale)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().float().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[.., in] of float32, float16 or bfloat16 to [.., out] of the same dtype. Gradients do not flow through it."""
        matrix = x.reshape(-1, self.in_features)
        on_device = x.device.type == "ocl" and x.dtype in _NAMES
        y = (self._product if on_device else self._reference)(matrix)
        return y.reshape(*x.shape[:-1], self.out_features)

    def _product(self, matrix: torch.Tensor) -> torch.Tensor:
        largest = torch.linalg.vector_norm(matrix, inf, dim=1, keepdim=True)
        run = torch.ops.dlbackend.rows.default
        (scale,) = run(_dynamic_scale(self.greatest), [largest], [], None, False, [])
        if self.weight.dtype != torch.int8:
            q = (matrix / scale).to(self.weight.dtype)
            bias = None if self.bias is None else self.bias.to(matrix.dtype)
            return torch._scaled_mm(q, self.weight.t(), scale, self.weight_scale[None], bias, out_dtype=matrix.dtype)
        (q,) = run(_rounding("i8"), [matrix, scale], [], None, False, [])
        extras = [scale, self.weight_scale] if self.bias is None else [scale, self.weight_scale, self.bias]
        rows = _rescaling(_NAMES[matrix.dtype], self.bias is not None)
        made: list[torch.Tensor] = torch.ops.dlbackend.product_rows.default(
            rows, q, self.weight.t(), None, 0, 1, extras
        )
        return made[0]

    def _reference(self, matrix: torch.Tensor) -> torch.Tensor:
        scale = (matrix.abs().amax(1, keepdim=True).float() / self.greatest).clamp_min(_LEAST_SCALE)
        q = _rounded(matrix.float() / scale, self.weight.dtype)
        y = (q.double() @ self.weight.double().t()).float() * scale * self.weight_scale
        return (y if self.bias is None else y + self.bias).to(matrix.dtype)

    def extra_repr(self) -> str:
        shape = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{shape}, bias={self.bias is not None}, {self.weight.dtype}"


@cache
def _dynamic_scale(greatest: float) -> str:
    """Rows that make the scale of a row of inputs of its greatest absolute value."""
    return f"a = copy.f32(x0); b = div.f32(a, {greatest}); y0 = clamp.f32(b, {_LEAST_SCALE}, {torch.finfo().max})"


@cache
def _rescaling(name: str, bias: bool) -> str:
    """Rows behind sums of integers: scales of their row and column, a bias, and the result's dtype."""
    rows = "s = copy.f32(x0); u = mul.f32(s, x1); v = mul.f32(u, x2); "
    return rows + ("w = add_alpha.f32(v, x3, 1); " if bias else "w = v; ") + f"y0 = copy.{name}(w)"


def _scales(weight: torch.Tensor, greatest: float, dtype: torch.dtype) -> torch.Tensor:
    """float32 [out], by which each output's weights are divided. ValueError for infinities and NaN."""
    largest = weight.abs().flatten(1).amax(1)
    if not largest.isfinite().all():
        raise ValueError(f"the weight holds infinities or NaN, which {str(dtype).removeprefix('torch.')} does not")
    return torch.where(largest > 0, largest / greatest, 1)


def _rounded(steps: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Steps as int8 or uint8, within whose range they are brought, or as a float8."""
    if dtype.is_floating_point:
        return steps.to(dtype)
    limits = torch.iinfo(dtype)
    return steps.round().clamp(limits.min, limits.max).to(dtype)


@cache
def _rounding(name: str, value: str = "a = copy.f32(x0)", scale: str = "x1") -> str:
    """Rows that round `a` to multiples of a scale, as integers i8 or u8."""
    low, high = (-128, 127) if name == "i8" else (0, 255)
    rows = f"{value}; d = div.f32(a, {scale}); r = round.f32(d); c = clamp.f32(r, {low}, {high}); "
    return rows + f"i = copy.i32(c); y0 = copy.{name}(i)"


@cache
def _requantising(name: str, summand: bool, low: float, high: float) -> str:
    """Rows behind sums of integers: their scale x1 and bias x2, a further summand, bounds, and the dtype of the result;
    for i8 and u8 the last tensor is their scale.
    """
    rows = "s = copy.f32(x0); v = mul.f32(s, x1); w = add_alpha.f32(v, x2, 1); "
    rows += "o = copy.f32(x3); z = add_alpha.f32(w, o, 1); " if summand else "z = w; "
    if (low, high) == (0.0, inf):
        rows += "a = relu.f32(z)"
    elif (low, high) == (-inf, inf):
        rows += "a = z"
    else:
        largest = torch.finfo().max
        rows += f"a = clamp.f32(z, {max(low, -largest)}, {min(high, largest)})"
    return _rounding(name, rows, f"x{3 + summand}") if name in ("i8", "u8") else f"{rows}; y0 = copy.{name}(a)"


class Int8Layer(nn.Module):
    """A convolution or linear layer for inference that multiplies integers of 8 bits and sums them up in 32.

    `weight` is int8 in the layer's shape. Inputs are rounded to multiples of `input_scale`, to nearest with ties to
    even: from 0 to 255 of them where they are `unsigned`, else from -128 to 127. `scale` float32 has for each output
    that of the sums, the input's times the weight's. Scale, bias, a further summand, bounds of an activation and, with
    an `output_scale`, the rounding to the integers that the next layer takes, are applied in the same launch.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    input_scale: torch.Tensor
    bias: torch.Tensor
    output_scale: torch.Tensor | None

    def __init__(self, layer: nn.Module, input_scale: float, unsigned: bool = False) -> None:
        """TypeError for other layers than Conv1d to Conv3d, padded by zeros, and Linear; ValueError for weights that
        hold infinities or NaN, and for a scale that is not a number above zero.
        """
        super().__init__()
        if why := refusal(layer, "int8"):
            raise TypeError(why)
        if not 0 < input_scale < inf:
            raise ValueError(f"the scale of the inputs is {input_scale}, but has to be a number above zero")
        source: Any = layer
        weight = source.weight.detach().float()
        scale = _scales(weight, _STEPS, torch.int8)
        self.convolve = _CONVOLUTIONS.get(type(layer))
        self.where = (source.stride, source.padding, source.dilation, source.groups) if self.convolve else None
        self.input_dtype = torch.uint8 if unsigned else torch.int8
        self.float_dtype: torch.dtype = source.weight.dtype  # of results where inputs are integers
        self.output_dtype: torch.dtype | None = None
        self.low, self.high = -inf, inf
        bias = torch.zeros_like(scale) if source.bias is None else source.bias.detach().float().clone()
        steps = weight / scale.view(-1, *[1] * (weight.dim() - 1))
        each = (-1, *[1] * (weight.dim() - 2))  # in a result of a convolution
        self.register_buffer("weight", _rounded(steps, torch.int8))
        self.register_buffer("scale", (scale * input_scale).view(each))
        self.register_buffer("input_scale", torch.tensor(float(input_scale), device=weight.device))
        self.register_buffer("bias", bias.view(each))
        self.register_buffer("output_scale", None)

    def give_integers(self, following: Int8Layer) -> None:
        """Has results rounded to the integers that another layer takes, as that one would round them."""
        self.output_scale, self.output_dtype = following.input_scale.clone(), following.input_dtype

    def forward(self, x: torch.Tensor, summand: torch.Tensor | None = None) -> torch.Tensor:
        """As the layer's, plus the summand, within the bounds. x is float32, float16 or bfloat16, as is the result, or
        integers of input_dtype; with an output_scale the result is integers. Gradients do not flow through it.
        """
        integers = x.dtype == self.input_dtype
        if x.device.type != "ocl" or not (integers or x.dtype in _NAMES):
            return self._reference(x, summand)
        if self.convolve and x.dim() < self.weight.dim():  # one sample
            return self.forward(x[None], None if summand is None else summand[None])[0]
        dtype = self.float_dtype if integers else x.dtype
        if not integers:
            rounding = _rounding(_INTEGERS[self.input_dtype])
            (x,) = torch.ops.dlbackend.rows.default(rounding, [x, self.input_scale], [], None, False, [])
        extras = [self.scale, self.bias]
        if summand is not None:
            if summand.dtype not in _NAMES or summand.shape != self._result_shape(x):
                y = self._run(_requantising("f32", False, -inf, inf), x, extras) + summand
                return self._finish(y, dtype)
            extras.append(summand)
        name = _NAMES[dtype]
        if self.output_scale is not None and self.output_dtype is not None:
            extras.append(self.output_scale)
            name = _INTEGERS[self.output_dtype]
        return self._run(_requantising(name, summand is not None, self.low, self.high), x, extras)

    def bounded(self) -> bool:
        """Whether there are bounds to results."""
        return (self.low, self.high) != (-inf, inf)

    def _run(self, rows: str, q: torch.Tensor, extras: list[torch.Tensor]) -> torch.Tensor:
        made: list[torch.Tensor]
        if self.where:
            run = torch.ops.dlbackend.convolution_rows.default
            made = run(rows, q, self.weight, None, *self.where, extras, True)
            return made[0]
        matrix, out = q.reshape(-1, q.shape[-1]), self.weight.shape[0]
        flat = [t if t.dim() == 1 or not t.dim() else t.reshape(-1, out) for t in extras]
        made = torch.ops.dlbackend.product_rows.default(rows, matrix, self.weight.t(), None, 0, 1, flat)
        return made[0].reshape(*q.shape[:-1], out)

    def _result_shape(self, x: torch.Tensor) -> tuple[int, ...]:
        if self.where is None:
            return (*x.shape[:-1], self.weight.shape[0])
        sizes = zip(x.shape[2:], self.weight.shape[2:], *self.where[:3], strict=True)
        return (x.shape[0], self.weight.shape[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes))

    def _reference(self, x: torch.Tensor, summand: torch.Tensor | None) -> torch.Tensor:
        dtype = self.float_dtype if x.dtype == self.input_dtype else x.dtype
        q = x if x.dtype == self.input_dtype else _rounded(x.float() / self.input_scale, self.input_dtype)
        q, w = q.double(), self.weight.double()  # in which sums of integers are exact
        sums = self.convolve(q, w, None, *self.where) if self.convolve and self.where else F.linear(q, w)
        y = sums.float() * self.scale + self.bias
        return self._finish(y if summand is None else y + summand, dtype)

    def _finish(self, y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if self.bounded():
            y = y.clamp(self.low, self.high)
        if self.output_scale is not None and self.output_dtype is not None:
            return _rounded(y.float() / self.output_scale, self.output_dtype)
        return y.to(dtype)

    def extra_repr(self) -> str:
        shown = f"weight={tuple(self.weight.shape)}, input_scale={self.input_scale.item():.3g}, {self.input_dtype}"
        return shown + (f", within {self.low} and {self.high}" if isfinite(self.low) or isfinite(self.high) else "")


def check_group(group: int) -> None:
    """ValueError for what no product takes as a group."""
    if group < _LEAST_GROUP or group % _LEAST_GROUP:
        raise ValueError(f"groups of weights are multiples of {_LEAST_GROUP}, but the group is {group}")


def refusal(layer: nn.Module, precision: str, group: int = GROUP) -> str:
    """Why a layer cannot have one of PRECISIONS; empty where it can."""
    kinds = (nn.Linear, *_CONVOLUTIONS) if precision == "int8" else (nn.Linear,)
    if type(layer) not in kinds:
        known = " and ".join(kind.__name__ for kind in kinds)
        return f"{precision} is for {known}, not for {type(layer).__name__}"
    one: Any = layer
    if one._forward_hooks or one._forward_pre_hooks or one._backward_hooks:
        return "it has hooks, which would be lost"
    if one.weight.dtype not in _NAMES:
        return f"its weight is {one.weight.dtype}, and only {', '.join(map(str, _NAMES))} are quantized"
    if not isinstance(one, nn.Linear) and (one.padding_mode != "zeros" or isinstance(one.padding, str)):
        return f"its padding is {one.padding!r} by {one.padding_mode!r}, and {precision} is for numbers of zeros"
    if precision == "int4-weights" and one.in_features % group:
        return f"its {one.in_features} inputs are no multiple of the group, {group}"
    return ""


def quantizable(model: nn.Module, precision: str, group: int = GROUP) -> dict[str, nn.Module]:
    """The layers within a model that can have one of PRECISIONS, by name: of the plain classes, without hooks."""
    if precision not in PRECISIONS:
        raise ValueError(f"layers are not quantized to {precision!r}, but to {', '.join(PRECISIONS)}")
    return {name: m for name, m in model.named_modules() if name and not refusal(m, precision, group)}


def _quantized(layer: Any, how: LayerPrecision, group: int) -> nn.Module:
    if how.precision == "int8":
        return Int8Layer(layer, how.input_scale, how.unsigned).eval()
    if how.precision == "int8-weights":
        return Int8Linear(layer).eval()
    if how.precision == "int4-weights":
        return Int4Linear(layer, group).eval()
    return DynamicLinear(layer, torch.int8 if how.precision == "int8-dynamic" else torch.float8_e4m3fn).eval()


LAYERS = (Int4Linear, Int8Linear, DynamicLinear, Int8Layer)


def check_layers(model: nn.Module, layers: Mapping[str, LayerPrecision], group: int = GROUP) -> None:
    """ValueError where quantize_layers() raises it."""
    if model.training and layers:
        raise ValueError("quantized layers do not train: call eval() first")
    there = dict(model.named_modules())
    for name, how in layers.items():
        if not name or name not in there:
            raise ValueError(f"the model has no layer {name!r} to quantize")
        if how.precision not in PRECISIONS:
            raise ValueError(f"{name}: layers are not quantized to {how.precision!r}, but to {', '.join(PRECISIONS)}")
        if why := refusal(there[name], how.precision, group):
            raise ValueError(f"{name}: {why}")
        if how.precision == "int8" and not 0 < how.input_scale < inf:
            raise ValueError(f"{name}: the scale of its inputs is {how.input_scale}, not a number above zero")
        if not there[name].get_parameter("weight").isfinite().all():
            raise ValueError(f"{name}: the weight holds infinities or NaN, which {how.precision} does not")


def quantize_layers(model: nn.Module, layers: Mapping[str, LayerPrecision], group: int = GROUP) -> int:
    """Gives layers of a model, by name, their precision; returns how many. ValueError for a model that is training,
    for a layer that there is not, that cannot have its precision, or whose weight holds infinities or NaN, with its
    name; nothing is changed then.
    """
    check_layers(model, layers, group)
    made = {name: _quantized(model.get_submodule(name), how, group) for name, how in layers.items()}
    for name, instead in made.items():
        model.set_submodule(name, instead)
    return len(made)


def quantize(model: nn.Module, precision: str, group: int = GROUP) -> int:
    """Gives all layers that can have it a precision that needs no calibration; returns how many. ValueError as
    quantize_layers()'s, and for "int8", which is quantize_static()'s.
    """
    if precision == "int8":
        raise ValueError("int8 needs batches that tell how large inputs are: quantize_static(), or int8-dynamic")
    if precision == "int4-weights":
        check_group(group)
    return quantize_layers(model, dict.fromkeys(quantizable(model, precision, group), LayerPrecision(precision)), group)


def quantize_weights(model: nn.Module, bits: int = 8, group: int = GROUP) -> int:
    """Replaces the linear layers of a model by Int8Linear or, for 4 bits, Int4Linear; returns how many.

    `group` is how many neighbours in a row of a weight of 4 bits share a scale, a multiple of 32; layers whose inputs
    it does not divide are left as they are. A weight that other modules hold too, such as an embedding's, stays with
    them as it is. ValueError for other bits, for a model that is training, and for infinities and NaN in a layer, which
    it names; nothing is changed then.
    """
    if bits not in (8, 4):
        raise ValueError(f"weights are quantized to 8 or 4 bits, not to {bits}")
    return quantize(model, f"int{bits}-weights", group)


def quantize_static(
    model: nn.Module,
    calibration: Iterable[Any],
    method: str = "minmax",
    percentile: float = PERCENTILE,
    layers: Iterable[str] | None = None,
) -> int:
    """Replaces the convolutions and linear layers of a model, or those named, by Int8Layer; returns how many.

    `calibration`: inputs of the model, which are run through it and tell the scale of each layer's inputs, by one of
    calibration.METHODS: tensors, tuples of positional or dictionaries of keyword arguments. Layers that no input
    reaches, or zeros alone, stay as they are. Batch norms and activations that are to be part of the layers' launches
    are fused first: dlbackend.tune() does that.

    ValueError for a model that is training, for no inputs, for a named layer that cannot be quantized, and for
    infinities and NaN in a layer's weight or inputs, with the layer's name; nothing is changed then.
    """
    if model.training:
        raise ValueError("quantized layers do not train: call eval() first")
    found = quantizable(model, "int8")
    if layers is not None:
        there = dict(model.named_modules())
        for name in (names := list(layers)):
            if name not in there:
                raise ValueError(f"the model has no layer {name!r} to quantize")
            if name not in found:
                raise ValueError(f"{name}: {refusal(there[name], 'int8') or 'the model itself is no layer of it'}")
        found = {name: found[name] for name in names}
    return quantize_layers(model, static_precisions(model, found, calibration, method, percentile))


def static_precisions(
    model: nn.Module, layers: Mapping[str, nn.Module], calibration: Iterable[Any], method: str, percentile: float
) -> dict[str, LayerPrecision]:
    """What quantize_layers() takes for the layers that inputs reach, calibrated as quantize_static() says."""
    ranges = observe(model, layers, calibration, method, percentile)
    return {name: LayerPrecision("int8", one.scale, one.unsigned) for name, one in ranges.items()}
