"""The solvers by the instructions that CPUs have for bfloat16, against float64."""

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from common import on_device, relative_error
from convolutions import SMALL_CONVS, why_not
from fresh_process import forked_python, run_python

from dlbackend import _C

KEY = "gemm:bfloat16 b=1 m=64 n=64 k=64 sa=0,64,1 sb=0,64,1 sc=0,64,1 sd=0,0,0 add=0"
TOLERANCE = 4e-3  # 2-norm: results are rounded once, to 8 bits

WHY_NOT = why_not("cpu_bf16", KEY)
pytestmark = pytest.mark.skipif(WHY_NOT != "applicable", reason=f"cpu_bf16: {WHY_NOT}")


@pytest.fixture(autouse=True)
def force():
    _C.force_solver(",".join(f"{op}:cpu_bf16" for op in ("gemm", "conv_fwd", "conv_bwd_data", "conv_bwd_weight")))
    yield
    _C.force_solver("")


SIZES = [(1, 1, 1), (13, 16, 5), (6, 64, 17), (19, 81, 33), (17, 1, 50), (1, 40, 77), (33, 65, 1100), (300, 520, 40)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gemm(size):
    """Operands with gaps, transposed, broadcast; sizes around tiles of 16 and 32 and parts of the reduction."""
    m, n, k = size
    a, b = torch.randn(3, 2 * m, k).bfloat16()[:, ::2], torch.randn(3, k, 2 * n).bfloat16()[:, :, ::2]
    added = (None, torch.randn(n).bfloat16(), torch.randn(3, n, m).bfloat16().mT)
    for a_ in (a, a.contiguous(), a.mT.contiguous().mT, a[:1].expand(3, -1, -1)):
        for b_ in (b, b.contiguous(), b.mT.contiguous().mT):
            for d in added:
                wide = a_.double() @ b_.double() if d is None else 0.5 * d.double() - 2 * (a_.double() @ b_.double())
                on = on_device(a_), on_device(b_)
                got = torch.bmm(*on) if d is None else torch.baddbmm(d.to("ocl"), *on, beta=0.5, alpha=-2)
                assert relative_error(got, wide) < TOLERANCE


def test_gemm_into_rows_columns_and_gaps():
    a, b = torch.randn(70, 90).bfloat16(), torch.randn(90, 50).bfloat16()
    for shape, view in (
        ((70, 50), lambda t: t),
        ((50, 70), lambda t: t.mT),
        ((140, 100), lambda t: t[::2, ::2]),
    ):
        whole = torch.full(shape, 7.0, dtype=torch.bfloat16, device="ocl")
        torch.mm(a.to("ocl"), b.to("ocl"), out=view(whole))
        assert relative_error(view(whole), a.double() @ b.double()) < TOLERANCE
        view(whole).fill_(7)
        assert (whole == 7).all()


def test_what_is_not_finite_stays_where_it_is():
    a, b = torch.rand(40, 50).add(0.5).bfloat16(), torch.rand(50, 60).add(0.5).bfloat16()
    a[3, 49], a[39, 7], b[20, 59] = float("inf"), float("nan"), float("-inf")
    expected = a.float() @ b.float()
    got = (a.to("ocl") @ b.to("ocl")).cpu().float()
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=8e-3, atol=0)


CONVS = [  # n, c, k, groups, size, filter, stride, padding, dilation
    *SMALL_CONVS,
    (2, 64, 48, 1, (17, 19), 3, 2, 1, 1),
    (1, 3, 64, 1, (40, 41), 7, 2, 3, 1),
    (1, 64, 96, 1, (14, 14), 1, 2, 0, 1),
    (2, 96, 34, 2, (7, 7), 3, 1, 1, 1),
    (2, 64, 64, 2, (9, 9), (1, 5), 1, (0, 2), 1),
    (2, 600, 300, 1, (6, 7), 3, 1, 1, 1),
    (1, 32, 40, 1, (30, 70), (5, 3), (2, 1), (2, 1), (1, 2)),
]


@pytest.mark.parametrize("case", CONVS, ids=str)
def test_conv(case):
    n, c, k, groups, size, f, *how = case
    filters = (f, f) if isinstance(f, int) else f
    x, w = torch.randn(n, c, *size).bfloat16(), torch.randn(k, c // groups, *filters).bfloat16()
    layouts = (torch.contiguous_format, torch.channels_last)
    for layout_x, layout_w in itertools.product(layouts, layouts):
        for bias in (None, torch.randn(k).bfloat16()):
            given, wanted = [], []
            for t, layout in ((x, layout_x), (w, layout_w)):
                given.append(t.to("ocl").to(memory_format=layout).requires_grad_())
                wanted.append(t.double().requires_grad_())
            got = F.conv2d(*given, None if bias is None else bias.to("ocl"), *how, groups)
            want = F.conv2d(*wanted, None if bias is None else bias.double(), *how, groups)
            grad = torch.randn(want.shape).bfloat16()
            got.backward(grad.to("ocl").to(memory_format=layout_x))
            want.backward(grad.double())
            assert relative_error(got, want) < TOLERANCE
            for a, b in zip(given, wanted, strict=True):
                assert relative_error(a.grad, b.grad) < TOLERANCE


@pytest.mark.parametrize("rank", [1, 3])
def test_conv_of_other_ranks(rank):
    x, w = torch.randn(2, 24, *(11, 9, 10)[:rank]).bfloat16(), torch.randn(40, 24, *(3, 2, 3)[:rank]).bfloat16()
    conv = getattr(F, f"conv{rank}d")
    given, wanted = ([t.to(*to).requires_grad_() for t in (x, w)] for to in (("ocl",), (torch.float64,)))
    got, want = conv(*given, padding=1, stride=2), conv(*wanted, padding=1, stride=2)
    grad = torch.randn(want.shape).bfloat16()
    got.backward(grad.to("ocl")), want.backward(grad.double())
    for a, b in ((got, want), *((a.grad, b.grad) for a, b in zip(given, wanted, strict=True))):
        assert relative_error(a, b) < TOLERANCE


def test_every_blocking_is_right():
    _C.force_solver("")
    a, b = torch.randn(131, 700).bfloat16(), torch.randn(300, 700).bfloat16()
    x = torch.randn(2, 40, 29, 18).bfloat16()
    w = torch.randn(96, 40, 3, 3).bfloat16()
    import dlbackend

    seen = set(dlbackend.solvers.problems())
    a.to("ocl") @ b.to("ocl").mT
    F.conv2d(x.to("ocl"), w.to("ocl"), padding=1)
    problems = {p for p in set(dlbackend.solvers.problems()) - seen if p.startswith(("gemm:bf", "conv_fwd:bf"))}
    assert len(problems) == 2
    for problem in problems:
        rejected = _C.find_stats()["rejected"]
        _C.tune_problem(problem)
        assert _C.find_stats()["rejected"] == rejected
        assert any(
            s.solver.startswith("cpu_bf16") and s.error is not None for s in dlbackend.solvers.solutions(problem)
        )


def test_takes_what_it_is_faster_for():
    def taken(key: str) -> str:
        _C.force_solver("")
        return _C.explain_problem(key).split(" for ")[0]

    large = KEY.replace("=64", "=512").replace(",64,", ",512,")
    assert taken(large) == "cpu_bf16"
    assert taken(large.replace("bfloat16", "float32")) != "cpu_bf16"
    assert taken(KEY.replace("=64", "=4").replace(",64,", ",4,")) != "cpu_bf16"
    code = f"import torch, dlbackend; from dlbackend import _C; print(_C.explain_problem({large!r}))"
    assert "cpu_bf16: for CPU-like devices" in forked_python(code, DLBACKEND_EMULATE="class=gpu").stdout


def test_less_than_there_is():
    code = f"import torch, dlbackend; from dlbackend import _C; print(_C.explain_problem({KEY!r}))"
    assert "cpu_bf16: needs PoCL" in forked_python(code, DLBACKEND_EMULATE="bf16=none").stdout
    assert "cpu_bf16: applicable" in forked_python(code, DLBACKEND_EMULATE="bf16=vectors").stdout


@pytest.mark.skipif("amx_bf16" not in Path("/proc/cpuinfo").read_text(), reason="the tests themselves run vectors")
def test_vectors_where_there_are_tiles(request):
    file, those = str(request.path), "test_gemm or test_conv or finite or blocking"
    done = run_python(
        "-m", "pytest", file, "-q", "-p", "no:cacheprovider", "-k", those, DLBACKEND_EMULATE="bf16=vectors"
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
