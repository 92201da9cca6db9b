"""Helpers of the op tests: the device against float64 on the CPU, in many dtypes and layouts."""

from __future__ import annotations

import torch

from dlbackend import _C, _build

DEVICE = "ocl:0"

# Relative and absolute tolerance against float64, by dtype of the device's result.
TOLERANCE = {
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1.6e-2, 1.6e-2),
    torch.float32: (2e-5, 2e-5),
    torch.float64: (1e-9, 1e-9),
}
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def on_gpu_class() -> bool:
    """Whether the device runs the kernels of GPUs."""
    product = "gemm:float32 b=1 m=1 n=1 k=1 sa=0,0,0 sb=0,0,0 sc=0,0,0 sd=0,0,0 add=0"
    return "gpu_tiled: applicable" in _C.explain_problem(product)


def find_record(solutions, taken, time: float = 1.0) -> str:
    """The text of a find record of a problem's solutions, of dlbackend.solvers, which takes one of them, that took so
    many microseconds.
    """
    considered = " ".join(sorted({s.solver for s in solutions}))
    line = f"{taken.solver} {'s' * taken.specialised}{taken.config} {time:.2f} {taken.workspace} 0"
    return f"dlbackend-find 1 {_build.VERSION}\nconsidered {considered}\n{line}\n"


def runs_in_caller() -> bool:
    """Whether a command runs in the call that enqueues it, as on PoCL's device without threads."""
    return _C.device_properties(0).name.startswith(("basic", "cpu-minimal"))


def assert_near(actual: torch.Tensor, expected: torch.Tensor, scale: float = 1.0) -> None:
    """`actual` (on the device) is `expected` (CPU, float64) to its dtype's precision, times `scale`."""
    assert actual.device.type == "ocl"
    assert actual.shape == expected.shape
    rtol, atol = TOLERANCE.get(actual.dtype, (0, 0))
    torch.testing.assert_close(
        actual.cpu().to(expected.dtype), expected, rtol=rtol * scale, atol=atol * scale, equal_nan=True
    )


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """2-norm of the difference over that of what is expected."""
    result, expected = result.detach().cpu().double(), expected.detach().double()
    return ((result - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def away_from_zero(*size: int) -> torch.Tensor:
    """Random values of magnitudes from 1/2 to 2. Winograd's rounding errors are relative to the largest values of a
    tile (docs/numerics.md), so beside 3e38 a tiny weight's product is right to few digits alone."""
    return torch.empty(size).uniform_(0.5, 2) * (torch.randint(2, size) * 2 - 1)


def mostly_zero(*shape: int, dtype: torch.dtype = torch.float32, density: float = 0.3) -> torch.Tensor:
    """A dense CPU tensor that is mostly zero."""
    x = torch.randn(shape) * 3 * (torch.rand(shape) < density)
    return torch.complex(x, x.flip(0)).to(dtype) if dtype.is_complex else x.to(dtype)


def layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same values contiguous, transposed in memory, a slice with an offset, channels-last where it has one."""
    found = {"contiguous": x.contiguous()}
    if x.dim() >= 2:
        found["transposed"] = x.transpose(0, -1).contiguous().transpose(0, -1)
    if x.dim() >= 1:
        wide = torch.zeros(*x.shape[:-1], x.shape[-1] * 2 + 3, dtype=x.dtype, device=x.device)
        found["sliced"] = wide[..., 3::2].copy_(x)
    if x.dim() in (4, 5):
        fmt = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        found["channels_last"] = x.contiguous(memory_format=fmt)
    return found


def check_op(
    fn, *inputs: torch.Tensor, dtype: torch.dtype = torch.float32, scale: float = 1.0, grad: bool = True
) -> None:
    """`fn` of the inputs (rounded to `dtype`) on the device, forward and backward, against float64 on the CPU."""
    rounded = [t.to(dtype) if t.is_floating_point() else t for t in inputs]
    reference = [t.double().contiguous().requires_grad_(grad) if t.is_floating_point() else t for t in rounded]
    device = []
    for original, t in zip(inputs, rounded, strict=True):
        copy = torch.empty_strided(original.shape, original.stride(), dtype=t.dtype, device=DEVICE).copy_(t)
        device.append(copy.requires_grad_(grad) if t.is_floating_point() else copy)
    expected, actual = fn(*reference), fn(*device)
    assert_near(actual.detach(), expected.detach(), scale)
    if not grad:
        return
    upstream = torch.randn(expected.shape, dtype=torch.float64).to(actual.dtype)
    wanted = [t for t in reference if t.requires_grad]
    grads = torch.autograd.grad(expected, wanted, upstream.double(), allow_unused=True)
    got = torch.autograd.grad(actual, [t for t in device if t.requires_grad], upstream.to(DEVICE), allow_unused=True)
    for a, e in zip(got, grads, strict=True):
        assert (a is None) == (e is None)
        if a is not None:
            assert_near(a, e, scale * 2)


def on_device(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, gaps included."""
    size = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1
    return torch.as_strided(t, (size,), (1,)).to("ocl").as_strided(t.shape, t.stride())


def assert_layout_as_on_cpu(fn, *inputs: torch.Tensor) -> None:
    """Checks that the tensors which `fn` gives have the strides that they have on the CPU, and about the values."""
    expected, actual = fn(*inputs), fn(*[on_device(t) for t in inputs])
    as_list = lambda r: list(r) if isinstance(r, (tuple, list)) else [r]  # noqa: E731
    for a, e in zip(as_list(actual), as_list(expected), strict=True):
        assert a.stride() == e.stride(), (a.shape, a.stride(), e.stride())
        torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-4)


def with_input_grad(fn):
    """`fn(x)` and the gradient of x, for what is returned as the upstream gradient."""

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_()
        y = fn(x)
        y.backward(y.detach())
        assert x.grad is not None
        return y.detach(), x.grad

    return both
