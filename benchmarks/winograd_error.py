"""Rounding error of Winograd convolution against float64: float32 models of F(2x2,3x3) and of F(4x4,3x3) with several
sets of points, next to the direct sum in the same order, and what the device's solvers give. Prints the tables of
docs/numerics.md: python -m benchmarks.winograd_error"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F

Matrices = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # of the input, of the weights, of the output

POINTS = {
    "0, ±1, ±2, ∞ (Lavin and Gray)": (1.0, 2.0),
    "0, ±1/2, ±1, ∞": (0.5, 1.0),
    "0, ±√1/2, ±√2, ∞": (0.5**0.5, 2**0.5),
    "0, ±5/8, ±3/2, ∞ (cpu_winograd)": (0.625, 1.5),
}


def f2() -> Matrices:
    b = torch.tensor([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], dtype=torch.float64)
    g = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64)
    a = torch.tensor([[1, 1, 1, 0], [0, 1, -1, -1]], dtype=torch.float64)
    return b, g, a


def f4(p: float, q: float) -> Matrices:
    """F(4x4,3x3) with the points 0, p, -p, q, -q, infinity."""
    pp, qq = p * p, q * q
    b = [
        [pp * qq, 0, -(pp + qq), 0, 1, 0],
        [0, -p * qq, -qq, p, 1, 0],
        [0, p * qq, -qq, -p, 1, 0],
        [0, -pp * q, -pp, q, 1, 0],
        [0, pp * q, -pp, -q, 1, 0],
        [0, pp * qq, 0, -(pp + qq), 0, 1],
    ]
    norms = [pp * qq] + [2 * pp * (pp - qq)] * 2 + [2 * qq * (qq - pp)] * 2
    points = [0, p, -p, q, -q]
    g = [[1 / n, x / n, x * x / n] for n, x in zip(norms, points, strict=True)] + [[0, 0, 1]]
    a = [[float(x) ** i for x in points] + [float(i == 3)] for i in range(4)]
    return tuple(torch.tensor(m, dtype=torch.float64) for m in (b, g, a))  # type: ignore[return-value]


def errors(matrices: Matrices, channels: int, seed: int) -> tuple[float, float]:
    """Relative error (2-norm) of the model and of the direct sum, for 64 tiles and 16 filters of normal values."""
    b, g, a = matrices
    size, outputs = b.size(0), a.size(0)
    random = torch.Generator().manual_seed(seed)
    d = torch.randn(64, channels, size, size, generator=random)
    w = torch.randn(16, channels, 3, 3, generator=random)
    exact = F.conv2d(d.double(), w.double())
    direct, sums = torch.zeros(64, 16, outputs, outputs), torch.zeros(64, 16, size, size)
    transformed_d = b.float() @ d @ b.float().T
    transformed_w = g.float() @ w @ g.float().T
    for c in range(channels):  # both in the order of the kernels
        sums += transformed_d[:, None, c] * transformed_w[None, :, c]
        for i in range(3):
            for j in range(3):
                direct += d[:, None, c, i : i + outputs, j : j + outputs] * w[None, :, c, i : i + 1, j : j + 1]
    result = a.float() @ sums @ a.float().T

    def relative(x: torch.Tensor) -> float:
        return float((x - exact).norm() / exact.norm())

    return relative(result), relative(direct)


def model_table() -> None:
    print("| algorithm | " + " | ".join(f"{c} channels" for c in (16, 64, 256)) + " |")
    print("| --- |" + " --- |" * 3)
    rows = {"F(2x2,3x3)": f2()} | {f"F(4x4,3x3), {name}": f4(*pq) for name, pq in POINTS.items()}
    for name, matrices in rows.items():
        cells = [errors(matrices, c, seed=c) for c in (16, 64, 256)]
        print(f"| {name} | " + " | ".join(f"{e:.1e} ({e / d:.1f}x)" for e, d in cells) + " |")
    print("| direct | " + " | ".join(f"{errors(f2(), c, seed=c)[1]:.1e}" for c in (16, 64, 256)) + " |")


def weight_gradient(x: torch.Tensor, grad: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    ones = [1, 1]
    result: torch.Tensor = torch.ops.aten.convolution_backward(
        grad, x, w, None, ones, ones, ones, False, [0, 0], 1, [False, True, False]
    )[1]
    return result


def device_table(device: str, solvers: list[str], weights: bool) -> None:
    """Forward passes, or weight gradients."""
    from dlbackend import _C

    print("| channels, image | " + " | ".join(f"{s}: 2-norm, largest" for s in solvers) + " |")
    print("| --- |" + " --- |" * len(solvers))
    for channels, size in ((16, 56), (64, 56), (128, 28), (256, 14), (512, 7)):
        torch.manual_seed(channels)
        x, w = torch.randn(2, channels, size, size), torch.randn(channels, channels, 3, 3)
        y = torch.randn_like(x)
        exact = (
            weight_gradient(x.double(), y.double(), w.double())
            if weights
            else F.conv2d(x.double(), w.double(), padding=1)
        )
        cells = []
        for solver in solvers:
            _C.force_solver(f"conv_fwd:{solver},conv_bwd_weight:{solver}")
            a, b, c = x.to(device), w.to(device), y.to(device)
            result = weight_gradient(a, c, b) if weights else F.conv2d(a, b, padding=1)
            difference = result.cpu() - exact
            norm, largest = difference.norm() / exact.norm(), difference.abs().max() / exact.std()
            cells.append(f"{norm:.1e}, {largest:.1e}")
        print(f"| {channels}, {size}x{size} | " + " | ".join(cells) + " |")
    _C.force_solver("")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--solvers", default="cpu_implicit,cpu_winograd")
    arguments = parser.parse_args()
    model_table()
    for weights in (False, True):
        print("\nWeight gradient" if weights else "\nForward")
        device_table(arguments.device, arguments.solvers.split(","), weights)


if __name__ == "__main__":
    main()
