"""Times every solver and config of typical products and convolutions: what estimates and first guesses are set by.

python -m benchmarks.solver_configs [gemm] [gemv] [conv] [--dtype float16] [--solver gpu_mma] [--batch 32] [--small]
"""

import argparse
import re
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

import dlbackend
from dlbackend import ocl

Case = tuple[str, float, Callable[[], object]]  # name, floating point operations of one pass, what to run


def gemms(shapes: list[tuple[int, int, int, int]], dtype: torch.dtype) -> list[Case]:
    cases: list[Case] = []
    for batch, m, n, k in shapes:
        a, b = (torch.randn(batch, *s, device="ocl").to(dtype) for s in ((m, k), (k, n)))
        c = torch.randn(batch, n, k, device="ocl").to(dtype)
        flops = 2.0 * batch * m * n * k
        cases.append((f"{batch} x {m}x{k} @ {k}x{n}", flops, partial(torch.matmul, a, b)))
        cases.append((f"{batch} x {m}x{k} @ ({n}x{k})'", flops, partial(torch.matmul, a, c.mT)))
    return cases


def convolve(inputs: list[torch.Tensor], options: tuple[int, int, int, int]) -> None:
    """Forward and backward; options: stride, padding, dilation, groups."""
    x, w = inputs
    torch.autograd.backward(F.conv2d(x, w, None, *options).sum())


def convolutions(shapes: list[tuple[int, int, int, int, int, int]], batch: int, dtype: torch.dtype) -> list[Case]:
    cases: list[Case] = []
    for c, k, size, f, stride, groups in shapes:
        x = torch.randn(batch, c, size, size, device="ocl").to(dtype)
        w = torch.randn(k, c // groups, f, f, device="ocl").to(dtype)
        out = (size + f // 2 * 2 - f) // stride + 1
        for layout in (torch.contiguous_format, torch.channels_last):
            inputs = [t.contiguous(memory_format=layout).requires_grad_() for t in (x, w)]
            run = partial(convolve, inputs, (stride, f // 2, 1, groups))
            flops = 2.0 * batch * k * (c // groups) * f * f * out * out
            cases.append((f"{batch} x {c}->{k} {f}x{f}/{stride} g{groups} {size} {layout}", flops, run))
    return cases


def report(case: Case) -> None:
    """Runs the case once, then measures all solutions of the problems that it met."""
    name, flops, run = case
    before = set(dlbackend.solvers.problems())
    run()
    for problem in sorted(set(dlbackend.solvers.problems()) - before):
        print(f"\n{name}: {re.split('[: ]', problem)[0]}\n{problem}")
        for s in dlbackend.solvers.tune(problem):
            if s.microseconds is not None:
                rate = flops / s.microseconds * 1e-6
                print(
                    f"  {s.solver:18} {s.config:20} {s.microseconds:10.1f} us of {s.estimate:8.1f} {rate:8.2f} TFLOP/s"
                    f" {s.workspace / 2**20:8.1f} MiB  error {s.error:.1e}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["gemm", "gemv", "conv"], metavar="gemm|gemv|conv")
    parser.add_argument("--dtype", default="float32", help="of PyTorch, or tf32: float32 on tensor cores")
    parser.add_argument("--solver", metavar="NAME", help="only this one and the reference")
    parser.add_argument("--batch", type=int, default=32, help="images of the convolutions")
    parser.add_argument("--small", action="store_true", help="small sizes, to see that all is well")
    args = parser.parse_args()
    dtype = torch.float32 if args.dtype == "tf32" else getattr(torch, args.dtype)
    if args.dtype == "tf32":
        torch.backends.ocl.fp32_precision = "tf32"  # type: ignore[attr-defined]
    if args.solver:
        names = [name for name in dlbackend.solvers.names() if name.startswith(("gemm:", "conv_"))]
        others = [name for name in names if name.split(":")[1] not in (args.solver, "reference")]
        dlbackend.solvers.force(",".join(name.replace(":", ":-") for name in others))
    products = [(1, n, n, n) for n in (512, 1024, 2048, 4096, 8192)] + [(96, 256, 256, 64), (1, 64, 4096, 1024)]
    rows = [(1, r, n, k) for r in (1, 4, 8) for n, k in ((4096, 4096), (1000, 2048), (50257, 768))] + [
        (384, 1, 1024, 64)
    ]
    layers = [(64, 64, 56, 3, 1, 1), (128, 128, 28, 3, 1, 1), (256, 256, 14, 3, 1, 1), (512, 512, 7, 3, 1, 1)]
    layers += [(3, 64, 224, 7, 2, 1), (256, 512, 28, 1, 2, 1), (64, 256, 56, 1, 1, 1), (128, 128, 56, 3, 2, 1)]
    layers += [(96, 96, 56, 3, 1, 96), (128, 128, 28, 3, 1, 32)]
    if args.small:
        products, rows, layers = [(2, 65, 66, 67)], [(1, 3, 300, 700)], [(8, 8, 9, 3, 1, 1)]
    cases: list[Case] = []
    cases += gemms(products, dtype) if "gemm" in args.kinds else []
    cases += gemms(rows, dtype) if "gemv" in args.kinds else []
    cases += convolutions(layers, args.batch, dtype) if "conv" in args.kinds else []
    print(ocl.get_device_properties(0).name)
    for case in cases:
        report(case)


if __name__ == "__main__":
    main()
