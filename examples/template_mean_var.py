"""Mean and variance over N, H and W in one pass over the data, with a kernel made from two lines of text.

python examples/template_mean_var.py [--device ocl:0] [--shape 64 64 56 56]
"""

import argparse
import time

import torch

from dlbackend.template import pointwise_reduce


def mean_var(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance (without correction) of each channel of x (N, C, H, W): two tensors (C,)."""
    results = pointwise_reduce(
        "y0 = x0; y1 = x0 * x0;",
        x,
        dims=(0, 2, 3),
        reduce="sum",
        finish="y0 = y0 / n; y1 = y1 / n - y0 * y0;",
    )
    mean, var = results
    return mean, var


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl:0")
    parser.add_argument("--shape", type=int, nargs=4, default=[64, 64, 56, 56])
    options = parser.parse_args()
    x = torch.randn(options.shape).to(options.device)
    mean, var = mean_var(x)  # compiles, once for this text and dtype
    expected_var, expected_mean = torch.var_mean(x.cpu().double(), (0, 2, 3), correction=0)
    error = max((mean.cpu() - expected_mean).abs().max(), (var.cpu() - expected_var).abs().max())
    start = time.perf_counter()
    mean_var(x)
    torch.ocl.synchronize()  # type: ignore[attr-defined]
    seconds = time.perf_counter() - start
    print(f"largest error {error:.1e}; {x.nbytes / seconds / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
