"""Cases of single ops beyond the arithmetic of networks: indexing, sorting, decompositions, images, special functions.

Operands are made on the host, so that both devices get the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.case import Case, torchvision

Make = Callable[[], Sequence[Any]]
Row = tuple[str, Make, Callable[..., Any]]

MANY = 1_000_000
LONG = 1 << 24


def _cases(suite: str, rows: Sequence[Row], goal: float = 0.9, goal_cuda: float = 0.0) -> list[Case]:
    import torch

    def build(make: Make, f: Callable[..., Any]) -> Callable[[torch.device], Callable[[], Any]]:
        def on(device: torch.device) -> Callable[[], Any]:
            torch.manual_seed(0)
            operands = [x.to(device) for x in make()]
            return lambda: f(*operands)

        return on

    return [Case(name, suite, build(make, f), 1.0, "ms", goal, goal_cuda) for name, make, f in rows]


def index_cases() -> list[Case]:
    """Gathers, sums through indices, counts."""
    import torch
    import torch.nn.functional as F

    def bags(count: int, width: int) -> Make:
        return lambda: (
            torch.randint(100_000, (count,)),
            torch.randn(100_000, width),
            torch.arange(0, count, 10),
        )

    def into(cells: int) -> Make:
        return lambda: (torch.zeros(cells), torch.randint(cells, (MANY,)), torch.randn(MANY))

    def rows() -> Sequence[Any]:
        return torch.zeros(1000, 64), torch.randint(1000, (20_000,)), torch.randn(20_000, 64)

    def add_rows(x: Any, i: Any, s: Any) -> Any:
        return x.index_add_(0, i, s)

    def scatter_add(x: Any, i: Any, s: Any) -> Any:
        return x.scatter_add_(0, i, s)

    def put(x: Any, i: Any, s: Any) -> Any:
        return x.index_put_((i,), s, accumulate=True)

    def bag(mode: str) -> Callable[..., Any]:
        return lambda i, w, o: F.embedding_bag(i, w, o, mode=mode)

    sizes = [("10k", 10_000, 64), ("1M", MANY, 64), ("1M", MANY, 128)]
    return _cases(
        "index",
        [
            *((f"embedding_bag {m}, {n} of {w}", bags(c, w), bag(m)) for m in ("sum", "mean") for n, c, w in sizes),
            ("scatter_add 1M into 1,000", into(1000), scatter_add),
            ("scatter_add 1M into 1M", into(MANY), scatter_add),
            ("index_put(accumulate) 1M into 1,000", into(1000), put),
            ("index_put(accumulate) 1M into 1M", into(MANY), put),
            ("index_add 1M into 1,000", into(1000), lambda x, i, s: x.index_add_(0, i, s)),
            ("index_add 20k rows of 64", rows, add_rows),
            (
                "index_select 1M of a vector",
                lambda: (torch.randn(MANY), torch.randint(MANY, (MANY,))),
                lambda x, i: x.index_select(0, i),
            ),
            ("nonzero 16M", lambda: (torch.rand(LONG) < 0.5,), torch.nonzero),
            (
                "masked_select 16M",
                lambda: (torch.randn(LONG), torch.rand(LONG) < 0.5),
                torch.masked_select,
            ),
            ("bincount 1M", lambda: (torch.randint(1000, (MANY,)),), torch.bincount),
            ("histc 1M", lambda: (torch.randn(MANY),), lambda x: torch.histc(x, 100, -3, 3)),
        ],
    )


def sort_cases() -> list[Case]:
    """Ops that order or compare values."""
    import torch

    def numbers(high: int) -> Make:
        return lambda: (torch.randint(high, (MANY,)),)

    def sets() -> Sequence[Any]:
        return torch.randint(10_000_000, (MANY,)), torch.randint(10_000_000, (1000,))

    return _cases(
        "sort",
        [
            ("topk 1,000 of 1M", lambda: (torch.randn(MANY),), lambda x: x.topk(1000)),
            ("topk 10 of 1M", lambda: (torch.randn(MANY),), lambda x: x.topk(10)),
            ("topk 50 of 64 x 50k", lambda: (torch.randn(64, 50_000),), lambda x: x.topk(50)),
            ("sort 1M", lambda: (torch.randn(MANY),), torch.sort),
            ("sort 16M", lambda: (torch.randn(LONG),), torch.sort),
            ("sort 16M int64", lambda: (torch.randint(1 << 62, (LONG,)),), torch.sort),
            ("sort 4,096 x 4,096", lambda: (torch.randn(4096, 4096),), torch.sort),
            ("argsort 1M, stable", lambda: (torch.randn(MANY),), lambda x: torch.argsort(x, stable=True)),
            ("kthvalue 1M", lambda: (torch.randn(MANY),), lambda x: x.kthvalue(MANY // 3)),
            ("median 1M", lambda: (torch.randn(MANY),), torch.median),
            ("unique 1M of 1,000", numbers(1000), torch.unique),
            ("unique 1M of 10M", numbers(10_000_000), torch.unique),
            (
                "unique 1M of 1,000, inverse, counts",
                numbers(1000),
                lambda x: torch.unique(x, return_inverse=True, return_counts=True),
            ),
            ("unique_consecutive 1M of 3", numbers(3), torch.unique_consecutive),
            ("isin 1M of 1,000", sets, torch.isin),
            ("isin 1M of 10", lambda: (sets()[0], sets()[1][:10]), torch.isin),
        ],
    )


def decomposition_cases() -> list[Case]:
    """Factorizations, eigenvalues and singular values of single matrices and of batches."""
    import torch

    linalg = torch.linalg

    def matrix(*shape: int) -> Make:
        return lambda: (torch.randn(*shape),)

    def definite(*shape: int) -> Make:
        def make() -> Sequence[Any]:
            a = torch.randn(*shape)
            return (a @ a.mT + shape[-1] * torch.eye(shape[-1]),)

        return make

    def solve(a: Any) -> Any:
        return linalg.solve_ex(a, a[..., :1])

    spectral = [(f"{n}x{n}", (n, n)) for n in (256, 512)] + [("1,000 of 32x32", (1000, 32, 32))]
    direct = [("2048", (2048, 2048)), ("10,000 of 8x8", (10_000, 8, 8))]
    return _cases(
        "decomposition",
        [
            ("svdvals 256x256", matrix(256, 256), linalg.svdvals),
            ("svdvals 512x64", matrix(512, 64), linalg.svdvals),
            ("svd 1000x100", matrix(1000, 100), lambda a: linalg.svd(a, full_matrices=False)),
            *((f"svd {name}", matrix(*shape), linalg.svd) for name, shape in spectral),
            *((f"eigh {name}", definite(*shape), linalg.eigh) for name, shape in spectral),
            *((f"cholesky {name}", definite(*shape), linalg.cholesky_ex) for name, shape in direct),
            *((f"lu {name}", matrix(*shape), linalg.lu_factor_ex) for name, shape in direct),
            *((f"solve {name}, one side", matrix(*shape), solve) for name, shape in direct),
            ("det 10,000 of 8x8", matrix(10_000, 8, 8), linalg.det),
            ("solve 1024, one side", lambda: (torch.randn(1024, 1024), torch.randn(1024, 1)), linalg.solve_ex),
        ],
        0.5,
        0.5,
    )


def product_cases() -> list[Case]:
    """Products of other numbers than float32."""
    import torch

    floats = {torch.float64: "f64", torch.complex64: "c64", torch.complex128: "c128"}
    integers = {torch.int64: "i64", torch.int32: "i32"}

    def square(n: int, dtype: Any) -> Make:
        def make() -> Sequence[Any]:
            return [
                torch.randn(n, n, dtype=dtype) if dtype in floats else torch.randint(9, (n, n), dtype=dtype)
                for _ in range(2)
            ]

        return make

    rows = [
        (f"mm {name} {n}", square(n, dtype), torch.mm)
        for n in (256, 1000)
        for dtype, name in (floats | integers).items()
    ]
    return _cases("product", rows)


def vision_cases() -> list[Case]:
    """Resizing of bytes, sampling, boxes."""
    import torch
    import torch.nn.functional as F

    ops = torchvision().ops

    def image(dtype: Any, channels_last: bool, *shape: int) -> Any:
        x = torch.randint(256, shape).to(dtype)
        return x.contiguous(memory_format=torch.channels_last) if channels_last else x

    def bytes_(channels_last: bool) -> Make:
        return lambda: (image(torch.uint8, channels_last, 4, 3, 480, 640),)

    def resize(size: int, **how: Any) -> Callable[[Any], Any]:
        return lambda x: F.interpolate(x, (size, size), mode="bilinear", **how)

    def sampled(channels: int) -> Make:
        return lambda: (torch.randn(4, channels, 256, 256), torch.rand(4, 256, 256, 2) * 2 - 1)

    def boxes(count: int, size: float) -> Any:
        corner = torch.rand(count, 2) * size
        return torch.cat([corner, corner + 1 + torch.rand(count, 2) * size / 5], 1)

    def regions() -> Sequence[Any]:
        return (
            torch.randn(2, 256, 50, 50),
            torch.cat([torch.randint(2, (500, 1)).float(), boxes(500, 800)], 1),
        )

    layouts = [("channels-last", True), ("contiguous", False)]
    return _cases(
        "vision",
        [
            *(
                (f"resize bytes to {to}, antialias, {layout}", bytes_(last), resize(to, antialias=True))
                for layout, last in layouts
                for to in (224, 800)
            ),
            *((f"resize bytes to 224, {layout}", bytes_(last), resize(224)) for layout, last in layouts),
            *(
                (f"grid_sample, {c} channels", sampled(c), lambda x, g: F.grid_sample(x, g, align_corners=False))
                for c in (1, 3, 4)
            ),
            (
                "grid_sample nearest, 3 channels",
                sampled(3),
                lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=False),
            ),
            ("unfold 3x3 64x56x56", lambda: (torch.randn(4, 64, 56, 56),), lambda x: F.unfold(x, 3, padding=1)),
            (
                "nms 10,000",
                lambda: (boxes(10_000, 1000), torch.rand(10_000)),
                lambda b, s: ops.nms(b, s, 0.5),
            ),
            ("roi_align 500", regions, lambda x, r: ops.roi_align(x, r, 7, 1 / 16, 2)),
        ],
    )


def math_cases() -> list[Case]:
    """Functions of elements, a loss of sequences, small transforms."""
    import torch
    import torch.nn.functional as F

    def positive() -> Sequence[Any]:
        return (torch.rand(MANY) * 20 + 0.01,)

    def ctc() -> Sequence[Any]:
        return torch.randn(100, 16, 50).log_softmax(2), torch.randint(1, 50, (16, 30))

    def ctc_loss(x: Any, targets: Any) -> Any:
        return F.ctc_loss(x, targets, torch.full((16,), 100), torch.full((16,), 30))

    def signal(*shape: int) -> Make:
        return lambda: (torch.randn(*shape, dtype=torch.complex64),)

    return _cases(
        "math",
        [
            ("lgamma 1M", positive, torch.lgamma),
            ("lgamma 1M, both signs", lambda: (torch.randn(MANY) * 5,), torch.lgamma),
            ("remainder 1M", lambda: (torch.randn(MANY) * 10, torch.rand(MANY) + 0.5), torch.remainder),
            ("remainder 1M of a number", lambda: (torch.randn(MANY) * 10,), lambda x: x % 3.0),
            ("fmod 1M", lambda: (torch.randn(MANY) * 10, torch.rand(MANY) + 0.5), torch.fmod),
            ("ctc_loss 16 x 100", ctc, ctc_loss),
            ("fft 20000x16", signal(20_000, 16), torch.fft.fft),
            ("fft 64", signal(64), torch.fft.fft),
        ],
    )


def attention_cases() -> list[Case]:
    """scaled_dot_product_attention, forward and with its gradients: 4 x 8 heads of 64, 2 x 8 of 128, and one query."""
    import torch
    import torch.nn.functional as F

    def heads(queries: int, keys: int, dtype: Any, dim: int = 64) -> Make:
        return lambda: [torch.randn(256 // dim, 8, n, dim, dtype=dtype) for n in (queries, keys, keys)]

    def forward(causal: bool) -> Callable[..., Any]:
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def both(causal: bool) -> Callable[..., Any]:
        def step(*operands: Any) -> Any:
            with torch.enable_grad():
                q, k, v = (x.detach().requires_grad_() for x in operands)
                out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
                return torch.autograd.grad(out, (q, k, v), operands[0])

        return step

    rows: list[Row] = []
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        for n in (128, 512, 2048, 4096):
            for causal in (False, True):
                what = f"{n}{' causal' if causal else ''} {name}"
                rows.append((f"attention {what}", heads(n, n, dtype), forward(causal)))
                rows.append((f"attention and gradients {what}", heads(n, n, dtype), both(causal)))
        rows.append((f"attention 1 x 4096 {name}", heads(1, 4096, dtype), forward(False)))
    for n in (2048, 8192):
        for causal in (False, True):
            what = f"{n} heads of 128{' causal' if causal else ''} bf16"
            rows.append((f"attention {what}", heads(n, n, torch.bfloat16, 128), forward(causal)))
            rows.append((f"attention and gradients {what}", heads(n, n, torch.bfloat16, 128), both(causal)))
    return _cases("attention", rows, goal=1.0, goal_cuda=0.5)


def recurrent_cases() -> list[Case]:
    """Recurrent networks, forward and a training step: 16 x 64 x 128, hidden 256, two layers; and one sample."""
    import torch

    def case(kind: str, options: tuple[int, ...], sizes: tuple[int, ...], training: bool) -> Case:
        def on(device: torch.device) -> Callable[[], Any]:
            torch.manual_seed(0)
            module = getattr(torch.nn, kind)(*options, batch_first=True).to(device)
            x = torch.randn(*sizes).to(device)

            def step() -> Any:
                with torch.set_grad_enabled(training):
                    out = module(x)[0]
                    return torch.autograd.grad(out.sum(), tuple(module.parameters())) if training else out

            return step

        what = f"{kind} {'training step' if training else 'forward'} {'x'.join(map(str, sizes))}"
        return Case(what, "recurrent", on, 1.0, "ms", 0.9, 0.0)

    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((128, 256, 2), (16, 64, 128)),
        ((128, 128), (1, 100, 128)),
    ]
    kinds = ("LSTM", "GRU", "RNN")
    both = (False, True)
    return [case(kind, options, sizes, training) for options, sizes in shapes for kind in kinds for training in both]


def quantized_cases() -> list[Case]:
    """Products of 8 bits: integers, float8, and weights of bfloat16 activations."""
    import torch

    on_gpu = os.environ.get("DLB_BENCH_PEER") == "cuda"
    n = 4096 if on_gpu else 1024

    def integers() -> tuple[Any, Any]:
        return torch.randint(-128, 128, (n, n), dtype=torch.int8), torch.randint(-128, 128, (n, n), dtype=torch.int8)

    def columns() -> tuple[Any, Any]:
        a, b = integers()
        return a, b.t().contiguous().t()

    def floats() -> tuple[Any, ...]:
        a, b = (torch.randn(n, n).to(torch.float8_e4m3fn) for _ in range(2))
        return a, b.t(), torch.tensor(0.5), torch.tensor(0.25)

    def scaled(a: Any, b: Any, sa: Any, sb: Any) -> Any:
        return torch._scaled_mm(a, b, sa, sb, out_dtype=torch.bfloat16)

    def weights(rows: int) -> Make:
        return lambda: (
            torch.randn(rows, 4096).bfloat16(),
            torch.randint(-128, 128, (4096, 4096), dtype=torch.int8),
            torch.rand(4096).bfloat16(),
        )

    return _cases(
        "quantized",
        [
            (f"_int_mm {n}", integers, torch._int_mm),
            (f"_int_mm {n}, b by columns", columns, torch._int_mm),
            *([(f"_scaled_mm {n}, float8_e4m3fn", floats, scaled)] if on_gpu else []),  # PyTorch's CPU takes minutes
            ("_weight_int8pack_mm 1 x 4096 x 4096", weights(1), torch._weight_int8pack_mm),
            ("_weight_int8pack_mm 32 x 4096 x 4096", weights(32), torch._weight_int8pack_mm),
        ],
        goal_cuda=0.8,
    )


SUITES: dict[str, Callable[[], list[Case]]] = {
    "attention": attention_cases,
    "index": index_cases,
    "sort": sort_cases,
    "decomposition": decomposition_cases,
    "product": product_cases,
    "vision": vision_cases,
    "math": math_cases,
    "recurrent": recurrent_cases,
    "quantized": quantized_cases,
}
