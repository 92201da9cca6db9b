"""Reductions and scans: PyTorch's own samples in every dtype, random layouts, accuracy, NaN, empty and out= cases."""

import itertools

import pytest
import torch
from common import DEVICE, on_device
from torch.testing._internal.common_methods_invocations import op_db

import dlbackend

OPS = [
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "max",
    "min",
    "aminmax",
    "argmax",
    "argmin",
    "any",
    "all",
    "count_nonzero",
    "nansum",
    "linalg.vector_norm",
    "norm",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "logsumexp",
    "trace",
    "equal",
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
    "logcumsumexp",
]
DTYPES = [torch.float32, torch.int64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool,
          torch.complex64, torch.float64]  # fmt: skip
# One sample in this many where a dtype only changes loads and stores: each kernel costs time to build.
SPARSE = 5


def moved(value):
    if isinstance(value, torch.Tensor):
        return value.detach().to(DEVICE)
    if isinstance(value, (list, tuple)):
        return type(value)(moved(v) for v in value)
    return {k: moved(v) for k, v in value.items()} if isinstance(value, dict) else value


def outcome(op, sample, move):
    try:
        return op(move(sample.input), *move(sample.args), **move(sample.kwargs)), None
    except Exception as error:
        return None, error


def assert_same(actual, expected):
    for a, e in zip(as_tuple(actual), as_tuple(expected), strict=True):
        if isinstance(e, torch.Tensor):
            torch.testing.assert_close(a.cpu(), e.detach(), equal_nan=True, check_stride=False)
        else:
            assert a == e


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", [o for o in op_db if o.name in OPS], ids=lambda o: o.formatted_name)
def test_samples(op, dtype):
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip("not an op for this dtype")
    dense = dtype in (torch.float32, torch.int64)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), 0, None, 1 if dense else SPARSE):
        expected, error = outcome(op, sample, lambda v: v)
        actual, device_error = outcome(op, sample, moved)
        assert type(device_error) is type(error), device_error
        if error is None:
            assert_same(actual, expected)


def layouts(x):
    """The same shape in many layouts."""
    yield x
    yield x.permute(2, 0, 1)
    yield x[::2, 1:, ::3]
    yield x[:, :1].expand(x.shape)
    yield x.transpose(0, 2)[1:]
    yield x.reshape(-1)[:720].view(2, 3, 4, 5, 6).permute(4, 0, 3, 1, 2)


DIMS = [(0,), (1,), (-1,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
FUNCTIONS = {
    "sum": lambda t, d, k: t.sum(d, keepdim=k),
    "amax": lambda t, d, k: t.amax(d, keepdim=k),
    "var_mean": lambda t, d, k: torch.var_mean(t, d, keepdim=k),
    "norm": lambda t, d, k: torch.linalg.vector_norm(t, 3, d, keepdim=k),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_layouts(name):
    torch.manual_seed(0)
    x = torch.randn(13, 37, 41)
    compiled = dlbackend.kernel_stats()["compiled"]
    for view, dims, keepdim in itertools.product(layouts(x), DIMS, (False, True)):
        expected = as_tuple(FUNCTIONS[name](view.double(), dims, keepdim))
        actual = as_tuple(FUNCTIONS[name](on_device(view), dims, keepdim))
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a.cpu().double(), e, rtol=1e-5, atol=1e-4)
    assert dlbackend.kernel_stats()["compiled"] - compiled <= 1  # one program, whatever the shapes


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_positions_and_scans_of_layouts(dim):
    torch.manual_seed(0)
    x = torch.randint(0, 9, (13, 37, 41)).float()  # many equal values: the first position counts
    for view in layouts(x):
        for fn in (lambda t: t.max(dim), lambda t: t.argmin(dim), lambda t: t.cumsum(dim), lambda t: t.cummax(dim)):
            assert_same(fn(on_device(view)), fn(view))
    assert torch.equal(on_device(x.permute(2, 0, 1)).argmax().cpu(), x.permute(2, 0, 1).argmax())


def test_more_dimensions_than_a_kernel_takes():
    x = torch.randn([2] * 16, dtype=torch.float64)
    dims = tuple(range(0, 16, 2))
    torch.testing.assert_close(x.to(DEVICE).sum(dims).cpu(), x.sum(dims))
    torch.testing.assert_close(x.to(DEVICE).amax(dims, keepdim=True).cpu(), x.amax(dims, keepdim=True))


def test_sums_are_as_accurate_as_on_the_cpu():
    torch.manual_seed(0)
    x = torch.rand(10_000_000)
    exact = x.double().sum()
    error = (x.to(DEVICE).sum().cpu().double() - exact).abs()
    assert error <= max((x.sum().double() - exact).abs(), exact * 2e-7)
    columns = x.view(-1, 100)
    actual, exact = columns.to(DEVICE).sum(0).cpu().double(), columns.double().sum(0)
    assert ((actual - exact).abs() / exact).max() < 5e-7


def test_variance_keeps_its_digits_beside_a_large_mean():
    torch.manual_seed(0)
    x = torch.randn(1000, 300) + 1e4
    for dim in (0, 1, (0, 1)):
        torch.testing.assert_close(x.to(DEVICE).var(dim).cpu().double(), x.double().var(dim), rtol=1e-4, atol=1e-6)


def test_nan_wins():
    x = torch.randn(70, 90)
    x[3, 5] = x[60, 80] = float("nan")
    y = x.to(DEVICE)
    for fn in (torch.amax, torch.amin):
        for dim in (0, 1, (0, 1)):
            torch.testing.assert_close(fn(y, dim).cpu(), fn(x, dim), equal_nan=True)
    for dim in (0, 1):
        for name in ("max", "min", "cummax", "cummin"):
            assert_same(getattr(y, name)(dim), getattr(x, name)(dim))
    assert y.argmax().item() == x.argmax().item()
    assert y.max().isnan()


def test_rows_without_a_best_element():
    x = torch.full((5, 100), -float("inf"))
    assert_same(x.to(DEVICE).max(1), x.max(1))
    assert_same((-x).to(DEVICE).min(1), (-x).min(1))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_empty(shape):
    x, y = torch.empty(shape), torch.empty(shape, device=DEVICE)
    for name in ("sum", "mean", "prod", "any", "all", "count_nonzero", "var", "amax", "max", "argmax", "cumsum"):
        for arguments in ((), (0,), (-1,)):
            if name == "cumsum" and not arguments:
                continue
            try:
                expected, error = getattr(x, name)(*arguments), None
            except Exception as e:
                error = e
            if error:
                with pytest.raises(type(error)):
                    getattr(y, name)(*arguments)
            else:
                assert_same(getattr(y, name)(*arguments), expected)


def test_dtypes_of_results():
    x = torch.randint(0, 200, (50, 60), dtype=torch.uint8)
    y = x.to(DEVICE)
    assert_same(y.sum(0), x.sum(0))
    assert_same(y.sum(0, dtype=torch.int32), x.sum(0, dtype=torch.int32))
    assert_same(y.sum(dtype=torch.float32), x.sum(dtype=torch.float32))
    assert_same(y.any(0), x.any(0))
    assert_same((y > 3).sum(1), (x > 3).sum(1))
    half = torch.rand(300, 300).half()
    torch.testing.assert_close(half.to(DEVICE).sum(dtype=torch.float32).cpu(), half.float().sum())
    torch.testing.assert_close(half.to(DEVICE).sum().cpu(), half.sum())  # held in float until stored
    with pytest.raises(RuntimeError):
        y.mean()


def test_out():
    x = torch.randn(30, 40)
    y = x.to(DEVICE)
    out = torch.empty(2, 40, device=DEVICE).t()  # any strides
    torch.sum(torch.stack([y, -y], 2), 0, out=out)
    torch.testing.assert_close(out.cpu(), torch.stack([x.sum(0), -x.sum(0)], 1))
    with pytest.raises(RuntimeError, match="dtype"):
        torch.amax(y, 0, out=torch.empty(40, dtype=torch.int64, device=DEVICE))
    torch.cumsum(y, 0, out=y)
    torch.testing.assert_close(y.cpu(), x.cumsum(0))


INTO = {
    "max": torch.max,
    "min": torch.min,
    "std": lambda x, out: torch.std(x, 0, out=out),
    "var": lambda x, out: torch.var(x, 0, out=out),
}


@pytest.mark.parametrize("name", INTO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_out_of_another_dtype(name, dtype):
    """Cast, or refused, as on the CPU."""
    fn, shape = INTO[name], () if name in ("max", "min") else (2,)
    x = torch.tensor([[3, 7], [4, 0], [1, 2]]).to(dtype)
    for to in (torch.float64, torch.float32, torch.float16, torch.int64, torch.uint8, torch.complex64, torch.bool):
        try:
            expected = fn(x, out=torch.zeros(shape, dtype=to))
        except (RuntimeError, NotImplementedError) as error:
            with pytest.raises(type(error)):
                fn(x.to(DEVICE), out=torch.zeros(shape, dtype=to, device=DEVICE))
        else:
            assert_same(fn(x.to(DEVICE), out=torch.zeros(shape, dtype=to, device=DEVICE)), expected)


def places(device):
    return torch.zeros(4, dtype=torch.int64, device=device)


# An input and an out= tensor for one row, or for all.
OVERLAPS = {
    "cumsum": lambda x, row, all: torch.cumsum(x, 0, out=all),
    "cumprod": lambda x, row, all: torch.cumprod(x, 1, out=all),
    "logcumsumexp": lambda x, row, all: torch.logcumsumexp(x, 0, out=all),
    "max": lambda x, row, all: torch.max(x, 0, out=(row, places(x.device))),
    "min": lambda x, row, all: torch.min(x, 0, out=(row, places(x.device))),
    "positions": lambda x, row, all: torch.max(x, 0, out=(torch.empty_like(x[0]), row.long()[:1].expand(4))),
    "aminmax": lambda x, row, all: torch.aminmax(x, dim=0, out=(row, torch.empty_like(x[0]))),
    "mean": lambda x, row, all: torch.mean(x, 0, out=row),
    "sum": lambda x, row, all: torch.sum(x, 0, out=row),
    "prod": lambda x, row, all: torch.prod(x, 0, out=row),
    "amax": lambda x, row, all: torch.amax(x, 0, out=row),
    "std": lambda x, row, all: torch.std(x, 0, out=row),
}


@pytest.mark.parametrize("name", OVERLAPS)
@pytest.mark.parametrize("how", ["expanded", "part of the input", "the input"])
def test_out_that_overlaps(name, how):
    """Refused where the CPU refuses it: plain reductions accept everything."""

    def call(device):
        memory = torch.rand(6, 4, device=device)
        x = memory[:4]
        if how == "expanded":
            row = torch.zeros(1, device=device)
            return OVERLAPS[name](x, row.expand(4), row.expand(4, 4))
        first = 1 if how == "part of the input" else 0
        return OVERLAPS[name](x, memory[first], memory[first : first + 4])

    try:
        call("cpu")
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=str(error)[:60]):
            call(DEVICE)
    else:
        call(DEVICE)


def test_equal():
    x = torch.randn(100, 70)
    y = x.to(DEVICE)
    assert torch.equal(y, y.t().contiguous().t())
    assert not torch.equal(y, y + 1)
    assert not torch.equal(y, y[1:])
    y[5, 5] = float("nan")
    assert not torch.equal(y, y)


def test_long_scans():
    torch.manual_seed(0)
    x = torch.randn(300_000)
    torch.testing.assert_close(x.to(DEVICE).cumsum(0).cpu().double(), x.double().cumsum(0), rtol=1e-5, atol=2e-3)
    columns = x.view(-1, 3)
    assert_same(columns.to(DEVICE).cummin(0), columns.cummin(0))


def test_equal_of_two_dtypes():
    def of(value, dtype):
        return torch.tensor([value], dtype=dtype)

    for a, b in [
        (of(1, torch.int64), of(1, torch.float32)),
        (of(1, torch.int64), of(1, torch.bool)),
        (of(1.5, torch.float32), of(1, torch.int64)),
        (of(1, torch.complex64), of(1, torch.float32)),
        (of(1, torch.float16), of(1, torch.bfloat16)),
        (of(0.1, torch.float64), of(0.1, torch.float32)),
        (of(2**24 + 1, torch.int64), of(2**24, torch.float32)),
        (of(2, torch.int64), of(2, torch.uint8)),
    ]:
        assert torch.equal(a.to(DEVICE), b.to(DEVICE)) is torch.equal(a, b)


def test_scans_of_many_separate_dimensions():
    """More than kernels take: eleven, no two of which join."""
    x = torch.randn([2] * 11).permute(*range(0, 11, 2), *range(1, 11, 2))
    for fn in (lambda t: t.cumsum(3), lambda t: t.cummax(4).values, lambda t: t.cummax(4).indices):
        torch.testing.assert_close(fn(x.to(DEVICE)).cpu(), fn(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_nansum_rounds_once(dtype):
    """Sums are kept in float: what comes out is the exact sum's rounding, as on the CPU."""
    x = (torch.randn(5000, generator=torch.Generator().manual_seed(0)) + 0.1).to(dtype)
    x[::7] = torch.nan
    for actual in (x.to("ocl").nansum(), x[None].to("ocl").nansum(1)[0]):
        assert actual.item() == x.double().nansum().to(dtype).item()


def test_logsumexp_of_infinities_in_one_launch(background_at_rest):
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[inf, 1], [-inf, -inf], [nan, 2], [-inf, 3], [inf, -inf], [-inf, inf], [1000, 1001]])
    y = x.to(DEVICE)
    for dim in (0, 1, (0, 1)):
        torch.testing.assert_close(torch.logsumexp(y, dim).cpu(), torch.logsumexp(x, dim), equal_nan=True)
    torch.ocl.synchronize()
    before = dlbackend._C.kernel_stats()["launches"]
    torch.logsumexp(y, 1)
    torch.ocl.synchronize()
    assert dlbackend._C.kernel_stats()["launches"] == before + 1
