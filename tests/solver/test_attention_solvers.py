"""Every solver and config of attention against float64, and which of them are chosen.

tests/test_gpu_kernels.py runs this on any device as if it were a GPU.
"""

import os

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE, relative_error

import dlbackend
from dlbackend import _C

EMULATED = "tensor_cores=emulated" in os.environ.get("DLBACKEND_EMULATE", "")
TENSOR_CORES = torch.ocl.is_available() and torch.ocl.get_device_properties(0).has_tensor_cores and not EMULATED

# queries, keys, heads of queries, of keys, head size, and options of the call
SHAPES = [
    (70, 150, 3, 3, 64, {}),
    (130, 100, 2, 1, 40, {"is_causal": True}),
    (1, 300, 4, 2, 64, {}),
    (5, 1030, 3, 1, 32, {}),
    (37, 60, 1, 1, 128, {"mask": (1, 1, 60)}),
    (2, 200, 6, 1, 256, {"mask": (6, 2, 200)}),
    (20, 21, 1, 1, 256, {"is_causal": True}),
]


@pytest.fixture(autouse=True)
def _only_own_problems():
    """Forcing makes the process forget its choices, and with them the problems of the tests before."""
    torch.manual_seed(0)
    _C.force_solver("")


def inputs_of(queries, keys, heads, kv_heads, dim, options):
    q, k, v = (torch.randn(2, n, length, dim) for n, length in ((heads, queries), (kv_heads, keys), (kv_heads, keys)))
    mask = torch.randn(options["mask"]) if "mask" in options else None
    return [q, k, v, torch.randn(2, heads, queries, dim), mask]


def both_passes(inputs, causal):
    q, k, v, grad, mask = inputs
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)
    return [out, *torch.autograd.grad(out, (q, k, v), grad)]


def solvers_of(problem: str) -> dict[str, str]:
    """Name -> "applicable" or the reason why not."""
    return dict(line.strip().split(": ", 1) for line in _C.explain_problem(problem).splitlines()[1:])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_solver(shape):
    inputs, causal = inputs_of(*shape), shape[-1].get("is_causal", False)
    expected = both_passes([t if t is None else t.double() for t in inputs], causal)
    on_device = [t if t is None else t.to(DEVICE) for t in inputs]
    both_passes(on_device, causal)
    tried = {"attention": 0, "attention_bwd": 0}
    for problem in [p for p in dlbackend.solvers.problems() if p.startswith("attention")]:
        op = problem.split(":")[0]
        for solver, verdict in solvers_of(problem).items():
            if verdict != "applicable":
                continue
            _C.force_solver(f"{op}:{solver}")
            for a, e in zip(both_passes(on_device, causal), expected, strict=True):
                assert relative_error(a, e) < 1.5e-6
            tried[op] += 1
    assert tried["attention"] >= (3 if shape[0] <= 8 else 2)
    assert tried["attention_bwd"] >= 2


def test_every_config_is_checked_and_right():
    """Measuring compares every config with the reference, on synthetic data; nothing may be found wrong."""
    rejected = dlbackend.solvers.stats()["rejected"]
    for shape in (SHAPES[0], SHAPES[3]):
        both_passes([t if t is None else t.to(DEVICE) for t in inputs_of(*shape)], False)
    for problem in [p for p in dlbackend.solvers.problems() if p.startswith("attention")]:
        dlbackend.solvers.tune(problem)
        measured = [s for s in dlbackend.solvers.solutions(problem) if s.microseconds is not None]
        assert len(measured) >= 2
        assert all(s.error < 3e-5 for s in measured)
    assert dlbackend.solvers.stats()["rejected"] == rejected


def test_keys():
    both_passes([t if t is None else t.to(DEVICE) for t in inputs_of(*SHAPES[1])], True)
    problems = dlbackend.solvers.problems()
    assert {p.split(" ")[0] for p in problems} == {"attention:float32", "attention_bwd:float32"}
    for problem in problems:
        assert _C.explain_problem(problem).splitlines()[0].endswith(f" for {problem}")
        with pytest.raises(ValueError, match="problem key"):
            _C.explain_problem(problem[:-3])


@pytest.mark.parametrize(("queries", "solver"), [(1, "decode"), (512, "mma" if TENSOR_CORES else "flash")])
def test_choice(queries, solver):
    q, k = torch.randn(2, 4, queries, 64, device=DEVICE), torch.randn(2, 4, 2048, 64, device=DEVICE)
    with torch.backends.ocl.flags(find_mode="fast"):  # by estimate alone, whatever is built already
        F.scaled_dot_product_attention(q, k, k)
        (problem,) = dlbackend.solvers.problems()
        assert f"_{solver} " in _C.explain_problem(problem).splitlines()[0]
