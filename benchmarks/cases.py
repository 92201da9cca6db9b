"""The measured cases, by suite."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import op_cases
from benchmarks.case import Case, Step
from benchmarks.networks import NETS, PRECISIONS, gpt2, inference_step, language_step, training_step

MIB = 1 << 20


def _sized(small: int, large: int) -> int:
    """Elements: what fills a GPU takes too long on a CPU."""
    return large if os.environ.get("DLB_BENCH_PEER") == "cuda" else small


def _host_cases() -> list[Case]:
    import torch

    def add(device: torch.device) -> Step:
        a, b = torch.randn(16, device="cpu").to(device), torch.randn(16).to(device)
        return lambda: a + b

    def mul_inplace(device: torch.device) -> Step:
        a = torch.ones(16).to(device)
        return lambda: a.mul_(1.0)

    def total(device: torch.device) -> Step:
        a = torch.randn(16).to(device)
        return a.sum

    def matmul(device: torch.device) -> Step:
        a, b = torch.randn(8, 8).to(device), torch.randn(8, 8).to(device)
        return lambda: a @ b

    def item(device: torch.device) -> Step:
        a = torch.ones(()).to(device)
        return a.item

    def small_training(device: torch.device) -> Step:
        net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        x, y = torch.randn(32, 64).to(device), torch.randint(10, (32,)).to(device)

        @torch.enable_grad()
        def step() -> None:
            optimizer.zero_grad()
            torch.autograd.backward(torch.nn.functional.cross_entropy(net(x), y))
            optimizer.step()

        return step

    rows = [
        ("a + b, 16 elements", add),
        ("mul_, 16 elements", mul_inplace),
        ("sum, 16 elements", total),
        ("mm 8x8", matmul),
        ("item", item),
        ("MLP 64-128-10 training, batch 32", small_training),
    ]
    return [Case(n, "host", f, 1, "us", 0.0, 0.7, pace=300) for n, f in rows]


def _fft_cases() -> list[Case]:
    import torch

    def on(shape: tuple[int, ...], f: Callable[..., Any], dtype: Any) -> Callable[[torch.device], Step]:
        def build(device: torch.device) -> Step:
            x = torch.randn(shape, dtype=dtype).to(device)
            return lambda: f(x)

        return build

    rows = [
        ("fft2 1024x1024", (1024, 1024), torch.fft.fft2, torch.complex64),
        ("fft2 4096x4096", (4096, 4096), torch.fft.fft2, torch.complex64),
        ("rfft 64x1M", (64, 1 << 20), torch.fft.rfft, torch.float32),
        ("fft 1000x1000", (1000, 1000), torch.fft.fft, torch.complex64),
        ("fft 100x1009", (100, 1009), torch.fft.fft, torch.complex64),
    ]
    return [Case(name, "fft", on(shape, f, dtype), 1, "ms", 0.8) for name, shape, f, dtype in rows]


def _pointwise_cases() -> list[Case]:
    import torch

    n = _sized(1 << 24, 1 << 27)

    def pair(f: Callable[..., Any]) -> Callable[[torch.device], Step]:
        def build(device: torch.device) -> Step:
            a, b = torch.randn(n).to(device), torch.randn(n).to(device)
            out = torch.empty_like(a)
            return lambda: f(a, b, out)

        return build

    def bias(device: torch.device) -> Step:
        c, hw = 64, 56 * 56
        x = torch.randn(n // (c * hw), c, hw).to(device)
        b, out = torch.randn(c, 1).to(device), torch.empty_like(x)
        return lambda: torch.add(x, b, out=out)

    def cached(elements: int, f: Callable[..., Any]) -> Callable[[torch.device], Step]:
        def build(device: torch.device) -> Step:
            a, b = torch.randn(elements).to(device), torch.randn(elements).to(device)
            return lambda: f(a, b)

        return build

    in_cache = [
        Case(f"{name} f32 {size >> 10}K", "pointwise", cached(size, f), words * 4 * size, "GB/s", 0.9)
        for size in (1 << 16, 1 << 20, 1 << 22)
        for name, words, f in (
            ("relu_", 2, lambda a, b: a.relu_()),
            ("add_", 3, lambda a, b: a.add_(b, alpha=1e-9)),
            ("copy_", 2, lambda a, b: a.copy_(b)),
            ("normal_", 1, lambda a, b: a.normal_()),
        )
    ]
    size = n // (64 * 56 * 56) * 64 * 56 * 56
    return [
        *in_cache,
        Case("add f32", "pointwise", pair(lambda a, b, o: torch.add(a, b, out=o)), 12 * n, "GB/s", 0.9, 0.95),
        Case("relu f32", "pointwise", pair(lambda a, b, o: torch.relu_(a)), 8 * n, "GB/s", 0.9, 0.95),
        Case(
            "gelu f32", "pointwise", pair(lambda a, b, o: torch.ops.aten.gelu.out(a, out=o)), 8 * n, "GB/s", 0.9, 0.95
        ),
        Case("bias broadcast f32", "pointwise", bias, 8 * size, "GB/s", 0.9, 0.95),
        Case("mul_ f32", "pointwise", pair(lambda a, b, o: a.mul_(1.0)), 8 * n, "GB/s"),
        Case("copy f32 to f16", "pointwise", pair(lambda a, b, o: a.half()), 6 * n, "GB/s"),
    ]


def _reduce_cases() -> list[Case]:
    import torch

    n = _sized(1 << 24, 1 << 27)

    def on(shape: tuple[int, ...], f: Callable[[Any], Any]) -> Callable[[torch.device], Step]:
        def build(device: torch.device) -> Step:
            x = torch.randn(shape).to(device)
            return lambda: f(x)

        return build

    rows, cols = n // 1024, 1024
    batch = n // (64 * 64 * 64)
    return [
        Case("sum all", "reduce", on((n,), lambda x: x.sum()), 4 * n, "GB/s", 0.8, 0.9),
        Case("sum inner 1024", "reduce", on((rows, cols), lambda x: x.sum(1)), 4 * n, "GB/s", 0.8, 0.9),
        Case("sum outer", "reduce", on((rows, cols), lambda x: x.sum(0)), 4 * n, "GB/s", 0.8, 0.9),
        Case("sum N,H,W", "reduce", on((batch, 64, 64, 64), lambda x: x.sum((0, 2, 3))), 4 * n, "GB/s", 0.8, 0.9),
        Case("softmax 1024", "reduce", on((rows, cols), lambda x: torch.softmax(x, 1)), 8 * n, "GB/s", 0.8, 0.9),
        Case("amax inner 1024", "reduce", on((rows, cols), lambda x: x.amax(1)), 4 * n, "GB/s", 0.8, 0.9),
        Case("cumsum all", "reduce", on((n,), lambda x: x.cumsum(0)), 8 * n, "GB/s", 0.8),
        Case("cumsum 32 of 50257", "reduce", on((32, 50257), lambda x: x.cumsum(1)), 8 * 32 * 50257, "GB/s", 0.8),
        Case("cumsum inner 1024", "reduce", on((rows, cols), lambda x: x.cumsum(1)), 8 * n, "GB/s", 0.8),
        Case("cumsum inner 64", "reduce", on((n // 64, 64), lambda x: x.cumsum(1)), 8 * n, "GB/s", 0.8),
        Case("cumsum outer", "reduce", on((rows, cols), lambda x: x.cumsum(0)), 8 * n, "GB/s", 0.8),
        Case("cummax inner 1024", "reduce", on((rows, cols), lambda x: x.cummax(1)), 16 * n, "GB/s", 0.8),
    ]


def _gemm_cases() -> list[Case]:
    import torch

    def square(n: int, dtype: torch.dtype = torch.float32) -> Callable[[torch.device], Step]:
        def build(device: torch.device) -> Step:
            a, b = torch.randn(n, n).to(device, dtype), torch.randn(n, n).to(device, dtype)
            out = torch.empty(n, n, dtype=dtype).to(device)
            return lambda: torch.mm(a, b, out=out)

        return build

    sizes = [256, 512, 1024] + ([2048, 4096] if os.environ.get("DLB_BENCH_PEER") == "cuda" else [])
    return [
        Case(f"mm f32 {n}", "gemm", square(n), 2.0 * n**3, "GFLOP/s", 0.7 if n == 1024 else 0, 0.6 if n == 1024 else 0)
        for n in sizes
    ] + [Case(f"mm bf16 {n}", "gemm", square(n, torch.bfloat16), 2.0 * n**3, "GFLOP/s") for n in sizes]


def _conv_cases() -> list[Case]:
    import torch

    batch = _sized(4, 32)
    shapes: list[tuple[str, int, int, int, int, int, int]] = [  # name, in, out, kernel, stride, size, groups
        ("3x3 64-64 56", 64, 64, 3, 1, 56, 1),
        ("7x7s2 3-64 224", 3, 64, 7, 2, 224, 1),
        ("1x1 64-256 56", 64, 256, 1, 1, 56, 1),
        ("3x3s2 128-256 28", 128, 256, 3, 2, 28, 1),
        ("3x3 512-512 7", 512, 512, 3, 1, 7, 1),
        ("depthwise 3x3 96 56", 96, 96, 3, 1, 56, 96),
        ("depthwise 3x3 384 14", 384, 384, 3, 1, 14, 384),
        ("depthwise 5x5 240 28", 240, 240, 5, 1, 28, 240),
    ]
    cases = []
    kinds = ("tf32", "tf32 channels-last", "bf16", "bf16 channels-last")
    others = [(f"{kind} {shape[0]}", *shape[1:]) for kind in kinds for shape in shapes[:5]]
    others += [(f"{kind} depthwise 7x7 96 56", 96, 96, 7, 1, 56, 96) for kind in ("bf16", "bf16 channels-last")]
    for name, cin, cout, k, s, size, groups in shapes + others:
        dtype = torch.bfloat16 if name.startswith("bf16") else torch.float32
        layout = torch.channels_last if "channels-last" in name else torch.contiguous_format
        precision = "tf32" if name.startswith("tf32") else "none"

        def operands(
            device: torch.device,
            cin: int = cin,
            cout: int = cout,
            k: int = k,
            s: int = s,
            size: int = size,
            groups: int = groups,
            dtype: torch.dtype = dtype,
            layout: torch.memory_format = layout,
            precision: str = precision,
        ) -> Any:
            torch.backends.fp32_precision = precision  # type: ignore[attr-defined]  # of the process, until the next case
            x = torch.randn(batch, cin, size, size).to(device, dtype, memory_format=layout)
            w = torch.randn(cout, cin // groups, k, k).to(device, dtype, memory_format=layout)
            return x, w, dict(stride=s, padding=k // 2, groups=groups)

        def forward(device: torch.device, operands: Callable[[torch.device], Any] = operands) -> Step:
            x, w, options = operands(device)
            return lambda: torch.nn.functional.conv2d(x, w, **options)

        def backward(device: torch.device, operands: Callable[[torch.device], Any] = operands) -> Step:
            x, w, options = operands(device)
            grad = torch.randn_like(torch.nn.functional.conv2d(x, w, **options))
            arguments = (
                [0],
                [options["stride"]] * 2,
                [options["padding"]] * 2,
                [1, 1],
                False,
                [0, 0],
                options["groups"],
            )
            return lambda: torch.ops.aten.convolution_backward(grad, x, w, *arguments, [True, True, False])

        out = (size + 2 * (k // 2) - k) // s + 1
        work = 2.0 * batch * cout * out * out * (cin // groups) * k * k
        first = name.startswith("3x3 64-64")
        cases += [
            Case(f"conv {name} forward", "conv", forward, work, "GFLOP/s", 0.5 if first else 0, 0.4 if first else 0),
            Case(
                f"conv {name} backward", "conv", backward, 2 * work, "GFLOP/s", 0.4 if first else 0, 0.3 if first else 0
            ),
        ]
    return cases


def _image_cases() -> list[Case]:
    import torch
    import torch.nn.functional as F

    batch, c, size = _sized(4, 32), 64, 112

    def on(f: Callable[[Any], Any]) -> Callable[[torch.device], Step]:
        def build(device: torch.device) -> Step:
            x = torch.randn(batch, c, size, size).to(device)
            return lambda: f(x)

        return build

    def backward(f: Callable[[Any], Any]) -> Callable[[torch.device], Step]:
        def build(device: torch.device) -> Step:
            with torch.inference_mode(False), torch.enable_grad():
                x = torch.randn(batch, c, size, size).to(device).requires_grad_()
                y = f(x)
            grad = torch.randn(y.shape).to(device)
            return lambda: torch.autograd.grad(y, x, grad, retain_graph=True)

        return build

    n = batch * c * size * size
    pools = [  # name, function, bytes read or written of each of the input's elements, forward and backward
        ("max pool 3x3s2", lambda x: F.max_pool2d(x, 3, 2, 1), 7, 7),
        ("max pool 2x2", lambda x: F.max_pool2d(x, 2), 7, 7),
        ("avg pool 3x3s2", lambda x: F.avg_pool2d(x, 3, 2, 1), 5, 5),
    ]
    cases = []
    for name, f, there, back in pools:
        cases += [
            Case(f"{name} forward", "image", on(f), there * n, "GB/s"),
            Case(f"{name} backward", "image", backward(f), back * n, "GB/s"),
        ]
    return [
        *cases,
        Case("resize nearest x2", "image", on(lambda x: F.interpolate(x, scale_factor=2)), 20 * n, "GB/s"),
        Case(
            "resize bilinear x2",
            "image",
            on(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
            20 * n,
            "GB/s",
        ),
        Case("pad reflect 1", "image", on(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")), 8 * n, "GB/s"),
    ]


def _linalg_cases() -> list[Case]:
    import torch

    def of(f: Callable[[Any], Any], *shape: int, definite: bool = False) -> Callable[[torch.device], Step]:
        def build(device: torch.device) -> Step:
            a = torch.randn(*shape)
            if definite:
                a = a @ a.mT + shape[-1] * torch.eye(shape[-1])
            on_device = a.to(device)
            return lambda: f(on_device)

        return build

    many, some = _sized(10_000, 100_000), _sized(1_000, 10_000)
    linalg = torch.linalg
    rows = [
        ("cholesky 1024", of(linalg.cholesky_ex, 1024, 1024, definite=True)),
        ("lu 1024", of(linalg.lu_factor_ex, 1024, 1024)),
        ("solve 1024", of(lambda a: linalg.solve_ex(a, a), 1024, 1024)),
        ("qr 1024", of(linalg.qr, 1024, 1024)),
        (f"cholesky of {many} 8x8", of(linalg.cholesky_ex, many, 8, 8, definite=True)),
        (f"det of {many} 8x8", of(linalg.det, many, 8, 8)),
        (f"solve of {many} 8x8", of(lambda a: linalg.solve_ex(a, a[..., :1]), many, 8, 8)),
        (f"svd of {some} 32x32", of(linalg.svd, some, 32, 32)),
        (f"eigh of {some} 32x32", of(linalg.eigh, some, 32, 32, definite=True)),
    ]
    return [Case(name, "linalg", build, 1.0, "ms", 0.5) for name, build in rows]


def _net_cases(precision: str) -> list[Case]:
    def of(f: Callable[..., Step], name: str, batch: int) -> Callable[[Any], Step]:
        return lambda device: f(name, batch, device, precision)

    suite = "nets" if precision == "f32" else f"nets-{precision}"
    made = []
    for name, most in NETS.items():
        batch = _sized(4, most)
        for what, f in (("inference", inference_step), ("training step", training_step)):
            build, goal_cpu = of(f, name, batch), 1.0 if precision == "f32" else 0.0
            made.append(Case(f"{name} {what}, batch {batch}", suite, build, 1.0, "ms", goal_cpu, PRECISIONS[precision]))
    return made


def _language_cases() -> list[Case]:
    """GPT-2 of 124 million parameters, four layers of it on a CPU: training, and 32 tokens generated."""
    import torch

    def training(precision: str) -> Callable[[Any], Step]:
        def build(device: Any) -> Step:
            net, context = gpt2(_sized(4, 12), device, precision)
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
            return language_step(net, context, optimizer, (_sized(1, 8), _sized(128, 512)))

        return build

    def generation(precision: str) -> Callable[[Any], Step]:
        def build(device: Any) -> Step:
            net, _ = gpt2(_sized(4, 12), device, precision)
            net.eval()
            tokens = torch.randint(50257, (1, 64)).to(device)
            options = {"max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False, "pad_token_id": 50256}

            def step() -> Any:
                with torch.no_grad():
                    return net.generate(tokens, **options)

            return step

        return build

    rows = [(f"gpt2 training step {p}", training(p)) for p in PRECISIONS]
    rows += [(f"gpt2 generation {p}", generation(p)) for p in ("f32", "bf16")]
    return [Case(name, "language", build) for name, build in rows]


def _graph_cases() -> list[Case]:
    from benchmarks import graph_cases  # it imports torch

    return graph_cases.cases()


def _compiled_cases() -> list[Case]:
    from benchmarks import compiled_cases  # it imports torch

    return compiled_cases.cases()


SUITES: dict[str, Callable[[], list[Case]]] = {
    "host": _host_cases,
    "pointwise": _pointwise_cases,
    "fft": _fft_cases,
    "reduce": _reduce_cases,
    "gemm": _gemm_cases,
    "conv": _conv_cases,
    "image": _image_cases,
    "linalg": _linalg_cases,
    **op_cases.SUITES,
    "nets": partial(_net_cases, "f32"),
    "nets-tf32": partial(_net_cases, "tf32"),
    "nets-bf16": partial(_net_cases, "bf16"),
    "nets-autocast": partial(_net_cases, "autocast"),
    "language": _language_cases,
    "graphs": _graph_cases,
    "compiled": _compiled_cases,
}


def cases(suite: str) -> list[Case]:
    """The cases of one suite, in the order they are reported."""
    return SUITES[suite]()
