"""The solvers by a CPU's instructions for integers of 8 bits, against sums of integers."""

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from convolutions import SMALL_CONVS, why_not
from fresh_process import forked_python, run_python

import dlbackend
from dlbackend import _C

KEY = (
    "conv_fwd:int32 n=1 c=64 k=64 g=1 in=1,28,28 out=1,28,28 f=1,3,3 s=1,1,1 p=0,1,1 d=1,1,1 sx=0,784,0,28,1 "
    "sw=576,9,0,3,1 sy=0,784,0,28,1 bias=0 x=u8 w=i8"
)

WHY_NOT = why_not("cpu_int8", KEY)
pytestmark = pytest.mark.skipif(WHY_NOT != "applicable", reason=f"cpu_int8: {WHY_NOT}")


@pytest.fixture(autouse=True)
def force():
    _C.force_solver("conv_fwd:cpu_int8")
    yield
    _C.force_solver("")


def integers(dtype, *shape):
    low, high = (-128, 128) if dtype == torch.int8 else (0, 256)
    return torch.randint(low, high, shape).to(dtype)


def pair(v):
    return list(v) if isinstance(v, tuple) else [v, v]


def convolve(x, w, bias, stride, padding, dilation, groups, constant=False, rows="y0 = x0", extras=()):
    run = torch.ops.dlbackend.convolution_rows.default
    return run(rows, x, w, bias, pair(stride), pair(padding), pair(dilation), groups, list(extras), constant)[0]


CONVS = [  # n, c, k, groups, size, filter, stride, padding, dilation
    *SMALL_CONVS,
    (2, 64, 48, 1, (17, 19), 3, 2, 1, 1),
    (1, 3, 64, 1, (40, 41), 7, 2, 3, 1),
    (1, 64, 96, 1, (14, 14), 1, 2, 0, 1),
    (2, 96, 34, 2, (7, 7), 3, 1, 1, 1),
    (2, 600, 300, 1, (6, 7), 3, 1, 1, 1),
    (1, 32, 40, 1, (30, 70), (5, 3), (3, 1), (2, 1), (1, 2)),
    (1, 3, 33, 1, (33, 32), 8, 8, 0, 1),
    (1, 1, 1, 1, (5, 5), 5, 1, 0, 1),
]


NARROW_CONVS = [  # of few channels in a group
    *(case for case in SMALL_CONVS if case[2] // case[3] <= 16),
    (2, 18, 18, 18, (29, 33), 3, 2, 1, 1),
    (1, 4, 8, 4, (40, 21), 5, 1, 4, 2),
    (1, 2, 2, 2, (24, 23), 22, 1, 11, 1),
    (2, 170, 17, 17, (7, 9), (7, 7), 1, 3, 1),
]


@pytest.mark.parametrize("solver", ["cpu_int8", "cpu_direct"])
@pytest.mark.parametrize("case", [*CONVS, *NARROW_CONVS[-4:]], ids=str)
def test_conv(case, solver):
    """Both layouts of each operand, images with gaps, signed and unsigned: exact."""
    if solver == "cpu_direct" and case not in NARROW_CONVS:
        return
    _C.force_solver(f"conv_fwd:{solver}")
    n, c, k, groups, size, f, *how = case
    filters = (f, f) if isinstance(f, int) else f
    layouts = (torch.contiguous_format, torch.channels_last)
    for dtype, bias in ((torch.uint8, None), (torch.int8, torch.randint(-9999, 9999, (k,), dtype=torch.int32))):
        x, w = integers(dtype, n, c, *size), integers(torch.int8, k, c // groups, *filters)
        x[0, 0], w[0] = (-128, -128) if dtype == torch.int8 else (255, -128)  # the largest sums
        want = F.conv2d(x.double(), w.double(), None if bias is None else bias.double(), *how, groups).int()
        gaps = x.to("ocl").repeat(1, 1, 1, 2)[..., : size[1]]
        images = (x.to("ocl"), x.to("ocl").contiguous(memory_format=torch.channels_last), gaps)
        for image, layout in itertools.product(images, layouts):
            weight = w.to("ocl").contiguous(memory_format=layout)
            got = convolve(image, weight, None if bias is None else bias.to("ocl"), *how, groups)
            assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("rank", [1, 3])
def test_conv_of_other_ranks(rank):
    x, w = integers(torch.int8, 2, 24, *(11, 9, 10)[:rank]), integers(torch.int8, 40, 24, *(3, 2, 3)[:rank])
    want = getattr(F, f"conv{rank}d")(x.double(), w.double(), padding=1, stride=2).int()
    where = ([2] * rank, [1] * rank, [1] * rank, 1)
    (got,) = torch.ops.dlbackend.convolution_rows.default("y0 = x0", x.to("ocl"), w.to("ocl"), None, *where, [], False)
    assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_rows_behind(layout):
    """Scale, bias, a summand and rounding, which saturates, in one launch; each at its place."""
    x, w = integers(torch.int8, 3, 20, 13, 11), integers(torch.int8, 70, 10, 3, 3)
    sums = F.conv2d(x.double(), w.double(), None, 1, 1, 1, 2)
    scale, shift, more = torch.rand(70, 1, 1).div(64), torch.randn(70, 1, 1), torch.randn(sums.shape).mul(30)
    rows = (
        "s = copy.f32(x0); v = mul.f32(s, x1); w = add_alpha.f32(v, x2, 1); z = add_alpha.f32(w, x3, 1); "
        "r = round.f32(z); o = add_alpha.f32(r, 5, 1); c = clamp.f32(o, -128, 127); y0 = copy.i8(c)"
    )
    want = ((sums.float() * scale + shift + more).round() + 5).clamp(-128, 127)
    there = [t.to("ocl").contiguous(memory_format=layout) for t in (x, w, more)]
    extras = (scale.to("ocl"), shift.to("ocl"), there[2])
    got = convolve(*there[:2], None, 1, 1, 1, 2, rows=rows, extras=extras).cpu().float()
    assert (got - want).abs().max() <= 1  # where the float is next to the middle of two
    assert (got == want).float().mean() > 0.99
    assert ((want == -128) | (want == 127)).any()


def test_packed_weights_are_those_of_now():
    x, w = integers(torch.int8, 1, 8, 9, 9).to("ocl"), integers(torch.int8, 16, 8, 3, 3).to("ocl")
    for change in (lambda: None, w.neg_, w[3:5].zero_):
        change()
        for image in (x, x.contiguous(memory_format=torch.channels_last), x.view(torch.uint8)):
            want = F.conv2d(image.cpu().double(), w.cpu().double(), None, 1, 1).int()
            for _ in range(2):
                assert torch.equal(convolve(image, w, None, 1, 1, 1, 1, True).cpu(), want)


def test_every_blocking_is_right():
    _C.force_solver("")
    seen = set(dlbackend.solvers.problems())
    for layout in (torch.contiguous_format, torch.channels_last):
        x, w = integers(torch.uint8, 2, 40, 29, 18).to("ocl"), integers(torch.int8, 200, 40, 3, 3).to("ocl")
        convolve(x.contiguous(memory_format=layout), w, None, 1, 1, 1, 1)
    problems = [p for p in dlbackend.solvers.problems() if p not in seen and p.startswith("conv_fwd:int32")]
    assert len(problems) == 2
    for problem in problems:
        rejected = _C.find_stats()["rejected"]
        _C.tune_problem(problem)
        assert _C.find_stats()["rejected"] == rejected
        assert any(
            s.solver.startswith("cpu_int8") and s.error is not None for s in dlbackend.solvers.solutions(problem)
        )


def test_what_it_takes():
    _C.force_solver("")
    assert _C.explain_problem(KEY).split(" for ")[0] == "cpu_int8"
    assert "cpu_int8: weights are int8" in _C.explain_problem(KEY.replace("w=i8", "w=u8"))
    code = f"import torch, dlbackend; from dlbackend import _C; print(_C.explain_problem({KEY!r}))"
    assert "cpu_int8: for CPU-like devices" in forked_python(code, DLBACKEND_EMULATE="class=gpu").stdout


@pytest.mark.parametrize("unit", ["vectors", "pairs"])
def test_units_that_the_cpu_has_besides(unit, request):
    flags = Path("/proc/cpuinfo").read_text()
    if "amx_int8" not in flags and (unit == "vectors" or "avx512_vnni" not in flags):
        pytest.skip("the tests themselves run what is left")
    done = run_python(
        "-m", "pytest", str(request.path), "-q", "-p", "no:cacheprovider", "-k", "test_conv or test_rows",
        DLBACKEND_EMULATE=f"int8={unit}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
