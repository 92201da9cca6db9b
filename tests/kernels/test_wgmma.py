"""Kernels for Hopper GPUs in an interpreter of PTX (ptx_machine.py).

Fragments, descriptors, tensor maps and barriers must be right in whatever order copies and products end. That the
interpreter is right is shown by the kernel of products, which gives right results on an H100, and by faults put into
kernels, which it finds.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from common import relative_error
from kernels.ptx_compile import can_compile, source_of, to_ptx
from kernels.ptx_machine import Hang, Machine

pytestmark = pytest.mark.skipif(not can_compile(), reason="no clang that compiles for NVIDIA's GPUs")

COMMON = "common/gpu_tile.clh", "common/operands.clh", "common/wgmma.clh"
TYPE = {torch.float16: "-DT_HALF", torch.bfloat16: "-DT_BFLOAT16"}
TOLERANCE = {torch.float16: 6e-4, torch.bfloat16: 5e-3}
ORDERS = [{"late_products": True, "late_copies": False}, {"late_products": False, "late_copies": True}]
SEED, COUNTER = 12345, 7


def place(machine: Machine, t: torch.Tensor) -> int:
    return machine.allocate(t.contiguous().reshape(-1).view(torch.uint8).numpy())


def fetch(machine: Machine, address: int, like: torch.Tensor) -> torch.Tensor:
    data = machine.read(address, like.numel() * like.element_size(), np.uint8)
    return torch.from_numpy(data).view(like.dtype).reshape(like.shape)


# As primitives/common/epilogue.cpp writes it, of rows that tell where each result is.
ROWS_BEHIND = """
#define EPILOGUE
#define EPILOGUE_PARAMETERS , global const float* of_column
#define EPILOGUE_ARGUMENTS , of_column
typedef struct { float factor; int row; } EpilogueExtras;
static inline EpilogueExtras dlb_epilogue_extras(long at, int row, int column EPILOGUE_PARAMETERS) {
  EpilogueExtras extras = {of_column[column], row};
  return extras;
}
static inline float dlb_epilogue_of(float v, EpilogueExtras extras, bool exists, long at EPILOGUE_PARAMETERS) {
  return v * extras.factor + extras.row % 8 + at % 4;
}
static inline float dlb_epilogue(float v, long at, int row, int column EPILOGUE_PARAMETERS) {
  return dlb_epilogue_of(v, dlb_epilogue_extras(at, row, column EPILOGUE_ARGUMENTS), true, at EPILOGUE_ARGUMENTS);
}
"""


def product_arguments(
    lines: list[torch.Tensor],
    partial: int,
    c_strides: tuple[int, int],
    sizes: tuple[int, int, int],
    splits: int,
    units: bool,
) -> bytes:
    """GemmWgmma."""
    m, n, k = sizes
    size = lines[0].element_size()
    arguments = b"".join(struct.pack("<3q", 0, size * t.shape[1], 0) for t in lines)
    arguments += struct.pack("<8q2q", 0, 0, *c_strides, 0, 0, n, 1, partial, 0)
    part = math.ceil(k / splits / (128 // size)) * (128 // size)
    return arguments + struct.pack("<7i2fi", 1, m, n, k, splits, part, units, -math.inf, math.inf, 0)


# How results lie in memory: rows of whole units, rows of the kernel language behind them; columns, to which another
# matrix is added; parts of the reduction.
@pytest.mark.parametrize(
    "results", ["units", "units and rows behind", "columns and an addend", "parts", "parts of odd width"]
)
@pytest.mark.parametrize("along_rows", [False, True])
@pytest.mark.parametrize("order", [ORDERS[0], pytest.param(ORDERS[1], marks=pytest.mark.slow)])
def test_products(along_rows, order, results):
    m, n, k, splits = 136, 192, 200, 1 + results.startswith("parts")
    a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    lines = [a.T, b] if along_rows else [a, b.T]
    majors = [f"-D{side}_ALONG_ROWS={int(along_rows)}" for side in "AB"]
    behind = results.endswith("behind")
    source = ROWS_BEHIND * behind + source_of(*COMMON, "common/wgmma_loop.clh", "gemm/gpu_wgmma.cl")
    ptx = to_ptx(source, "-DT_BFLOAT16", "-DTILE_N=128", "-DSPLIT=0", *majors)
    machine = Machine(ptx, "gemm_gpu_wgmma", groups=2, items=288, **order)
    operands = [place(machine, t) for t in lines]
    # of columns that the tiles reach beyond, one of the operand's is left out
    width = n - 1 if results in ("columns and an addend", "parts of odd width") else n
    result, sums = torch.zeros(width, m).bfloat16(), torch.zeros(splits, m, width)
    added = torch.randn(m, width).bfloat16() if results == "columns and an addend" else torch.zeros(m, width).bfloat16()
    c, d, workspace = place(machine, result), place(machine, added), machine.allocate(np.zeros(4096, np.uint8))
    partial = place(machine, sums)
    c_strides, beta = ((1, m), 0.5) if results == "columns and an addend" else ((width, 1), 0.0)
    arguments = product_arguments(
        lines, (partial - workspace) // 4, c_strides, (m, width, k), splits, results.startswith("units")
    )
    factors = torch.randn(width)
    extras = [place(machine, factors)] if behind else []
    machine.launch(*operands, c, d, workspace, 1.0, beta, arguments, *extras)
    expected = (a.double() @ b.double())[:, :width] + beta * added.double()
    if behind:
        rows, columns = torch.arange(m)[:, None], torch.arange(width)
        expected = expected * factors.double() + rows % 8 + (rows * width + columns) % 4
    if splits > 1:
        found, limit = fetch(machine, partial, sums).sum(0), 1e-5
    else:
        found = fetch(machine, c, result)
        found, limit = found.T if c_strides[0] == 1 else found.reshape(m, width), 4e-3
    assert relative_error(found, expected) < limit


def divider(divisor: int) -> bytes:
    """As codegen::make_divider()."""
    shift = (divisor - 1).bit_length()
    return struct.pack("<3I", divisor, ((1 << shift) - divisor << 32) // divisor + 1, shift)


@pytest.mark.parametrize("elements_fast", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_lines_are_packed(dtype, elements_fast):
    """Two matrices with gaps, of lines in a plane of two rows."""
    lines, length, tile = 70, 101, 64 if dtype == torch.int8 else 32
    given = torch.randint(-128, 128, (2, lines, length + 3) if elements_fast else (2, length + 3, lines)).to(dtype)
    x = (given if elements_fast else given.mT)[..., :length]
    pitch = length + 11
    packed = torch.full((2, lines, pitch), 77).to(dtype)
    line, element = x.stride()[1:]
    arguments = struct.pack("<7q", 0, x.stride(0), 0, line, lines // 2 * line, 0, element)
    arguments += struct.pack("<4q", 0, packed.stride(0), 0, pitch)
    arguments += divider(1) + divider(lines // 2) + divider(2) + struct.pack("<3i", lines, length, elements_fast)
    name = {1: "CHAR", 2: "BFLOAT16", 4: "FLOAT"}[packed.element_size()]
    ptx = to_ptx(source_of("common/gpu_tile.clh", "common/divider.clh", "common/pack_lines.cl"), f"-DT_{name}")
    groups = 2 * math.ceil(lines / tile) * math.ceil(length / tile)
    machine = Machine(ptx, "pack_lines", groups, 256, **ORDERS[0])
    at, to = place(machine, given), place(machine, packed)
    machine.launch(at, to, arguments)
    packed[..., :length] = x
    assert torch.equal(fetch(machine, to, packed), packed)


# As primitives/common/epilogue.cpp writes it, of rows that make bytes of sums of int32, and 16 bits of those of float8.
OTHER_TYPE = """
#define EPILOGUE
#define EPILOGUE_PARAMETERS , global const float* of_column
#define EPILOGUE_ARGUMENTS , of_column
#define EPILOGUE_NUMBER float
#ifdef T_INT
#define EPILOGUE_T char
#define EPILOGUE_BYTES 1
#define EPILOGUE_STORED(v) ((char)(int)(v))
#else
#define EPILOGUE_T ushort
#define EPILOGUE_BYTES 2
#define EPILOGUE_STORED(v) dlb_to_bf16((v))
#endif
typedef struct { float factor; } EpilogueExtras;
static inline EpilogueExtras dlb_epilogue_extras(long at, int row, int column EPILOGUE_PARAMETERS) {
  EpilogueExtras extras = {of_column[column]};
  return extras;
}
static inline float dlb_epilogue_of(float v, EpilogueExtras extras, bool exists, long at EPILOGUE_PARAMETERS) {
  return v * extras.factor;
}
static inline float dlb_epilogue(float v, long at, int row, int column EPILOGUE_PARAMETERS) {
  return dlb_epilogue_of(v, dlb_epilogue_extras(at, row, column EPILOGUE_ARGUMENTS), true, at EPILOGUE_ARGUMENTS);
}
"""
BYTES = {
    torch.int8: "CHAR", torch.uint8: "UCHAR", torch.float8_e4m3fn: "E4M3", torch.float8_e5m2: "E5M2",
}  # fmt: skip


RESULTS = ["pairs", "units of another type", "another type, odd width", "columns and an addend", "parts", "one column"]
PRODUCTS_OF_8_BITS = [
    *((left, torch.int8, results) for left, results in zip([torch.int8, torch.uint8] * 3, RESULTS, strict=True)),
    *((torch.float8_e4m3fn, torch.float8_e5m2, results) for results in RESULTS),
    (torch.int8, torch.uint8, "pairs"),
    (torch.uint8, torch.uint8, "pairs"),
    (torch.float8_e5m2, torch.float8_e4m3fn, "pairs"),
]


@pytest.mark.parametrize(("left", "right", "results"), PRODUCTS_OF_8_BITS)
@pytest.mark.parametrize("order", [ORDERS[0], pytest.param(ORDERS[1], marks=pytest.mark.slow)])
def test_products_of_8_bits(left, right, order, results):
    m, n, k, splits = 136, 192, 400, 2 if results == "parts" else 1
    floats = left.is_floating_point
    a, b = (
        (torch.randn(size) if floats else torch.randint(torch.iinfo(t).min, torch.iinfo(t).max + 1, size)).to(t)
        for size, t in (((m, k), left), ((n, k), right))
    )
    kind, other = torch.float32 if floats else torch.int32, "another type" in results
    options = ["-DT_FLOAT" if floats else "-DT_INT", f"-DA_{BYTES[left]}", f"-DB_{BYTES[right]}"]
    source = OTHER_TYPE * other + source_of(*COMMON, "common/wgmma_loop.clh", "gemm/gpu_wgmma.cl")
    ptx = to_ptx(source, "-DTILE_N=128", "-DSPLIT=0", "-DA_ALONG_ROWS=0", "-DB_ALONG_ROWS=0", *options)
    machine = Machine(ptx, "gemm_gpu_wgmma", groups=2, items=288, **order)
    width = {"another type, odd width": n - 1, "one column": 1}.get(results, n)
    stored = (torch.bfloat16 if floats else torch.int8) if other else kind
    result, sums = torch.zeros(m, width, dtype=stored), torch.zeros(splits, m, width, dtype=kind)
    columns = results == "columns and an addend"
    added = torch.randint(-1000, 1000, (m, width)).to(kind)
    a_at, b_at, c, d = (place(machine, t) for t in (a, b, result, added))
    workspace, partial = machine.allocate(np.zeros(4096, np.uint8)), place(machine, sums)
    c_strides, beta = ((1, m), 3) if columns else ((width, 1), 0)
    units = results in ("pairs", "units of another type")
    arguments = product_arguments([a, b], (partial - workspace) // 4, c_strides, (m, width, k), splits, units)
    number = float if floats else int
    expected = ((2 if splits == 1 else 1) * (a.double() @ b.double().T))[:, :width] + beta * added.double()
    factors = torch.rand(width) * (1 if floats else 100 / expected.abs().max().item())
    extras = [place(machine, factors)] if other else []
    machine.launch(a_at, b_at, c, d, workspace, number(2), number(beta), arguments, *extras)
    if splits > 1:
        found = fetch(machine, partial, sums).sum(0)
    else:
        found = fetch(machine, c, result)
        found = found.reshape(width, m).T if columns else found
    if other:
        expected = (expected.float() * factors).to(stored) if floats else (expected.float() * factors).trunc()
    if floats:
        assert relative_error(found, expected) < (4e-3 if other else 5e-4)
    else:
        assert torch.equal(found.double(), expected.double())


# A convolution of integers of 8 bits: two images of 3 channels, whose lines have 16, and a tile's box is one image.
CHANNELS, FILTERS, SIZE, OUT, TAPS, STRIDE, PAD = 3, 70, (9, 10), (5, 5), (3, 3), 2, 1


def convolution_arguments(rows: bool, splits: int, partial: int) -> bytes:
    """ConvWgmma; the results' strides are those of channels that lie together where pixels are rows."""
    (h, w), (out_h, out_w), taps = SIZE, OUT, TAPS[0] * TAPS[1]
    pixels = out_h * out_w
    arguments = struct.pack("<12q", 0, 0, 0, 0, 16, 16 * w, 16 * w * h, 16 * w * h, 16, 16 * taps, 16, 16)
    arguments += struct.pack("<3q", partial, 2 * FILTERS * pixels, 0)
    for size, out, tap in ((w, out_w, TAPS[1]), (h, out_h, TAPS[0]), (1, 1, 1)):
        step, pad = (STRIDE, PAD) if size > 1 else (1, 0)
        arguments += struct.pack("<8i", size, out, step, pad, 1, out, step, 1)
        arguments += divider(tap) + divider(1) + divider(1) + bytes(4)
    channel_tiles = math.ceil(FILTERS / (64 if rows else 128))
    arguments += struct.pack("<4i", 2, 1, CHANNELS, FILTERS)
    arguments += divider(2) + divider(1) + divider(1) + divider(channel_tiles) + divider(1)
    arguments += struct.pack("<5i", 0, splits, math.ceil(taps / splits), 0, splits == 1)
    pixel, channel = (FILTERS, 1) if rows else (1, pixels)
    places = FILTERS * pixels, pixel, pixel * out_w, pixel * pixels, channel, 0, FILTERS * channel
    return arguments + struct.pack("<8i2f", *places, 1, -math.inf, math.inf)


@pytest.mark.parametrize(
    ("rows", "splits"),
    [(True, 2), (False, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((True, 1), (False, 2)))],
)
@pytest.mark.parametrize("order", [ORDERS[0], pytest.param(ORDERS[1], marks=pytest.mark.slow)])
def test_convolutions_of_8_bits(rows, splits, order):
    """Bytes of sums with a factor for each channel, stored by the kernel itself or by what adds the parts."""
    x = torch.randint(0, 256, (2, *SIZE, 16), dtype=torch.uint8)
    w = torch.randint(-128, 128, (FILTERS, *TAPS, 16), dtype=torch.int8)
    bias = torch.randint(-1000, 1000, (FILTERS,), dtype=torch.int32)
    image, weight = (t[..., :CHANNELS].permute(0, 3, 1, 2).double() for t in (x, w))
    sums = torch.nn.functional.conv2d(image, weight, bias.double(), STRIDE, PAD)
    factors = torch.rand(FILTERS) * (100 / sums.abs().max().item())
    names = ["-DA_UCHAR", "-DB_CHAR"] if rows else ["-DA_CHAR", "-DB_UCHAR"]
    options = ["-DT_INT", *names, "-DTILE_N=64", f"-DFORM={1 - rows}", "-DSPLIT=0"]
    options += ["-DA_ALONG_ROWS=0", "-DB_ALONG_ROWS=0"]
    text = source_of(*COMMON, "common/wgmma_loop.clh", "conv/gpu_wgmma.cl", "common/split_reduce.cl")
    machine = Machine(to_ptx(OTHER_TYPE + text, *options), "conv_gpu_wgmma", groups=3, items=288, **order)
    (batch, channels), pixels = sums.shape[:2], OUT[0] * OUT[1]
    result = torch.full((batch * channels * pixels,), 77, dtype=torch.int8)
    parts = torch.full((splits, result.numel()), 77, dtype=torch.int32)
    x_at, w_at, out, bias_at, factors_at = (place(machine, t) for t in (x, w, result, bias, factors))
    workspace, partial = machine.allocate(np.zeros(4096, np.uint8)), place(machine, parts)
    offset = (partial - workspace) // 4
    arguments = convolution_arguments(rows, splits, offset)
    machine.launch(x_at, w_at, out, bias_at, workspace, arguments, factors_at)
    if splits > 1:
        of_channels = OTHER_TYPE if rows else OTHER_TYPE.replace("of_column[column]", "of_column[row]")
        second = Machine(to_ptx(of_channels + text, *options), "split_reduce", parts.shape[1] // 128 + 1, 128, **order)
        second.memory = machine.memory
        m, n = (pixels, channels) if rows else (channels, pixels)
        arguments = struct.pack("<9q", offset, 0, 0, m * n, n, 1, 0, int(not rows), int(rows))
        arguments += struct.pack("<4q2f", batch, m, n, splits, -math.inf, math.inf)
        second.launch(workspace, out, bias_at, 1, 1, arguments, factors_at)
        machine = second
    found = fetch(machine, out, result)
    found = found.reshape(batch, *OUT, channels).permute(0, 3, 1, 2) if rows else found.reshape(sums.shape)
    assert torch.equal(found, (sums.float() * factors[:, None, None]).to(torch.int8))


def test_sums_of_float8_leave_the_tensor_cores():
    """Of 14 bits alone what 16 stages add to a large first one would be lost."""
    k = 17 * 128
    a, b = torch.full((64, k), 1 / 16), torch.ones(64, k)
    a[:, :128] = 16
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    source = source_of(*COMMON, "common/wgmma_loop.clh", "gemm/gpu_wgmma.cl")
    majors = "-DA_ALONG_ROWS=0", "-DB_ALONG_ROWS=0"
    ptx = to_ptx(source, "-DTILE_N=64", "-DSPLIT=0", *majors, "-DT_FLOAT", "-DA_E4M3", "-DB_E4M3")
    machine = Machine(ptx, "gemm_gpu_wgmma", groups=1, items=288, **ORDERS[0])
    result = torch.zeros(64, 64)
    a_at, b_at, c = (place(machine, t) for t in (a, b, result))
    workspace = machine.allocate(np.zeros(4096, np.uint8))
    machine.launch(a_at, b_at, c, c, workspace, 1.0, 0.0, product_arguments([a, b], 0, (64, 1), (64, 64, k), 1, True))
    assert torch.equal(fetch(machine, c, result).double(), a.double() @ b.double().T)


def philox(key: int, counters: np.ndarray) -> np.ndarray:
    """csrc/kernels/common/philox.clh."""
    a, b = counters & 0xFFFFFFFF, counters >> 32
    c = d = np.zeros_like(counters)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = q >> 32 ^ b ^ k0, q & 0xFFFFFFFF, p >> 32 ^ d ^ k1, p & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([a, b, c, d], -1)


@dataclass
class Attention:
    """A problem, its operands [batch, length, heads, dim], and its results in float64."""

    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    queries: int = 130
    keys: int = 140
    dim: int = 64
    causal: bool = False
    bias: torch.dtype | None = None
    keep: float = 1.0
    scale: float = 0.125
    dtype: torch.dtype = torch.bfloat16
    results: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        sizes = {"q": (self.queries, self.heads), "k": (self.keys, self.kv_heads), "v": (self.keys, self.kv_heads)}
        self.inputs = {n: torch.randn(self.batch, *size, self.dim).to(self.dtype) for n, size in sizes.items()}
        self.grad = torch.randn(self.inputs["q"].shape).to(self.dtype)
        self.mask = torch.randn(self.heads, self.queries, self.keys)
        if self.bias:
            self.mask[:, 3], self.mask[:, :, 5] = -math.inf, -math.inf  # a row without keys
            self.mask = self.mask.to(self.bias)
        self._solve()

    def _solve(self) -> None:
        q, k, v = (t.double().transpose(1, 2).requires_grad_() for t in self.inputs.values())
        group = self.heads // self.kv_heads
        x = q @ k.repeat_interleave(group, 1).mT * self.scale
        if self.bias:
            x = x + self.mask.double()
        if self.causal:
            x = x.masked_fill(~torch.ones(self.queries, self.keys, dtype=torch.bool).tril(), -math.inf)
        dead = (x == -math.inf).all(-1, keepdim=True)
        probabilities = x.masked_fill(dead, 0).softmax(-1) * ~dead
        out = (probabilities * self._factors()) @ v.repeat_interleave(group, 1)
        grad = self.grad.double().transpose(1, 2)
        names = {"x": x, "grad_q": q, "grad_k": k, "grad_v": v}
        gradients = torch.autograd.grad(out, list(names.values()), grad)
        self.results = dict(zip(names, gradients, strict=True))
        self.results |= {"out": out.detach(), "delta": (out * grad).sum(-1).detach()}
        self.results["lse"] = x.detach().logsumexp(-1).masked_fill(dead[..., 0], math.inf)

    def _factors(self) -> torch.Tensor | float:
        if self.keep == 1:
            return 1.0
        rows, draws = self.batch * self.heads * self.queries, math.ceil(self.keys / 4)
        counters = np.arange(rows * draws, dtype=np.uint64) + np.uint64(COUNTER)
        numbers = (philox(SEED, counters) >> 8).astype(np.float32) * np.float32(2.0**-24)
        kept = torch.from_numpy(numbers < np.float32(self.keep)).reshape(rows, -1)[:, : self.keys]
        return kept.reshape(self.batch, self.heads, self.queries, self.keys) / self.keep

    def options(self, **macros: int) -> list[str]:
        macros = {"DIM": math.ceil(self.dim / 64) * 64, "BIAS": bool(self.bias), "DROPOUT": self.keep < 1, **macros}
        return [TYPE[self.dtype], *(f"-D{name}={int(value)}" for name, value in macros.items())]

    def arguments(self, has_scores: bool = False) -> bytes:
        """AttentionParams, of tensors without offsets."""

        def view(heads: int, length: int) -> list[int]:
            strides = [length * heads * self.dim, self.dim, heads * self.dim]
            return [0, *(0 if n == 1 else s for n, s in zip((self.batch, heads, length), strides, strict=True))]

        q, kv = view(self.heads, self.queries), view(self.kv_heads, self.keys)
        bias = [0, 0, self.queries * self.keys, self.keys]
        kind = 0 if self.bias is None else 2 if self.bias == torch.float32 else 1
        sizes = self.heads, self.heads // self.kv_heads, self.queries, self.keys, self.dim
        return struct.pack(
            "<36q2Q8i3f3i",
            *(*q, *kv, *kv, *q, *bias, *q, *kv, *kv, 1, 0, 0, 0, SEED, COUNTER, *sizes, self.causal, kind, has_scores),
            *(self.scale, self.keep, 1 / self.keep, 0, 0, 1),
        )

    def wgmma_arguments(self) -> bytes:
        """AttentionWgmma."""
        return struct.pack("<q2i", 0, self.batch, 2)

    def place(self, machine: Machine) -> list[int]:
        return [place(machine, t) for t in (*self.inputs.values(), self.mask)]

    def check(self, machine: Machine, **addresses: int) -> None:
        for name, address in addresses.items():
            like = self.inputs["k" if name in ("grad_k", "grad_v") else "q"]
            got = fetch(machine, address, like).transpose(1, 2)
            assert relative_error(got, self.results[name]) < TOLERANCE[self.dtype], name


def empty(machine: Machine, like: torch.Tensor) -> int:
    return place(machine, torch.full_like(like, math.nan))


def forward(problem: Attention, ptx: str, order: dict[str, bool]) -> None:
    machine = Machine(ptx, "attention_gpu_wgmma", groups=2, items=384, **order)
    operands = problem.place(machine)
    want = problem.results["lse"]
    out, lse = empty(machine, problem.inputs["q"]), empty(machine, torch.empty(*want.shape, 2))
    workspace = machine.allocate(np.zeros(4096, np.uint8))
    machine.launch(*operands, out, lse, problem.arguments(), workspace, problem.wgmma_arguments())
    problem.check(machine, out=out)
    got = fetch(machine, lse, torch.empty(*want.shape, 2)).double().sum(-1)
    assert torch.equal(got.isinf(), want.isinf())
    finite = want.isfinite()
    assert (got - want)[finite].abs().max() < 1e-5


def backward(problem: Attention, ptx: str, order: dict[str, bool]) -> None:
    lse = problem.results["lse"]
    rounded = torch.stack([lse.float(), (lse - lse.float()).nan_to_num(0).float()], -1)
    known = [rounded, problem.results["delta"].float()]
    has_scores = problem.bias is not None
    scores_like = torch.empty(*lse.shape, problem.keys)
    for kernel, results in (("dq", ("grad_q",)), ("dkv", ("grad_k", "grad_v"))):
        machine = Machine(ptx, f"attention_gpu_wgmma_{kernel}", groups=2, items=384, **order)
        operands = [*problem.place(machine), place(machine, problem.grad), *(place(machine, t) for t in known)]
        addresses = {name: empty(machine, problem.inputs["q" if name == "grad_q" else "k"]) for name in results}
        scores = [empty(machine, scores_like)] if kernel == "dq" else []
        workspace = machine.allocate(np.zeros(4096, np.uint8))
        arguments = problem.arguments(has_scores)
        machine.launch(*operands, *addresses.values(), *scores, arguments, workspace, problem.wgmma_arguments())
        problem.check(machine, **addresses)
        if kernel == "dq" and has_scores:
            assert (
                relative_error(fetch(machine, scores[0], scores_like), problem.results["x"]) < TOLERANCE[problem.dtype]
            )


def forward_ptx(problem: Attention, step: int, overlap: int, text: str | None = None) -> str:
    text = text or source_of(*COMMON, "attention/gpu_wgmma.cl")
    return to_ptx(text, *problem.options(STEP=step, STAGES=2, OVERLAP=overlap))


def cases() -> Iterator[tuple[Attention, int, int]]:
    yield Attention(heads=4, kv_heads=2, queries=140, keys=70, causal=True), 64, 1
    yield Attention(queries=60, keys=300, dim=128, scale=-0.1), 128, 1
    yield Attention(heads=2, batch=2, queries=20, keys=130, dim=40, bias=torch.float16, dtype=torch.float16), 128, 0
    yield Attention(queries=70, keys=75, bias=torch.float32, causal=True, keep=0.7), 64, 0


# The interpreter takes seconds for each case, so only the last one is not a slow test.
*SLOW_CASES, QUICK_CASE = cases()
ATTENTION = [*(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES), QUICK_CASE]


@pytest.mark.parametrize(("problem", "step", "overlap"), ATTENTION)
def test_attention(problem, step, overlap):
    ptx = forward_ptx(problem, step, overlap)
    for order in ORDERS:
        forward(problem, ptx, order)


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(Attention(heads=2, queries=70, keys=200, causal=True), marks=pytest.mark.slow),  # keys unseen
        pytest.param(Attention(queries=140, keys=100, dim=104, dtype=torch.float16, scale=0.2), marks=pytest.mark.slow),
        Attention(queries=20, keys=70, bias=torch.bfloat16, causal=True, keep=0.7),
    ],
)
def test_gradients(problem):
    ptx = to_ptx(source_of(*COMMON, "attention/gpu_wgmma_backward.cl"), *problem.options(STEP=64, STAGES=2))
    for order in ORDERS:
        backward(problem, ptx, order)


FAULTS = {
    "never gives values back": ("arrive_if(elected, base + VALUES_EMPTY + 8 * before.stage);", ""),
    "keeps the queries": ("arrive_if(elected && k0 + STEP >= end &&", "arrive_if(0 &&"),
    "keeps the turn": ("give_turn(group);\n    wait_products(PROD", "wait_products(PROD"),
    "does not wait for products": ("wait_products(0);\n    settle_sums(sums);", "settle_sums(sums);"),
    "gives keys back too early": (
        "give_turn(group);\n    wait_products(PRODUCTS_UNDER_WAY);",
        "arrive_if(elected, base + KEYS_EMPTY + 8 * t->stage); give_turn(group); wait_products(PRODUCTS_UNDER_WAY);",
    ),
    "does not wait for values": ("wait_for(base + VALUES_FULL + 8 * t->stage, t->parity);", ""),
    "another lane's column": ("wgmma_column(item, 0);", "wgmma_column(item + 1, 0);"),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(FAULTS))
def test_faults_are_found(fault):
    problem = Attention(heads=2, queries=130, keys=300, causal=True)
    old, new = FAULTS[fault]
    text = source_of(*COMMON, "attention/gpu_wgmma.cl")
    assert old in text
    ptx = forward_ptx(problem, 64, 1, text.replace(old, new))

    def run() -> None:
        for order in ORDERS:
            forward(problem, ptx, order)

    with pytest.raises((Hang, AssertionError)):
        run()
