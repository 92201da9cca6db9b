"""Problems, choice of solvers, forcing one, and every solver against the float64 CPU result."""

import pytest
import torch
import torch.nn.functional as F
from common import away_from_zero, on_device, on_gpu_class, relative_error
from convolutions import SMALL_CONVS
from fresh_process import forked_python

import dlbackend
from dlbackend import _C

GEMM_KEY = "gemm:float32 b=2 m=33 n=65 k=40 sa=1320,40,1 sb=2600,65,1 sc=2145,65,1 sd=0,0,1 add=1"
CONV_KEY = (
    "conv_fwd:float32 n=2 c=8 k=16 g=1 in=1,9,10 out=1,9,10 f=1,3,3 s=1,1,1 p=0,1,1 d=1,1,1 "
    "sx=720,90,0,10,1 sw=72,9,0,3,1 sy=1440,90,0,10,1 bias=1"
)
CPU_LIKE = not on_gpu_class()


def solvers(key: str) -> dict[str, str]:
    """Name -> "applicable" or the reason why not."""
    lines = _C.explain_problem(key).splitlines()[1:]
    return dict(line.strip().split(": ", 1) for line in lines)


KEYS = [GEMM_KEY, CONV_KEY, CONV_KEY.replace("conv_fwd", "conv_bwd_weight"), GEMM_KEY + " tf32=1", CONV_KEY + " tf32=1"]
MALFORMED = ["", "gemm", "gemm:float31 b=1", GEMM_KEY[:-6], "pool:float32 n=1"]
MALFORMED += [GEMM_KEY + end for end in (" x=1", " tf32=0", " tf32=7", " tf32=12", " tf32=1 tf32=1", " tf32")]
MALFORMED += [(GEMM_KEY + " tf32=1").replace("float32", "float64")]


@pytest.mark.parametrize("key", KEYS)
def test_key_round_trips(key):
    head = _C.explain_problem(key).splitlines()[0]
    name, printed = head.split(" for ", 1)
    assert printed == key
    assert name in solvers(key)


@pytest.mark.parametrize("key", MALFORMED)
def test_malformed_key(key):
    with pytest.raises(ValueError, match="problem key"):
        _C.explain_problem(key)


def test_unknown_solver_lists_what_there_is():
    with pytest.raises(RuntimeError, match=r"no solver is named 'fastest'.*reference"):
        _C.force_solver("fastest")
    with pytest.raises(RuntimeError, match=r"no op 'pool'.*conv_fwd"):
        _C.force_solver("pool:reference")
    with pytest.raises(RuntimeError, match=r"no solver of gemm is named 'gemm_1x1'"):
        _C.force_solver("gemm:gemm_1x1")


def test_inapplicable_solver_gives_everyones_reason():
    _C.force_solver("conv_fwd:gemm_1x1")
    x, w = torch.randn(1, 4, 8, 8, device="ocl"), torch.randn(4, 4, 3, 3, device="ocl")
    with pytest.raises(
        RuntimeError, match=r"(?s)'gemm_1x1' is not applicable.*more than one tap.*reference: applicable"
    ):
        F.conv2d(x, w)
    _C.force_solver("")
    assert F.conv2d(x, w).shape == (1, 4, 6, 6)


def test_environment_forces():
    code = "import torch, dlbackend; a = torch.ones(2, 2, device='ocl'); print((a @ a).cpu())"
    bad = forked_python(code, DLBACKEND_SOLVER="no_such_solver")
    assert "no solver is named 'no_such_solver'" in bad.stderr
    good = forked_python(code, DLBACKEND_SOLVER="gemm:reference,conv_fwd:reference")
    assert "2." in good.stdout, good.stderr


@pytest.mark.parametrize("solver", list(solvers(GEMM_KEY)))
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 70, 33), (4, 5, 600), (100, 37, 300), (65, 130, 64)])
def test_every_gemm_solver(solver, m, n, k):
    for layout in range(4):
        a = torch.randn(2, k, m).mT if layout & 1 else torch.randn(2, m, k)
        b = torch.randn(2, n, k).mT if layout & 2 else torch.randn(2, k, n)
        c = torch.randn(n)
        _C.force_solver(f"gemm:{solver}")
        try:
            out = torch.baddbmm(c.to("ocl"), a.to("ocl"), b.to("ocl"), beta=0.5, alpha=2)
        except RuntimeError as error:
            if "is not applicable" not in str(error):
                raise
            pytest.skip(str(error).splitlines()[0])
        assert relative_error(out, torch.baddbmm(c.double(), a.double(), b.double(), beta=0.5, alpha=2)) < 1e-5


@pytest.mark.parametrize("solver", ["cpu_small", "cpu_packed"] if CPU_LIKE else [])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_strides_of_gemm_solvers(solver, dtype):
    """Every operand with gaps, transposed, broadcast; sizes around the kernels' tiles of 6, 16 and 64, and with rows
    of b a kilobyte apart, or many rows of a."""
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    _C.force_solver(f"gemm:{solver}")
    for m, n, k in ((8, 8, 8), (13, 16, 5), (6, 64, 17), (19, 81, 33), (7, 130, 70), (20, 256, 70), (75, 48, 66)):
        a, b = torch.randn(5, 2 * m, k).to(dtype)[:, ::2], torch.randn(5, k, 2 * n).to(dtype)[:, :, ::2]
        for a_ in (a, a.mT.contiguous().mT, a[:1].expand(5, -1, -1)):
            for b_ in (b, b.contiguous(), b.mT.contiguous().mT):
                for d in (None, torch.randn(n).to(dtype), torch.randn(5, n, m).to(dtype).mT):
                    wide = a_.double() @ b_.double() if d is None else d.double() - 2 * (a_.double() @ b_.double())
                    ad, bd = on_device(a_), on_device(b_)
                    got = torch.bmm(ad, bd) if d is None else torch.baddbmm(d.to("ocl"), ad, bd, alpha=-2)
                    assert relative_error(got, wide) < tolerance, (m, n, k)


CONVS = [  # n, c, k, groups, size, filter, stride, padding, dilation
    *SMALL_CONVS,
    (1, 34, 80, 2, (21, 30), 3, 1, 0, 1),
    (3, 4, 6, 2, (33, 30), 7, 1, 3, 1),
    (1, 2, 3, 1, (40, 17), 5, 1, 6, 3),
    (2, 10, 10, 10, (14, 14), 9, 1, 4, 1),
    (1, 8, 4, 4, (23, 9), 3, 2, 4, 3),
]


@pytest.mark.parametrize("solver", list(solvers(CONV_KEY)))
@pytest.mark.parametrize("case", CONVS, ids=str)
def test_every_conv_solver(solver, case):
    n, c, k, groups, size, f, stride, padding, dilation = case
    x, w, bias = torch.randn(n, c, *size), torch.randn(k, c // groups, f, f), torch.randn(k)
    args = ([stride] * 2, [padding] * 2, [dilation] * 2)
    expected = F.conv2d(x.double(), w.double(), bias.double(), *args, groups)
    grad = torch.randn(expected.shape)

    def backward(device: str, dtype: torch.dtype):
        tensors = (t.to(device, dtype) for t in (grad, x, w))
        return torch.ops.aten.convolution_backward(*tensors, None, *args, False, [0, 0], groups, [True, True, False])

    wanted = backward("cpu", torch.float64)
    ran = 0
    for op, run, want in (
        ("conv_fwd", lambda: F.conv2d(x.to("ocl"), w.to("ocl"), bias.to("ocl"), *args, groups), expected),
        ("conv_bwd_data", lambda: backward("ocl", torch.float32)[0], wanted[0]),
        ("conv_bwd_weight", lambda: backward("ocl", torch.float32)[1], wanted[1]),
    ):
        _C.force_solver(f"{op}:{solver}")
        try:
            result = run()
        except RuntimeError as error:
            if "is not applicable" not in str(error):
                raise
            continue
        ran += 1
        assert relative_error(result, want) < 1e-5, (op, solver)
    if ran == 0:
        pytest.skip(f"{solver} solves no direction of this one")


@pytest.mark.skipif(not CPU_LIKE, reason="names the solvers for CPU-like devices")
@pytest.mark.parametrize("size", [(5, 4), (18, 35)], ids=str)  # small images take F(2x2,3x3), large ones F(4x4,3x3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_winograd_layouts(size, dtype):
    tolerance = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    _C.force_solver(",".join(f"{op}:cpu_winograd" for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_weight")))
    x, w = torch.randn(2, 36, 2 * size[0], size[1]).to(dtype), torch.randn(33, 36, 3, 3).to(dtype)
    views = (
        lambda t: t,
        lambda t: t.to(memory_format=torch.channels_last),
        lambda t: t.mT.contiguous().mT,
    )
    for view_x in views:
        for view_w in views:
            for padding in ((1, 1), (2, 0)):
                a, b = (t[:, :, ::2].requires_grad_() for t in (view_x(x).to("ocl"), view_x(x).double()))
                aw, bw = view_w(w).to("ocl").requires_grad_(), w.double().requires_grad_()
                y, want = F.conv2d(a, aw, padding=padding), F.conv2d(b, bw, padding=padding)
                assert relative_error(y.detach(), want.detach()) < tolerance
                grad = torch.randn(want.shape).to(dtype)
                y.backward(view_x(grad).to("ocl"))
                want.backward(grad.double())
                assert relative_error(a.grad, b.grad) < tolerance
                assert relative_error(aw.grad, bw.grad) < tolerance


def test_every_config_is_right():
    """Each blocking that measuring may pick gives the reference's result."""
    seen = set(dlbackend.solvers.problems())
    for c, k, groups, size, stride in ((40, 96, 1, (29, 18), 1), (36, 72, 2, (13, 31), 2)):
        x = torch.randn(3, c, *size, device="ocl", requires_grad=True)
        w = torch.randn(k, c // groups, 3, 3, device="ocl", requires_grad=True)
        F.conv2d(x, w, None, stride, 1, 1, groups).sum().backward()
    torch.randn(131, 700, device="ocl") @ torch.randn(300, 700, device="ocl").mT
    torch.randn(7, 50, 90, device="ocl") @ torch.randn(7, 90, 70, device="ocl")
    problems = {p for p in set(dlbackend.solvers.problems()) - seen if p.startswith(("gemm:", "conv_"))}
    assert len(problems) == 8
    for problem in problems:
        rejected = _C.find_stats()["rejected"]
        _C.tune_problem(problem)
        solutions = dlbackend.solvers.solutions(problem)
        assert _C.find_stats()["rejected"] == rejected, solutions
        checked = [s for s in solutions if s.error is not None]
        assert all(s.error < 1e-5 for s in checked)
        if CPU_LIKE:
            assert len({s.solver for s in checked}) >= 2, solutions
            assert len(checked) >= 4, solutions


UNFOLDED = [  # rank, channels, filters, groups, stride, padding, dilation, transposed
    (1, 5, 4, 1, 2, 1, 1, False),
    (2, 6, 8, 2, 1, 2, 2, False),
    (2, 4, 6, 1, 2, 1, 1, True),
    (3, 4, 4, 4, (1, 2, 1), (0, 1, 1), 1, False),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("case", UNFOLDED, ids=str)
def test_unfold(case, dtype):
    rank, c, k, groups, stride, padding, dilation, transposed = case
    size = (2, c, *(9, 8, 7)[:rank])
    x = torch.randn(size, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)
    filters = (c, k // groups) if transposed else (k, c // groups)
    w, bias = torch.randn(*filters, *(3, 2, 3)[:rank]).to(dtype), torch.randn(k).to(dtype)
    conv = getattr(F, f"conv{'_transpose' * transposed}{rank}d")
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    wide = torch.complex128 if dtype.is_complex else torch.float64
    halves = dtype in (torch.float16, torch.bfloat16)  # refused for input gradients
    _C.force_solver("conv_fwd:unfold,conv_bwd_weight:unfold" + ("" if halves else ",conv_bwd_data:unfold"))
    layouts = [torch.contiguous_format] + ([torch.channels_last] if rank == 2 else [])
    for layout_x in layouts:
        for layout_w in layouts:
            inputs = (x.to(memory_format=layout_x), w.to(memory_format=layout_w), bias)
            got = [t.to("ocl").requires_grad_() for t in inputs]
            want = [t.to(wide, copy=True).requires_grad_() for t in inputs]
            y, expected = conv(*got, **settings), conv(*want, **settings)
            grad = torch.randn_like(expected).to(dtype)
            y.backward(grad.to("ocl"))
            expected.backward(grad.to(wide))
            tolerance = {torch.float64: 1e-13, torch.float16: 1e-3, torch.bfloat16: 8e-3}.get(dtype, 1e-6)
            for a, b in zip([y, *(t.grad for t in got)], [expected, *(t.grad for t in want)], strict=True):
                difference = (a.detach().cpu().to(wide) - b.detach()).norm() / b.detach().norm()
                assert difference < tolerance, (layout_x, layout_w)


@pytest.mark.skipif(not CPU_LIKE, reason="names the solvers for CPU-like devices")
def test_fft_keeps_infinities_where_they_are():
    x, w = torch.randn(2, 3, 20, 22), torch.randn(4, 3, 5, 5)
    x[0, 1, 3, 4], x[0, 2, 15, 20] = float("inf"), float("nan")
    _C.force_solver("conv_fwd:fft")
    torch.testing.assert_close(
        F.conv2d(x.to("ocl"), w.to("ocl")).cpu(), F.conv2d(x, w), equal_nan=True, rtol=1e-4, atol=1e-4
    )


def test_winograd_keeps_infinities_where_they_are():
    x, w = torch.randn(2, 20, 19, 22), away_from_zero(35, 20, 3, 3)
    x[0, 3, 7, 7], x[1, 9, 15, 2], x[1, 1, 0, 19] = float("inf"), float("nan"), 3e38
    _C.force_solver(f"conv_fwd:{'cpu' if CPU_LIKE else 'gpu'}_winograd")
    result = F.conv2d(x.to("ocl"), w.to("ocl"), padding=1).cpu()
    expected = F.conv2d(x, w, padding=1)
    assert not expected.isfinite().all()
    torch.testing.assert_close(result, expected, equal_nan=True, rtol=1e-5, atol=1e-4)
    grad = away_from_zero(*expected.shape)
    x[1] = torch.randn(x[1].shape)

    def weight_grad(device: str, dtype: torch.dtype) -> torch.Tensor:
        a, b = x.to(device, dtype), w.to(device, dtype).requires_grad_()
        F.conv2d(a, b, padding=1).backward(grad.to(device, dtype))
        return b.grad.double().cpu()

    _C.force_solver(f"conv_bwd_weight:{'cpu' if CPU_LIKE else 'gpu'}_winograd")
    result, expected = weight_grad("ocl", torch.float32), weight_grad("cpu", torch.float64)
    assert expected.isinf().any()
    assert expected.isfinite().any()
    finite = expected[expected.isfinite()]
    # In units of the results' standard deviation, 40 draws had errors of at most 6.1e-6, PyTorch's on the CPU 5.4e-6.
    torch.testing.assert_close(result, expected, equal_nan=True, rtol=0, atol=1e-5 * finite.std().item())


@pytest.mark.skipif(not CPU_LIKE, reason="names the solvers for CPU-like devices")
def test_choice_on_cpu_like_devices():
    def taken(key: str) -> str:
        return _C.explain_problem(key).split(" for ")[0]

    assert taken(GEMM_KEY) == "cpu_small"
    assert taken(GEMM_KEY.replace("k=40", "k=2000")) == "cpu_packed"
    assert taken(GEMM_KEY.replace("m=33", "m=1")) == "cpu_gemv"
    # With images of 9 x 10 the two take equally long on a CPU with vectors of 256 bits.
    many_channels = (
        CONV_KEY.replace("k=16", "k=64")
        .replace("c=8", "c=64")
        .replace("in=1,9,10 out=1,9,10", "in=1,28,28 out=1,28,28")
    )
    assert taken(many_channels) == "cpu_winograd"
    assert taken(many_channels.replace("s=1,1,1", "s=1,2,2").replace("out=1,28,28", "out=1,14,14")) == "cpu_implicit"
    depthwise = (
        CONV_KEY.replace("g=1", "g=8").replace("k=16", "k=8").replace("in=1,9,10 out=1,9,10", "in=1,56,56 out=1,56,56")
    )
    assert taken(depthwise) == "cpu_direct"
    assert taken(GEMM_KEY.replace("float32", "int64")) == "cpu_blocked"


NEW_SHAPES = """
import dlbackend, torch
import torch.nn.functional as F

def step(size):
    x = torch.randn(2, 4, size, size + 1, device="ocl")
    w = torch.randn(8, 4, 3, 3, device="ocl", requires_grad=True)
    y = F.conv2d(x, w, padding=1).flatten(1)
    (y @ torch.randn(y.size(1), 7 + size, device="ocl")).mul(2).backward(torch.ones(2, 7 + size, device="ocl"))

def programs():
    dlbackend.solvers.wait()  # for what is built in the background
    stats = dlbackend.kernel_stats()
    return stats["compiled"], stats["loaded"]

for size in (8, 9, 40):  # small and large problems may take different solvers
    step(size)
before = programs()
for size in range(10, 40):
    step(size)
print(*before, *programs())
"""


def test_new_shapes_compile_nothing(tmp_path):
    """In a folder of its own: what other processes store meanwhile counts as built, and would be loaded."""
    done = forked_python(NEW_SHAPES, DLBACKEND_CACHE_DIR=str(tmp_path), DLBACKEND_PACKS="")
    assert done.stdout, done.stderr
    compiled, loaded, compiled_after, loaded_after = map(int, done.stdout.split())
    assert compiled > 0
    assert (compiled_after, loaded_after) == (compiled, loaded)
