"""torchao: which of its configurations run on a device, and how weights of 4 bits are packed there."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from dlbackend.integrations.patching import Exchange, Patch, Wrap

INSTEAD = "dlbackend.quantization has layers of 8 and 4 bits of its own, or install a version that is known."

_FORMAT = "torchao.quantization.quantize_.workflows.int4.int4_tile_packed_to_4d_tensor"
_IN_MULTIPLE = 1024  # to which the tensor's own product pads its inputs


def _tiles(quantize: Callable[..., Any]) -> Callable[..., Any]:
    """On a device, the plain packing, whose products are in a package for CUDA, is the one in tiles, whose products are
    PyTorch's; and that one asks for no CUDA.
    """

    @functools.wraps(quantize)
    def wrapper(weight: torch.Tensor, config: Any) -> Any:
        packing, algorithm = config.int4_packing_format, config.int4_choose_qparams_algorithm
        theirs = packing not in (type(packing).PLAIN, type(packing).TILE_PACKED_TO_4D)
        if weight.device.type != "ocl" or theirs or algorithm != type(algorithm).TINYGEMM or weight.dim() != 2:
            return quantize(weight, config)
        if weight.shape[1] % config.group_size:
            return weight
        return _tiled(weight, config.group_size, config.int4_tile_packed_ntile)

    return wrapper


def _tiled(weight: torch.Tensor, group: int, tile: int) -> Any:
    """Int4TilePackedTo4dTensor of [out, in] bfloat16, as its from_hp() makes it on CUDA."""
    if weight.dtype != torch.bfloat16:
        raise ValueError(
            f"torchao packs weights of 4 bits of bfloat16, not of {weight.dtype}: model.to(torch.bfloat16)"
        )
    there: Any = importlib.import_module(_FORMAT)
    rows, columns = (there.find_multiple(n, m) for n, m in zip(weight.shape, (tile, _IN_MULTIPLE), strict=True))
    padded = torch.nn.functional.pad(weight, (0, columns - weight.shape[1], 0, rows - weight.shape[0]))
    block, dtypes = (1, group), {"scale_dtype": weight.dtype, "zero_point_dtype": weight.dtype}
    asymmetric = there.MappingType.ASYMMETRIC
    scale, zero = there._choose_qparams_affine_tinygemm(padded, asymmetric, block, torch.int32, 0, 15, **dtypes)
    q = there._quantize_affine_tinygemm(padded, block, scale, zero, torch.int32, 0, 15)
    pairs = (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack(pairs.contiguous(), 8)
    parameters = there.pack_tinygemm_scales_and_zeros(scale.reshape(rows, -1), zero.reshape(rows, -1), weight.dtype)
    return there.Int4TilePackedTo4dTensor(
        qdata=packed, scale_and_zero=parameters, block_size=list(block), shape=weight.shape, act_pre_scale=None
    )


PATCHES: dict[str, list[Patch]] = {
    "torchao.float8.inference": [
        Exchange("_check_hardware_support", "assert torch.xpu.is_available() or ..", {"xpu": "ocl"}),
    ],
    "torchao.quantization.quant_api": [
        Wrap("_int4_weight_only_quantize_tensor", "if int4_packing_format == PLAIN: Int4Tensor", _tiles),
    ],
}
