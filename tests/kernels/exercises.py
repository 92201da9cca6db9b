"""Calls that run every hand-written kernel once, on tiny tensors: for drivers that check each access and take a
thousandth of a CPU's speed (scripts/oclgrind.sh), and to see what every kernel's source looks like.

EXERCISES names calls by the file of csrc/kernels whose kernels they are to run. Each runs on devices of both classes,
for a file often has a kernel for each; solvers that the device does not have are passed over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

import dlbackend
from dlbackend import _C

sys.path.insert(0, str(Path(__file__).parents[1] / "nets"))
import tv_shim  # noqa: F401  isort: skip  (before torchvision)
from torchvision import ops as vision  # isort: skip

KERNELS = Path(__file__).parents[2] / "csrc" / "kernels"
Run = Callable[[], object]  # may return the names of kernels that no profile shows


def rand(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size).to(dtype).to("ocl")


def ints(high: int, *size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(high, size, dtype=dtype).to("ocl")


def both_ways(fn: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]], *inputs: torch.Tensor) -> None:
    """Forward, and backward with respect to the inputs of floating point."""
    inputs = tuple(t.requires_grad_(t.is_floating_point()) for t in inputs)
    result = fn(*inputs)
    result = result[0] if isinstance(result, tuple) else result
    result.backward(torch.ones_like(result))


def with_solver(solver: str, run: Run, *ops: str, beside: str = "") -> Run:
    """`run` with this solver of these ops forced, for each op that has it for the problem; and what `beside` forces."""

    def forced() -> None:
        ran = 0
        for op in ops:
            if solver not in dlbackend.solvers.names(op):
                continue
            _C.force_solver(",".join(filter(None, (f"{op}:{solver}", beside))))
            try:
                run()
                ran += 1
            except RuntimeError as error:
                if "is not applicable" not in str(error):
                    raise
            finally:
                _C.force_solver("")
        if not ran:
            raise NotHere(f"no problem of {', '.join(ops)} for {solver} here")

    return forced


class NotHere(Exception):
    """The device has no kernel for the exercise."""


# --- Products and convolutions ---------------------------------------------------------------------------------------


def products(dtype: torch.dtype = torch.float32) -> list[Run]:
    """Odd sizes with a bias, aligned ones, both orders in memory."""
    return [
        lambda: torch.baddbmm(rand(21, dtype=dtype), rand(2, 9, 19, dtype=dtype), rand(2, 19, 21, dtype=dtype)),
        lambda: torch.bmm(rand(1, 32, 16, dtype=dtype), rand(1, 16, 32, dtype=dtype)),
        lambda: torch.bmm(rand(1, 13, 17, dtype=dtype).mT, rand(1, 7, 13, dtype=dtype).mT),
    ]


VECTORS: list[Run] = [
    lambda: torch.mv(rand(3, 5000), rand(5000)),
    lambda: torch.mv(rand(70, 37).mT, rand(70)),
    lambda: torch.mm(rand(2, 700), rand(700, 37)),
    lambda: torch.mm(rand(2, 700), rand(37, 700).mT),
]


def of_groups() -> None:
    """Weights of 4 bits beside a matrix of few rows."""
    pairs = (rand(21, 48) * 255).to(torch.uint8)
    torch.ops.dlbackend.group_product_rows("y0 = x0", rand(3, 96), pairs, 32, rand(3, 21, 2), [])


def of_integers() -> None:
    """Sums of products of integers of 8 bits, of both orders in memory, requantised."""
    a, b = ((rand(*size) * 255).to(torch.uint8) for size in ((9, 37), (37, 21)))
    rows = "s = copy.f32(x0); v = mul.f32(s, x1); y0 = copy.i8(v)"
    torch.ops.dlbackend.product_rows(rows, a, b.char(), None, 0, 1, [rand(21)])
    torch._int_mm(rand(37, 70).mT.char(), rand(21, 37).char().mT)


def gemm(solver: str, runs: list[Run] | None = None) -> list[Run]:
    return [with_solver(solver, run, "gemm") for run in runs or products()]


def convolution(
    c: int, k: int, size: int, f: int, groups: int = 1, stride: int = 1, padding: int = 1, dtype=torch.float32
) -> Callable[[str], None]:
    """Computes one direction, named by its op."""

    def run(op: str) -> None:
        x, w = rand(1, c, size, size + 1, dtype=dtype), rand(k, c // groups, f, f, dtype=dtype)
        if op == "conv_fwd":
            F.conv2d(x, w, rand(k, dtype=dtype), stride, padding, groups=groups)
            return
        height, width = ((n + 2 * padding - f) // stride + 1 for n in x.shape[2:])
        mask = op == "conv_bwd_data", op == "conv_bwd_weight", False
        torch.ops.aten.convolution_backward(
            rand(1, k, height, width, dtype=dtype), x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0],
            groups, mask,
        )  # fmt: skip

    return run


def convolution_kept() -> None:
    """Convolutions with constant weights: what a solver makes of those is kept with them."""
    sizes = [1, 1], [1, 1], [1, 1]
    torch.ops.dlbackend.convolution_bounded(
        rand(1, 20, 6, 6), rand(40, 20, 3, 3), None, *sizes, 1, 0.0, 6.0, True
    )  # fmt: skip


CONV_OPS = ("conv_fwd", "conv_bwd_data", "conv_bwd_weight")


def conv(solver: str, *runs: Callable[[str], None], ops: tuple[str, ...] = CONV_OPS) -> list[Run]:
    return [with_solver(solver, partial(run, op), op) for run in runs for op in ops]


SMALL = convolution(5, 7, 6, 3)
STRIDED = convolution(3, 5, 9, 3, stride=2)
POINT = convolution(9, 6, 4, 1, padding=0)
GROUPED = convolution(6, 9, 5, 3, groups=3)
DEPTHWISE = convolution(5, 5, 7, 3, groups=5)

# --- Ops with solvers that rows share --------------------------------------------------------------------------------


def rows_and_columns(fn: Callable[..., torch.Tensor], *, rows: int = 5, n: int = 37) -> Iterator[Run]:
    yield lambda: both_ways(lambda x: fn(x, 1), rand(rows, n))
    yield lambda: both_ways(lambda x: fn(x, 0), rand(n, rows))


def softmax(solver: str) -> list[Run]:
    runs = [*rows_and_columns(torch.softmax), *rows_and_columns(torch.log_softmax)]
    return [with_solver(solver, run, "softmax", "softmax_bwd") for run in runs]


def attend(
    dim: int,
    queries: int = 9,
    dropout: float = 0,
    causal: bool = False,
    biased: bool = False,
    groups: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Callable[[bool], None]:
    """Attention of two heads to a group, one where there is a bias, whose gradient is wanted too."""

    def run(backward: bool) -> None:
        sizes = ((groups if biased else 2 * groups, queries), (groups, 21), (groups, 21))
        heads = [rand(1, n, length, dim, dtype=dtype) for n, length in sizes]
        bias = [rand(queries, 21, dtype=dtype)] if biased else []

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, b, dropout, causal, enable_gqa=True)

        if backward:
            both_ways(call, *heads, *bias)
        else:
            call(*heads, *bias)

    return run


# Every head size up to 32 is one program.
ATTENTION = [attend(20, causal=True, dropout=0.5), attend(18, biased=True)]
ATTENTION_MMA = [
    attend(20, causal=True, dropout=0.5, dtype=torch.float16),
    attend(18, dtype=torch.float16, biased=True),
    attend(20, causal=True, dropout=0.5),
    attend(18, biased=True),
]


def attention(solver: str, runs: list[Callable[[bool], None]] = ATTENTION) -> list[Run]:
    return [with_solver(solver, partial(run, False), "attention") for run in runs]


def attention_backward(solver: str, runs: list[Callable[[bool], None]] = ATTENTION) -> list[Run]:
    """The gradients of what the reference has computed."""
    return [with_solver(solver, partial(run, True), "attention_bwd", beside="attention:reference") for run in runs]


DECODED = [attend(20, 2, causal=True), attend(16, 2, biased=True)]


def batch_norm(*size: int, last: bool = False, training: bool = True) -> Run:
    def run() -> None:
        x = rand(*size)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        stats = torch.zeros(size[1], device="ocl"), torch.ones(size[1], device="ocl")
        both_ways(
            lambda x, w, b: F.batch_norm(x, *stats, w, b, training=training), x, rand(size[1]), rand(size[1])
        )  # fmt: skip

    return run


# Long ones are split among work-items, and their parts merged.
BATCH_NORMS = [batch_norm(3, 6, 5, 4), batch_norm(3, 6, 5, 4, last=True), batch_norm(9, 6), batch_norm(1, 1, 200, 200)]


def group_norm() -> None:
    both_ways(lambda x, w, b: F.group_norm(x, 2, w, b), rand(3, 6, 5, 4), rand(6), rand(6))


def layer_norm() -> None:
    both_ways(lambda x, w, b: F.layer_norm(x, (37,), w, b), rand(9, 37), rand(37), rand(37))


def norm(solver: str, *ops: str) -> list[Run]:
    return [with_solver(solver, run, op) for run in (*BATCH_NORMS[:3], group_norm, layer_norm) for op in ops]


def norm_pass(solver: str) -> list[Run]:
    return norm(solver, "norm_stats", "norm_sums")


POOLS: dict[str, list[Callable[[torch.Tensor], torch.Tensor]]] = {
    "max_pool": [
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, 2, 2),
        lambda x: F.adaptive_max_pool2d(x, (4, 3)),
    ],
    "avg_pool": [
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True),
        lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    ],
}


def pool(solver: str) -> list[Run]:
    def run(fn: Callable[[torch.Tensor], torch.Tensor], layout: torch.memory_format) -> None:
        both_ways(fn, rand(2, 5, 9, 8).contiguous(memory_format=layout))

    return [
        with_solver(solver, partial(run, fn, layout), op, f"{op}_bwd")
        for op, fns in POOLS.items()
        for fn in fns
        for layout in (torch.contiguous_format, torch.channels_last)
    ]


def transforms() -> None:
    torch.fft.fft(rand(3, 12, dtype=torch.complex64))
    torch.fft.ifft(rand(3, 12, dtype=torch.complex64), norm="ortho")
    torch.fft.irfft(torch.fft.rfft(rand(3, 30)))
    torch.fft.fft(rand(12, 3), dim=0)


def powers_of_two() -> None:
    """Within rows and across them; what fits one tile and what does not."""
    for n in (8, 16, 32, 64, 4096):
        torch.fft.fft(rand(3, n, dtype=torch.complex64))
    torch.fft.ifft(rand(64, 5, dtype=torch.complex64), dim=0)
    torch.fft.rfft(rand(2, 128))
    torch.fft.fft2(rand(1, 16, 8, dtype=torch.complex64))
    torch.fft.fft(rand(1, 8192, dtype=torch.complex64))


def fft(solver: str) -> Run:
    return with_solver(solver, transforms, "fft")


def split_transforms() -> None:
    """Real numbers in pairs and odd numbers of them."""
    for n in (192, 81):
        torch.fft.fft(rand(1, n, dtype=torch.complex64))
        torch.fft.irfft(torch.fft.rfft(rand(1, n)), n)


def long_prime() -> None:
    """A transform that does not fit a tile of a GPU."""
    torch.fft.fft(rand(1, 797, dtype=torch.complex128))


# --- Indices ---------------------------------------------------------------------------------------------------------


def indexing() -> None:
    """Writes go to places that differ: which of several values stays is nobody's to say."""
    x, index = rand(7, 5, 3), torch.randperm(7)[:6].to("ocl")
    x[index]
    x[index, :, ints(3, 6)]
    x.index_select(1, ints(5, 4))
    x.gather(2, ints(3, 7, 5, 4))
    x[index] = rand(6, 5, 3)
    x.index_fill_(0, index, 3.0)
    x.scatter_(0, torch.rand(7, 5, 3).argsort(0)[:4].to("ocl"), rand(4, 5, 3))
    x.half()[index]
    torch.take(x, ints(105, 9))


def accumulation() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        x = rand(7, 5, dtype=dtype)
        x.index_add_(0, ints(7, 11), rand(11, 5, dtype=dtype))
        x.scatter_reduce_(0, ints(7, 9, 5), rand(9, 5, dtype=dtype), "amax")
        x.scatter_add_(1, ints(5, 7, 9), rand(7, 9, dtype=dtype))
    x = rand(40)
    x.scatter_add_(0, ints(40, 9000), rand(9000))  # so many that each work-item adds to a copy
    torch.use_deterministic_algorithms(True)
    try:
        rand(7, 5).index_put_((ints(7, 11),), rand(11, 5), accumulate=True)
        rand(7, 5).index_add_(0, ints(7, 11), rand(11, 5))
    finally:
        torch.use_deterministic_algorithms(False)


def bags() -> None:
    offsets = torch.tensor([0, 3, 3, 5]).to("ocl")
    for mode in ("sum", "mean", "max"):
        for width in (5, 16, 40):
            table, places = rand(9, width), ints(9, 8)
            both_ways(lambda t, m=mode, p=places: F.embedding_bag(p, t, offsets, mode=m), table)
    F.embedding_bag(ints(9, 8), rand(9, 20, dtype=torch.float16), offsets, mode="sum")


def counting() -> None:
    torch.bincount(ints(9, 70))
    torch.bincount(ints(9, 70), rand(70))
    torch.bincount(ints(9000, 70))
    torch.histc(rand(70), 7)
    torch.histc(rand(70), 9000)


def unique() -> None:
    torch.unique(ints(9, 300), return_inverse=True, return_counts=True)
    torch.unique(ints(3, 40, 3), dim=0, return_inverse=True, return_counts=True)
    torch.unique_consecutive(ints(3, 40), return_inverse=True, return_counts=True)
    torch.mode(ints(5, 4, 30))


def sorting() -> None:
    torch.sort(rand(3, 40))
    torch.sort(rand(2, 300))
    torch.sort(ints(1000, 1, 20000, dtype=torch.int16), stable=True)
    torch.topk(rand(3, 300), 5)
    torch.topk(rand(2, 500), 100)
    torch.kthvalue(rand(3, 70), 9)
    torch.sort(rand(1, 700))


def sorting_long_rows() -> None:
    """Rows that are too long for one work-group of a GPU."""
    torch.sort(rand(1, 4200))
    torch.sort(ints(1000, 1, 4200, dtype=torch.int16), stable=True, descending=True)


def selection() -> None:
    x = rand(1, 4200)
    torch.topk(x, 9)
    torch.kthvalue(x, 70)
    torch.median(x, 1)
    torch.nanmedian(x, 1)


# --- Linear algebra --------------------------------------------------------------------------------------------------


def definite(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    a = torch.randn(2, n, n, dtype=dtype)
    return (a @ a.mH + n * torch.eye(n, dtype=dtype, device="cpu")).to("ocl")


def cholesky() -> None:
    torch.linalg.cholesky(definite(9))
    torch.linalg.cholesky(definite(40))


def lu() -> None:
    torch.linalg.solve(rand(2, 7, 7), rand(2, 7, 3))
    torch.linalg.det(rand(2, 7, 7))
    torch.lu_unpack(*torch.linalg.lu_factor(rand(2, 7, 7)))
    torch.linalg.solve(rand(1, 37, 37), rand(1, 37, 3))
    torch.linalg.inv(rand(2, 6, 6, dtype=torch.complex64))


def lu_in_blocks() -> None:
    torch.linalg.lu_factor(rand(1, 67, 67))
    torch.linalg.lu_factor(rand(1, 300, 18))


def small_matrices() -> None:
    for n in (7, 13):
        torch.linalg.solve(rand(11, n, n), rand(11, n, 3))
        torch.linalg.lu_factor(rand(3, n, 5))
        torch.cholesky_solve(rand(2, n, 2), definite(n).tril())


def triangular_in_blocks() -> None:
    a = definite(67)[:1].tril()
    torch.linalg.solve_triangular(a, rand(67, 3), upper=False)
    torch.linalg.solve_triangular(a.mT, rand(67, 35), upper=True)


def qr() -> None:
    torch.linalg.qr(rand(2, 9, 7))
    torch.linalg.qr(rand(1, 40, 35))


def ldl() -> None:
    factors, pivots = torch.linalg.ldl_factor(definite(9))
    torch.linalg.ldl_solve(factors, pivots, rand(2, 9, 3))


def triangular() -> None:
    for n in (5, 40):
        a = definite(n).tril()
        torch.linalg.solve_triangular(a, rand(2, n, 3), upper=False)
        torch.linalg.solve_triangular(a.mT, rand(2, n, 3), upper=True)
        torch.linalg.solve_triangular(a, rand(2, 3, n), upper=False, left=False)


def eigh() -> None:
    torch.linalg.eigh(definite(9))
    torch.linalg.eigvalsh(definite(20))


def near_diagonal(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Jacobi's method is done with it after few sweeps."""
    diagonal = torch.arange(1, columns + 1).diag().to(dtype)
    return F.pad(diagonal, (0, 0, 0, rows - columns)) + 1e-4 * torch.randn(rows, columns, dtype=dtype)


def eigh_in_blocks() -> None:
    """A matrix that does not fit a work-group's local memory."""
    a = near_diagonal(56, 56, torch.complex64)
    torch.linalg.eigh((a + a.mH)[None].to("ocl"))


def svd_in_blocks() -> None:
    torch.linalg.svd(near_diagonal(60, 48, torch.complex64)[None].to("ocl"), full_matrices=False)


def svd() -> None:
    torch.linalg.svd(rand(2, 9, 6))
    torch.linalg.svdvals(rand(1, 6, 11))


def svd_of_panels() -> None:
    torch.linalg.svd(rand(1, 40, 36))


# --- Images ----------------------------------------------------------------------------------------------------------


def rois() -> torch.Tensor:
    return torch.tensor([[0, 0.3, 1.2, 5.1, 6.4], [1, -2.0, 0.1, 9.6, 3.2], [0, 2.1, 2.2, 2.3, 2.4]]).to("ocl")


def roi() -> None:
    both_ways(lambda x: vision.roi_align(x, rois(), (2, 3), 0.5, 2), rand(2, 5, 7, 6))
    both_ways(lambda x: vision.roi_pool(x, rois(), (2, 3), 0.5), rand(2, 5, 7, 6))
    both_ways(lambda x: vision.ps_roi_align(x, rois(), (2, 3), 0.5, 2), rand(2, 6, 7, 6))
    both_ways(lambda x: vision.ps_roi_pool(x, rois(), (2, 3), 0.5), rand(2, 6, 7, 6))


def boxes(n: int = 70) -> tuple[torch.Tensor, torch.Tensor]:
    corner = torch.rand(n, 2) * 9
    return torch.cat([corner, corner + 3 * torch.rand(n, 2)], 1).to("ocl"), torch.rand(n).to("ocl")


def deformable() -> None:
    both_ways(
        lambda x, offset, w, mask: vision.deform_conv2d(x, offset, w, padding=1, mask=mask),
        rand(1, 4, 5, 6), rand(1, 18, 5, 6), rand(3, 4, 3, 3), rand(1, 9, 5, 6),
    )  # fmt: skip


def grids() -> None:
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "reflection"):
            both_ways(
                lambda x, g, m=mode, p=padding: F.grid_sample(x, g, m, p, align_corners=False),
                rand(2, 3, 5, 4), rand(2, 3, 6, 2),
            )  # fmt: skip
    both_ways(lambda x, g: F.grid_sample(x, g, align_corners=True), rand(1, 2, 3, 4, 3), rand(1, 2, 3, 2, 3))


def resizing() -> None:
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        both_ways(lambda x, m=mode: F.interpolate(x, (7, 4), mode=m), rand(2, 3, 5, 6))
    both_ways(lambda x: F.interpolate(x, 7, mode="linear"), rand(2, 3, 5))
    both_ways(lambda x: F.interpolate(x, (3, 4, 5), mode="trilinear"), rand(1, 2, 4, 3, 6))


def resampling() -> None:
    for size in ((3, 4), (11, 9), (5, 3)):
        for mode in ("bilinear", "bicubic"):
            both_ways(lambda x, s=size, m=mode: F.interpolate(x, s, mode=m, antialias=True), rand(2, 3, 8, 6))
    F.interpolate(ints(255, 1, 3, 8, 6, dtype=torch.uint8), (4, 9), mode="bilinear", antialias=True)


def folds() -> None:
    both_ways(lambda x: F.unfold(x, 3, padding=1, stride=2), rand(2, 3, 7, 6))
    both_ways(lambda x: F.fold(x, (7, 6), 3, padding=1, stride=2), rand(2, 27, 12))
    rand(2, 9, 5).unfold(1, 3, 2).sum().item()
    both_ways(lambda x: x.unfold(1, 3, 2), rand(2, 9, 5))
    both_ways(lambda x: x.unfold(1, 3, 1), rand(2, 9))


# --- Others ----------------------------------------------------------------------------------------------------------


def recurrent(kind: str, *sizes: int) -> Run:
    def run() -> None:
        both_ways(getattr(torch.nn, kind)(5, 6).to("ocl"), rand(*sizes, 5))

    return run


def distributions() -> None:
    for dtype in (torch.float32, torch.float16):
        x = torch.empty(70, device="ocl", dtype=dtype)
        for call in ("normal_", "log_normal_", "uniform_", "exponential_", "cauchy_", "bernoulli_"):
            getattr(x, call)()
        x.geometric_(0.3)
    torch.randint(9, (70,), device="ocl")
    torch.randperm(30, device="ocl")


def rejections() -> None:
    torch._standard_gamma(torch.rand(9).to("ocl") + 0.5)
    torch.poisson(5 * torch.rand(9).to("ocl"))
    torch.binomial(torch.full((9,), 20.0).to("ocl"), torch.rand(9).to("ocl"))


def masks() -> None:
    both_ways(lambda x: F.dropout(x, 0.3), rand(70))
    torch.bernoulli(torch.rand(70).to("ocl"))


def losses() -> None:
    target = ints(5, 6)
    for reduction in ("none", "mean", "sum"):
        both_ways(lambda x, r=reduction: F.nll_loss(x, target, rand(5), reduction=r), rand(6, 5))
    both_ways(lambda x: F.nll_loss(x, ints(5, 2, 3, 4)), rand(2, 5, 3, 4))


def ctc() -> None:
    lengths, targets = torch.tensor([7, 5]).to("ocl"), torch.tensor([3, 2]).to("ocl")
    both_ways(lambda x: F.ctc_loss(x.log_softmax(2), ints(4, 2, 3) + 1, lengths, targets), rand(7, 2, 6))


def foreach() -> None:
    lists = [rand(5), rand(70), rand(3, 4)]
    torch._foreach_norm(lists)
    torch._foreach_norm(lists, 1)
    torch._foreach_max([*lists])
    torch._foreach_add_(lists, 2.0)


def distances() -> None:
    for p in (1.0, 2.0, 3.0, float("inf")):
        both_ways(lambda a, b, p=p: torch.cdist(a, b, p, "donot_use_mm_for_euclid_dist"), rand(2, 5, 7), rand(2, 4, 7))
        both_ways(lambda a, p=p: F.pdist(a, p), rand(5, 7))


def sparse() -> None:
    a = (rand(9, 7) * (rand(9, 7) > 0)).to_sparse()
    torch.sparse.mm(a, rand(7, 70))
    torch.mv(a.to_sparse_csr(), rand(7))
    torch.triangular_solve(rand(7, 3), rand(7, 7).tril().to_sparse_csr(), upper=False)
    csr = a.to_sparse_csr()
    torch.sparse_csr_tensor(csr.crow_indices(), csr.col_indices(), csr.values(), csr.shape, check_invariants=True)


def ranges() -> None:
    torch.arange(1, 9, 0.5, device="ocl")
    torch.arange(70, device="ocl")
    torch.linspace(0, 1, 9, device="ocl")
    torch.logspace(0, 1, 9, device="ocl")


def padding() -> None:
    for mode in ("reflect", "replicate", "circular"):
        both_ways(lambda x, m=mode: F.pad(x, (2, 1, 1, 2), mode=m), rand(2, 3, 5, 4))
    both_ways(lambda x: F.pad(x, (1, 2)), rand(3, 4))


def segments() -> None:
    lengths = torch.tensor([3, 0, 4]).to("ocl")
    for kind in ("sum", "mean", "max", "min", "prod"):
        both_ways(lambda x, k=kind: torch.segment_reduce(x, k, lengths=lengths, axis=0), rand(7, 5))


def transposing() -> None:
    rand(67, 71).t().contiguous()
    rand(3, 67, 38, dtype=torch.float16).transpose(1, 2).contiguous()


def concatenation() -> None:
    torch.cat([rand(3, 5), rand(3, 2), rand(3, 70)], 1)
    torch.cat([rand(3, 5), rand(4, 5)])


def trials() -> set[str]:
    """Measuring compares every solver's result with the reference's, on a queue of its own. Names the kernels for that
    if results have been compared."""
    compared = True
    for op, run in (
        ("softmax", lambda: torch.softmax(rand(5, 29), 1)),
        ("max_pool_bwd", lambda: both_ways(POOLS["max_pool"][0], rand(1, 2, 5, 4))),
    ):
        _C.force_solver(f"{op}:reference")
        run()
        (problem,) = (p for p in dlbackend.solvers.problems() if p.startswith(f"{op}:"))
        _C.force_solver("")
        compared &= any(solution.error is not None for solution in dlbackend.solvers.tune(problem))
    return {"trial_fill", "trial_compare", "max_pool_any_indices"} if compared else set()


def membership() -> None:
    torch.isin(ints(9, 70), ints(9, 5))
    torch.isin(ints(900, 70), ints(900, 300))


def places() -> None:
    torch.searchsorted(rand(30).sort()[0], rand(9))
    torch.histogramdd(rand(9, 2), [3, 4])


EXERCISES: dict[str, Run | list[Run]] = {
    "cat/cat.cl": concatenation,
    "common/split_reduce.cl": [
        *gemm("gpu_gemv", VECTORS),
        *conv("gpu_depthwise", convolution(2, 2, 40, 9, groups=2, padding=4)),
    ],
    "common/transpose.cl": transposing,
    "conv/cpu_direct.cl": conv("cpu_direct", SMALL, STRIDED, convolution(20, 36, 5, 3)),
    "conv/cpu_implicit.cl": [
        *conv("cpu_implicit", SMALL, STRIDED, GROUPED, convolution(20, 40, 12, 3)),
        with_solver("cpu_implicit", convolution_kept, "conv_fwd"),
    ],
    "attention/combine.cl": attention("cpu_decode", DECODED) + attention("gpu_decode", DECODED),
    "attention/cpu_decode.cl": attention("cpu_decode", DECODED),
    "attention/cpu_flash.cl": attention("cpu_flash", [*ATTENTION, attend(64)]),
    "attention/cpu_flash_backward.cl": attention_backward("cpu_flash", [*ATTENTION, attend(64), attend(16, groups=8)]),
    "attention/delta.cl": attention_backward("reference", [attend(18)]),
    "attention/gpu_decode.cl": attention("gpu_decode", DECODED),
    "attention/gpu_flash.cl": attention("gpu_flash", [*ATTENTION, attend(64)]),
    "attention/gpu_flash_backward.cl": attention_backward("gpu_flash", [*ATTENTION, attend(64)]),
    "attention/gpu_mma.cl": attention("gpu_mma", ATTENTION_MMA),
    "attention/gpu_mma_backward.cl": attention_backward("gpu_mma", ATTENTION_MMA),
    "attention/reference.cl": attention("reference") + attention_backward("reference"),
    "conv/cpu_winograd.cl": conv("cpu_winograd", SMALL, convolution(20, 18, 9, 3)),
    "conv/fft.cl": conv("fft", convolution(2, 3, 8, 5, padding=2)),
    "conv/depthwise_windows.cl": conv("gpu_depthwise", DEPTHWISE),
    "conv/gpu_depthwise.cl": conv("gpu_depthwise", DEPTHWISE, convolution(4, 8, 6, 9, groups=4, padding=4)),
    "conv/gpu_implicit.cl": [
        *conv("gpu_implicit", SMALL, STRIDED, POINT, GROUPED),
        *conv("gpu_mma", convolution(8, 16, 6, 3, dtype=torch.float16)),
    ],
    "conv/gpu_plain.cl": [
        *conv("gpu_plain", SMALL, STRIDED, GROUPED),
        *conv("gpu_plain", convolution(2, 3, 24, 1, padding=0), ops=("conv_bwd_weight",)),
    ],
    "conv/gpu_winograd.cl": conv("gpu_winograd", SMALL, convolution(8, 8, 5, 3)),
    "conv/reference.cl": conv("reference", SMALL, STRIDED),
    "conv/unfold.cl": conv("unfold", SMALL, STRIDED),
    "distance/distance.cl": distances,
    "fft/edges.cl": [with_solver("four_step", split_transforms, "fft"), with_solver("bluestein", long_prime, "fft")],
    "fft/reference.cl": fft("reference"),
    "fft/registers.cl": powers_of_two,
    "fft/stockham.cl": [fft("stockham"), transforms],
    "foreach/foreach_reduce.cl": foreach,
    "gemm/cpu_blocked.cl": gemm("cpu_blocked", [*products(torch.float64), of_integers]),
    "gemm/cpu_packed.cl": [*gemm("cpu_packed", [*products(), of_groups]), *gemm("cpu_gemv", [*VECTORS, of_groups])],
    "gemm/cpu_small.cl": gemm("cpu_small"),
    "gemm/gpu_gemv.cl": gemm("gpu_gemv", [*VECTORS, of_groups]),
    "gemm/gpu_plain.cl": gemm("gpu_plain"),
    "gemm/gpu_tiled.cl": [
        *gemm("gpu_tiled", [*products(), of_groups, of_integers]),
        *gemm("gpu_mma", products(torch.float16)),
    ],
    "gemm/reference.cl": gemm("reference", [*products(), of_groups]),
    "index/access.cl": indexing,
    "index/accumulate.cl": accumulation,
    "index/bag.cl": bags,
    "index/compact.cl": lambda: torch.nonzero(rand(9, 40) > 0),
    "index/count.cl": counting,
    "index/histogram.cl": places,
    "index/isin.cl": membership,
    "index/search.cl": places,
    "index/unique.cl": unique,
    "linalg/bidiagonal.cl": [svd, svd_of_panels],
    "linalg/cholesky.cl": cholesky,
    "linalg/eigh.cl": eigh,
    "linalg/eigh_jacobi.cl": [eigh, eigh_in_blocks],
    "linalg/gpu_cholesky.cl": lambda: torch.linalg.cholesky(definite(67)[:1]),
    "linalg/cpu_lu.cl": lu_in_blocks,
    "linalg/cpu_triangular.cl": triangular_in_blocks,
    "linalg/gpu_lu.cl": lu_in_blocks,
    "linalg/gpu_lu_columns.cl": lu_in_blocks,
    "linalg/gpu_small.cl": small_matrices,
    "linalg/gpu_triangular.cl": triangular_in_blocks,
    "linalg/jacobi_apply.cl": eigh_in_blocks,
    "linalg/ldl.cl": ldl,
    "linalg/lu.cl": lu,
    "linalg/qr.cl": qr,
    "linalg/svd.cl": [svd, svd_of_panels],
    "linalg/svd_jacobi.cl": [svd, svd_in_blocks],
    "linalg/triangular.cl": triangular,
    "loss/ctc.cl": ctc,
    "loss/loss.cl": losses,
    "norm/apply_columns.cl": norm("columns", "norm_apply", "norm_apply_bwd"),
    "norm/apply_rows.cl": norm("rows", "norm_apply", "norm_apply_bwd"),
    "norm/batch_norm.cl": [*BATCH_NORMS, batch_norm(9, 6, training=False)],
    "norm/batch_norm_apply.cl": [*BATCH_NORMS, batch_norm(9, 6, training=False)],
    "norm/group_norm.cl": group_norm,
    "norm/layer_norm_reference.cl": norm("reference", "layer_norm", "layer_norm_bwd"),
    "norm/layer_norm_rows.cl": norm("rows", "layer_norm", "layer_norm_bwd"),
    "norm/layer_norm_rows_held.cl": norm("rows_held", "layer_norm", "layer_norm_bwd"),
    "norm/layer_norm_rows_once.cl": norm("rows_once", "layer_norm", "layer_norm_bwd"),
    "norm/layer_norm_weight_grad.cl": layer_norm,
    "norm/pass_columns.cl": norm_pass("columns"),
    "norm/pass_merge.cl": [with_solver("rows", BATCH_NORMS[3], op) for op in ("norm_stats", "norm_sums")],
    "norm/pass_reference.cl": norm_pass("reference"),
    "norm/pass_rows.cl": norm_pass("rows"),
    "norm/pass_rows_wide.cl": norm_pass("rows_wide"),
    "pad/pad.cl": padding,
    "pool/fractional.cl": lambda: F.fractional_max_pool2d(rand(2, 3, 9, 8), 2, 4),
    "pool/gather.cl": pool("gather"),
    "pool/lines.cl": pool("lines"),
    "pool/planes.cl": pool("planes"),
    "pool/reference.cl": [*pool("reference"), trials],
    "pool/windows.cl": pool("windows"),
    "random/mask.cl": masks,
    "random/random.cl": distributions,
    "random/rejection.cl": rejections,
    "range/range.cl": ranges,
    "range/triangle.cl": lambda: (torch.tril_indices(5, 4, device="ocl"), torch.triu_indices(4, 5, device="ocl")),
    "reduce/segment.cl": segments,
    "rnn/cpu_sequence.cl": [recurrent(kind, 3, 2) for kind in ("LSTM", "GRU", "RNN")],
    "rnn/rnn.cl": [recurrent("LSTMCell", 2), recurrent("GRUCell", 2)],
    "softmax/columns.cl": softmax("columns"),
    "softmax/columns_shared.cl": softmax("columns_shared"),
    "softmax/reference.cl": softmax("reference"),
    "softmax/rows.cl": softmax("rows"),
    "softmax/rows_held.cl": softmax("rows_held"),
    "softmax/rows_once.cl": softmax("rows_once"),
    "solver/trial.cl": trials,
    "sort/cpu_rows.cl": sorting,
    "sort/gpu_radix.cl": sorting_long_rows,
    "sort/gpu_rows.cl": sorting,
    "sort/gpu_select.cl": selection,
    "sparse/product.cl": sparse,
    "sparse/solve.cl": sparse,
    "sparse/validate.cl": sparse,
    "upsample/planes.cl": resizing,
    "upsample/resample.cl": resampling,
    "upsample/resample_table.cl": resampling,
    "upsample/upsample.cl": resizing,
    "vision/columns.cl": folds,
    "vision/deform.cl": deformable,
    "vision/deform_backward.cl": deformable,
    "vision/grid.cl": grids,
    "vision/grid_backward.cl": grids,
    "vision/nms.cl": lambda: vision.nms(*boxes(), 0.3),
    "vision/roi.cl": roi,
    "vision/roi_backward.cl": roi,
}

# Files for one class of devices alone that are not named for it: on the other, their exercises would take long in vain.
ONE_CLASS = {
    "fft/edges.cl": "gpu",
    "fft/registers.cl": "gpu",
    "linalg/bidiagonal.cl": "cpu",
    "linalg/eigh.cl": "cpu",
    "linalg/eigh_jacobi.cl": "gpu",
    "linalg/jacobi_apply.cl": "gpu",
    "linalg/svd.cl": "cpu",
    "linalg/svd_jacobi.cl": "gpu",
    "upsample/planes.cl": "gpu",
}

# Files that have no exercise, and why.
LEFT_OUT = {
    "conv/cpu_bf16.cl": "made of clang's built-in functions for x86-64",
    "conv/gpu_wgmma.cl": "made of PTX instructions of Hopper GPUs",
    "common/cpu_int8.cl": "made of clang's built-in functions for x86-64",
    "common/pack_lines.cl": "launched for gemm/gpu_wgmma.cl and conv/gpu_wgmma.cl only",
    "attention/gpu_wgmma.cl": "made of PTX instructions of Hopper GPUs: test_wgmma.py interprets it",
    "attention/gpu_wgmma_backward.cl": "made of PTX instructions of Hopper GPUs: test_wgmma.py interprets it",
    "gemm/gpu_wgmma.cl": "made of PTX instructions of Hopper GPUs",
    "gemm/cpu_bf16.cl": "made of clang's built-in functions for x86-64",
    "solver/rates.cl": "counts a device's operations in loops of seconds",
    "solver/rates_bf16.cl": "made of clang's built-in functions for x86-64",
    "solver/rates_mma.cl": "counts a device's operations in loops of seconds",
}
