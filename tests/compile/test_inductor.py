"""torch.compile's default backend on the device: kernels that Inductor generates, against float64 on the CPU."""

import collections
import copy
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from common import DEVICE
from torch import nn

import dlbackend
from dlbackend.compile import PACKAGES_OF
from dlbackend.compile.inductor import expressions, kernel, overrides, patches, runtime

FACTS = dlbackend._C.device_properties(0)


def to_double(value):
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.detach().double() if is_float else value


def check(function, *arguments, dtype=torch.float32, rtol=None, **options):
    """Values of a compiled function on the device against those of float64 on the CPU, as close as eager mode's are."""
    given = [a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments]
    on_device = [a.to(DEVICE) if isinstance(a, torch.Tensor) else a for a in given]
    expected = function(*map(to_double, given))
    actual = torch.compile(function, fullgraph=True, **options)(*on_device)
    plain = function(*on_device)
    if isinstance(expected, torch.Tensor):
        expected, actual, plain = (expected,), (actual,), (plain,)
    for e, a, p in zip(expected, actual, plain, strict=True):
        assert (a.dtype, a.shape) == (p.dtype, p.shape)
        assert a.stride() == p.stride() or not a.numel()
        tolerance = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(a.dtype, 1e-10)
        tolerance = tolerance if rtol is None else rtol
        torch.testing.assert_close(a.cpu().double(), e.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def gradients(function, arguments, parameters):
    result = function(*arguments)
    wanted = [a for a in arguments if a.requires_grad] + list(parameters)
    return [result.detach(), *torch.autograd.grad(result.float().square().mean(), wanted)]


def check_training(model, *arguments, tolerance=1e-4):
    """Results and gradients of a module, compiled and not."""
    model = model.to(DEVICE)
    given = [a.to(DEVICE).requires_grad_(a.is_floating_point()) for a in arguments]
    parameters = [p for p in model.parameters() if p.requires_grad]
    expected = gradients(model, given, parameters)
    for a, e in zip(gradients(torch.compile(model, fullgraph=True), given, parameters), expected, strict=True):
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance)


def launches(function, *arguments):
    function(*arguments)
    torch.ocl.synchronize()
    before = dlbackend._C.kernel_stats()["launches"]
    function(*arguments)
    torch.ocl.synchronize()
    return dlbackend._C.kernel_stats()["launches"] - before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_pointwise_and_reductions_of_floats(dtype):
    x = torch.randn(33, 70)

    def function(x):
        y = (x * 2 + 1).relu() - x.sin()
        return y, y.sum(1), x.softmax(-1), x.amax(0), torch.var_mean(x, 1)[0], F.layer_norm(x, (70,))

    check(function, x, dtype=dtype)


def test_special_values():
    values = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-42, 3.0, -2.5]
    x = torch.tensor(values).repeat(9, 1).contiguous()

    def function(x):
        ops = (x.max(1)[0], x.amin(0), x[:, 3:].argmax(1), torch.maximum(x, x.flip(1)), x.clamp(-1, 1), x.isnan())
        return *ops, x.sign(), x[:, 1:3].amax(1)

    expected, actual = function(x), torch.compile(function, fullgraph=True)(x.to(DEVICE))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=0, atol=0, equal_nan=True)


def test_integers_and_bools_are_exact():
    x, y = torch.randint(-90, 90, (40, 30)), torch.randint(1, 9, (30,))

    def function(x, y, mask):
        narrow = x.to(torch.int8)
        quotients = (x // y, x % y, torch.fmod(x, y), x << 2, x >> 1, x ^ y, ~x, x.clamp(-3, 4), -x, x.abs())
        others = (narrow + narrow, narrow.to(torch.uint8) * 3, x / y, (x > 3) & mask, mask.sum(0), ~mask)
        reduced = (x.sum(0), x[:, :3].prod(1), x.amax(1), x.argmin(0), mask.any(1), mask.all(0), x.min(1)[0])
        return *quotients, *others, *reduced

    arguments = (x, y, x > 0)
    actual = torch.compile(function, fullgraph=True)(*(a.to(DEVICE) for a in arguments))
    for a, e in zip(actual, function(*arguments), strict=True):
        assert a.dtype == e.dtype
        torch.testing.assert_close(a.cpu(), e)


@pytest.mark.parametrize(
    "name", ["exp", "tanh", "erf", "lgamma", "digamma", "log1p", "atan2", "pow", "sigmoid", "rsqrt"]
)
def test_ops_are_the_rows_of_eager_mode(name):
    x = torch.rand(1000, device=DEVICE) * 3 + 0.1
    op = getattr(torch, name)
    arguments = (x, x.flip(0)) if name in ("atan2", "pow") else (x,)
    compiled = torch.compile(op, fullgraph=True)(*arguments)
    assert torch.equal(compiled, op(*arguments))


@pytest.mark.parametrize("shape", [(), (1,), (0, 5), (7, 5, 3), (2, 3, 4, 5)], ids=str)
def test_layouts(shape):
    x = torch.randn(shape)
    strided = torch.randn(*shape[:-1], 2 * shape[-1] if shape else 1)[..., ::2] if shape else x

    def function(x, y):
        turned = x.permute(list(reversed(range(x.dim()))))
        return (turned * 2).contiguous(), x + y.sum(), (x + y).sum() if x.dim() else x.exp(), x.flatten() - 1

    check(function, x, strided)


def test_indices():
    x, i = torch.randn(20, 12), torch.randint(-12, 12, (20, 12))
    rows = torch.randint(20, (50,))

    def function(x, i, rows):
        padded = F.pad(torch.cat([x, x[:, :3]], 1), (2, 1), value=0.5)
        added = torch.zeros_like(x).index_put((rows,), x[rows], accumulate=True)
        return padded, x.gather(1, i % 12), added, x[rows].cumsum(0), torch.where(i > 0, x, -x), x.tril(), x.flip(0)

    check(function, x, i, rows)


@pytest.mark.parametrize("shape", [(3, 4099), (4099, 3), (40, 3000), (1, 300000), (257, 65)], ids=str)
def test_reductions_of_all_shapes(shape):
    x = torch.randn(shape) + 0.5

    def function(x):
        centred = x - x.mean(1, keepdim=True)
        return x.sum(0), x.sum(), centred.square().mean(1), torch.var_mean(x), x.amax(0), x.argmax(1), x.softmax(0)

    check(lambda x: tuple(t for r in function(x) for t in (r if isinstance(r, tuple) else (r,))), x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_reductions_of_turned_rows(dynamic):
    """Whose places in memory are no sums of multiples of the indices."""

    def function(x):
        turned = torch.roll(x.flip(1), 3, 1)
        return turned.sum(0), (turned * x).sum(1), F.pad(x, (3, 3), mode="reflect").sum(1)

    check(function, torch.randn(300, 196), dynamic=dynamic)


def test_values_that_outlive_their_loop():
    """What one loop computes and the next needs is kept or computed anew."""
    x, w = torch.randn(50, 96), torch.randn(96)

    def function(x, w):
        e = (x * w).exp()
        normed = e / e.sum(1, keepdim=True)
        masked = F.pad(normed, (0, 4)) + 1
        return normed, (normed - normed.amax(1, keepdim=True)).tanh(), masked.log_softmax(1), normed.sum(0)

    check(function, x, w)
    assert launches(torch.compile(lambda x: (x - 1).softmax(1) * 2), x.to(DEVICE)) == 1


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        (nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 8)), (torch.randn(10, 24),)),
        (
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            (torch.randn(2, 3, 12, 12),),
        ),
        (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0), (torch.randn(2, 8, 32),)),
        (nn.Embedding(30, 16), (torch.randint(30, (4, 7)),)),
    ],
    ids=["mlp", "conv", "encoder", "embedding"],
)
def test_training(model, arguments):
    torch.manual_seed(0)
    check_training(model, *arguments)


class Attention(nn.Module):
    def forward(self, q):
        return F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).reshape(q.shape[0], -1)


@pytest.mark.parametrize("dims", [2, 3])
def test_average_pools_whose_windows_reach_beyond_the_input(dims):
    """Inductor's own formulas divide by another count there."""
    pool = getattr(F, f"avg_pool{dims}d")

    def pools(x):
        x = x.exp()
        return pool(x, 2, 2, ceil_mode=True), pool(x, 3, 2, 1, True), pool(x, 3, 2, 1, True, True, 7), pool(x, 3, 2, 1)

    x = torch.randn(2, 3, *(9, 7, 5)[:dims])
    grads = []
    for function, y in ((pools, x.double()), (torch.compile(pools), x.to(DEVICE))):
        y.requires_grad_()
        results = function(y)
        sum((r * r.detach().cos()).sum() for r in results).backward()
        grads.append([*results, y.grad])
    for expected, actual in zip(*grads, strict=True):
        torch.testing.assert_close(actual.cpu().double(), expected, rtol=1e-4, atol=1e-5)


def test_attention_and_losses():
    check_training(Attention(), torch.randn(2, 4, 16, 32))
    scores, targets = torch.randn(20, 50), torch.randint(50, (20,))
    check(lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), scores, targets)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_layouts_of_convolutions(layout):
    """Gradients have the layouts of eager mode, which those of the input and the weight decide together."""
    net = nn.Sequential(nn.Conv2d(6, 8, 2, 2), nn.BatchNorm2d(8), nn.Hardswish(), nn.Conv2d(8, 4, 3, groups=2))
    permuted = torch.randn(2, 9, 11, 6).permute(0, 3, 1, 2)  # channels last where the weights may be contiguous
    check_training(net.to(memory_format=layout), permuted)


def counted_forms(monkeypatch):
    """How often each form of kernels was chosen."""
    counts = collections.Counter()
    choose = kernel.OpenCLKernel._choose_form

    def choose_and_count(self):
        form = choose(self)
        counts[form.name] += self.features.is_reduction()
        return form

    monkeypatch.setattr(kernel.OpenCLKernel, "_choose_form", choose_and_count)
    return counts


def test_forms_of_reductions(monkeypatch):
    """A group, or a run of a CPU's loop, for each result whose elements lie together, also where other operands have
    one element for each result; else results side by side.
    """
    together, apart = ("RUNS", "LANES") if FACTS.kernel_class == "cpu" else ("GROUPS", "ITEMS")
    x, rows, columns = (torch.randn(s, device=DEVICE) for s in ((600, 500), (600, 1), (1, 500)))
    channels, number = x[0, :100].view(100, 1, 1), x[:1, :1]
    for function, arguments, form in (
        (lambda x, a, b, c: ((x - a) * b * c).sum(1), (x, rows, rows + 1, rows + 2), together),
        (lambda x, a, b, c: ((x - a) * b * c).sum(0), (x, columns, columns + 1, columns + 2), apart),
        (lambda x, a, b: ((x.view(6, 100, 5, 100) - a) * b).sum((0, 2, 3)), (x, channels, number), together),
    ):
        counts = counted_forms(monkeypatch)
        actual = torch.compile(function)(*arguments)
        torch.testing.assert_close(actual, function(*arguments), rtol=1e-4, atol=1e-3)
        assert counts[form], counts


@pytest.mark.parametrize("inner", [True, False])
def test_parts_of_long_reductions(inner):
    """They are equal where a number of parts near the wanted one allows it."""
    for length in (64 * 3136, 2**20, 10**6, 1_000_003):
        parts = patches.split_factor(torch.device(DEVICE), length, 1, inner)
        assert 1 < parts < length / 16
        assert (length % parts == 0) == (length != 1_000_003)


def test_an_optimizer_in_few_launches():
    """Parameters of all sizes are updated by one kernel, and the counts of steps by another."""

    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(70, 90), nn.Linear(90, 3), nn.BatchNorm1d(3)).to(DEVICE)

    model, reference = made(), made()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01, capturable=True, foreach=True) for m in (model, reference)]
    compiled = torch.compile(optimizers[0].step)
    for _ in range(3):
        for p, r in zip(model.parameters(), reference.parameters(), strict=True):
            p.grad = torch.randn_like(p)
            r.grad = p.grad.clone()
        compiled()
        optimizers[1].step()
    for a, e in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)
    assert launches(compiled) == 2


def test_independent_kernels_in_one_launch():
    """Such as those that count the batches that batch norms have seen, beside what else is computed."""
    counts = [torch.zeros((), dtype=torch.long, device=DEVICE) for _ in range(5)]
    x = torch.randn(300, 20, device=DEVICE)

    def function(x):
        for i, count in enumerate(counts):
            count.add_(i)
        return x.sum(1).tanh()

    compiled = torch.compile(function)
    torch.testing.assert_close(compiled(x), x.sum(1).tanh())
    assert launches(compiled, x) == 1
    assert [c.item() for c in counts] == [i * counts[1].item() for i in range(5)]
    assert counts[1].item() > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_many_foreach_tensors_take_several_launches(dtype):
    """A launch takes so many arguments; reductions have their own."""
    shapes = [(n % 7 + 1, n % 5 + 2) for n in range(150)]

    def function(xs, ys):
        moved = torch._foreach_add(torch._foreach_mul(xs, 2.0), ys)
        return torch._foreach_maximum(moved, xs), torch._foreach_norm(ys)

    xs, ys = ([torch.randn(s, device=DEVICE, dtype=dtype) for s in shapes] for _ in range(2))
    compiled = torch.compile(function, fullgraph=True)
    for found, expected in zip(compiled(xs, ys), function(xs, ys), strict=True):
        for a, e in zip(found, expected, strict=True):
            torch.testing.assert_close(a, e)
    assert launches(compiled, xs, ys) < 60


def test_numbers_that_are_one_once_rounded():
    """0.1 and what float32 makes of it are the same in a kernel."""
    check(lambda x: (x + 0.1, x * 0.10000000149011612), torch.randn(40))


def test_beside_another_gpu(monkeypatch):
    """A build for CUDA, on a machine with such a GPU, compiles graphs of this device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *_: torch.empty(0))  # Dynamo keeps it
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *_: None)
    check(lambda x: x * torch.arange(40, device=x.device) + torch.tensor(2.0), torch.randn(3, 40))
    x = torch.randn(3, 40, device=DEVICE, requires_grad=True)
    (got,) = torch.autograd.grad(torch.compile(lambda x: (x.sin() * 2).sum())(x), x)
    torch.testing.assert_close(got, 2 * x.detach().cos())


def test_new_sizes_compile_nothing(background_at_rest):
    compiled = torch.compile(lambda x, y: ((x + y).relu().sum(1), x.softmax(1), (x * y).amax(0)), dynamic=True)
    for shape in ((40, 30), (50, 20)):
        compiled(torch.randn(shape, device=DEVICE), torch.randn(shape[1], device=DEVICE))
    torch.ocl.synchronize()
    before = dlbackend.kernel_stats()["compiled"]
    x, y = torch.randn(7, 901), torch.randn(901)
    for a, e in zip(
        compiled(x.to(DEVICE), y.to(DEVICE)), ((x + y).relu().sum(1), x.softmax(1), (x * y).amax(0)), strict=True
    ):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-5, atol=1e-5)
    assert dlbackend.kernel_stats()["compiled"] == before


def test_numbers_made_of_sizes():
    """Sizes that a graph takes as dynamic are divided as numbers, where kernels use the quotients."""

    def compute(x):
        return x * (x.numel() / (x.numel() - 1)), x + x.shape[0] / 7, x.var(0), x.mean() * (1 / x.shape[1]) ** 0.5

    x = torch.randn(3, 5)
    for e, a in zip(compute(x), torch.compile(compute, dynamic=True)(x.to(DEVICE)), strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-5, atol=1e-6)
    norm = nn.BatchNorm2d(4)
    same = copy.deepcopy(norm).to(DEVICE)
    x = torch.randn(2, 4, 2, 3, requires_grad=True)
    y = x.detach().to(DEVICE).requires_grad_()
    norm(x).pow(3).sum().backward()
    torch.compile(same, dynamic=True)(y).pow(3).sum().backward()
    for e, a in ((x.grad, y.grad), (norm.running_var, same.running_var), (norm.weight.grad, same.weight.grad)):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)


def philox(seed, counters):
    """Philox 4x32-10's four numbers for each counter."""
    a, b, c, d = (
        np.array(v, dtype=np.uint64) for v in (counters & 0xFFFFFFFF, counters >> 32, 0 * counters, 0 * counters)
    )
    keys = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        p, q = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        low = np.uint64(0xFFFFFFFF)
        a, b, c, d = (
            (q >> np.uint64(32)) ^ b ^ np.uint64(keys[0]),
            q & low,
            (p >> np.uint64(32)) ^ d ^ np.uint64(keys[1]),
            p & low,
        )
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return a, b, c, d


def test_random_numbers():
    prims = torch.ops.prims
    seeds = torch.tensor([0x123456789ABCDEF, -5], device=DEVICE)

    def draw(seeds):
        seed = prims.inductor_lookup_seed(seeds, 0)
        return prims.inductor_random([1000], seed, "rand"), prims.inductor_random([1000], seed, "randn")

    uniform, normal = torch.compile(draw, fullgraph=True)(seeds)
    bits = philox(0x123456789ABCDEF, np.arange(1000, dtype=np.uint64))
    signed = [b.astype(np.uint32).astype(np.int32).astype(np.int64) for b in bits]
    u = [np.where(s < 0, -s - 1, s).astype(np.float32) * np.float32(4.6566127342e-10) for s in signed]
    np.testing.assert_array_equal(uniform.cpu().numpy(), u[0])
    expected = np.sqrt(-2 * np.log(np.maximum(u[0], 1e-7))) * np.cos(2 * np.pi * u[1])
    np.testing.assert_allclose(normal.cpu().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_dropout_and_eager_random_numbers():
    x = torch.ones(10000, device=DEVICE, requires_grad=True)
    y = torch.compile(lambda x: F.dropout(x, 0.25))(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())
    assert 0.72 < (y > 0).float().mean().item() < 0.78
    with torch._inductor.config.patch(fallback_random=True):
        torch._dynamo.reset()
        torch.manual_seed(3)
        compiled = torch.compile(lambda x: F.dropout(x, 0.25) + torch.rand_like(x))(x.detach())
        torch.manual_seed(3)
        assert torch.equal(compiled, F.dropout(x.detach(), 0.25) + torch.rand_like(x))


def test_writes_views_and_other_devices():
    def function(x, y, number):
        x.add_(1)
        y[2:].copy_(x[0, 1:3] * number)
        return x.t(), y.sum(), x.cpu() + 1

    arguments = torch.randn(3, 4), torch.zeros(4), torch.tensor(2.5)
    given = [a.clone().to(DEVICE) for a in arguments[:2]] + [arguments[2]]
    actual, expected = torch.compile(function)(*given), function(*arguments)
    for a, e in zip([*actual, *given[:2]], [*expected, *arguments[:2]], strict=True):
        torch.testing.assert_close(a.cpu(), e)


def test_control_flow_and_modes():
    x = torch.randn(6, 6)
    check(lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), x)
    for mode in ("reduce-overhead", "max-autotune"):
        torch._dynamo.reset()
        check(lambda x: (x @ x.t() + 1).relu(), x, mode=mode)


def test_autocast_and_checkpoints():
    layer = nn.Linear(16, 16).to(DEVICE)

    def function(x):
        with torch.autocast("ocl", dtype=torch.bfloat16):
            return torch.utils.checkpoint.checkpoint(lambda x: layer(x).relu(), x, use_reentrant=False)

    x = torch.randn(4, 16, device=DEVICE, requires_grad=True)
    y = torch.compile(function)(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, function(x), rtol=2e-2, atol=2e-2)
    (actual,), (expected,) = (torch.autograd.grad(f(x).float().sum(), x) for f in (torch.compile(function), function))
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


@torch._inductor.config.patch(force_disable_caches=True)  # monkeypatch deletes the entry instead of restoring it
def test_a_kernel_that_does_not_build(monkeypatch):
    monkeypatch.setattr(overrides.OpenCLOverrides, "tanh", staticmethod(lambda x: f"no_such_function({x})"))
    x = torch.randn(5, device=DEVICE, requires_grad=True)
    with pytest.warns(UserWarning, match=r"(?s)aten\.tanh.*no_such_function.*kernel void.*without torch\.compile"):
        y = torch.compile(lambda x: (x * 3).tanh())(x)
    torch.testing.assert_close(y, (x * 3).tanh())
    torch.autograd.grad(y.sum(), x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the second says nothing
        torch.compile(lambda x: (x * 4).tanh())(x)


AROUND_THE_FIRST_GRAPH = """
import torch, dlbackend
from torch._subclasses.fake_tensor import FakeTensorMode
def strides():
    with FakeTensorMode():
        x = torch.empty(1, 2, 3, 4, device="ocl")
        return torch.ops.aten._scaled_dot_product_fused_attention_overrideable(x, x, x)[1].stride()
print(strides())
torch.compile(lambda x: x + 1)(torch.ones(1, device="ocl"))
print(strides())
"""


@pytest.mark.parametrize("cpp_wrapper", [False, True] if torch.__version__.startswith(PACKAGES_OF) else [False])
def test_indices_beyond_a_dimension(cpp_wrapper):
    """They are reported as in eager mode, by the next call that waits for the device, which stays usable."""
    x, rows = torch.randn(7, 5, device=DEVICE), torch.tensor([0, -7, 6, -1], device=DEVICE)

    def function(x, rows):
        added = torch.zeros_like(x).index_put((rows,), x[:4] * 2, accumulate=True)
        return x[rows].exp(), F.embedding(rows.abs() % 7, x) * 2, added

    with torch._inductor.config.patch(cpp_wrapper=cpp_wrapper):
        compiled = torch.compile(function)
        for actual, expected in zip(compiled(x, rows), function(x, rows), strict=True):
            torch.testing.assert_close(actual, expected)
        for wrong in (7, -8, 2**40):
            compiled(x, torch.tensor([0, 1, 2, wrong], device=DEVICE))
            with pytest.raises(IndexError, match=r"torch\.compile.*out of bounds for dimension with size 7"):
                torch.ocl.synchronize()
        for actual, expected in zip(compiled(x, rows), function(x, rows), strict=True):
            torch.testing.assert_close(actual, expected)


def test_layouts_that_were_known_before():
    """What Dynamo finds before the first graph is compiled is forgotten: the device's ops have strides of their own."""
    done = subprocess.run([sys.executable, "-c", AROUND_THE_FIRST_GRAPH], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["(6, 3, 1)", "(12, 6, 2)"]


IN_ANOTHER_PROCESS = """
import sys, torch, dlbackend
assert "torch._inductor.compile_fx" not in sys.modules and "dlbackend.compile" not in sys.modules
x = torch.arange(600., device="ocl").view(20, 30)
y = torch.compile(lambda x: (x * 1.7 + 0.3).softmax(1).cumsum(0) * 0.11)(x)
torch.ocl.synchronize()
print(y.sum().item(), dlbackend.kernel_stats()["compiled"])
"""


def test_a_second_process_compiles_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    words = [sys.executable, "-c", IN_ANOTHER_PROCESS]
    first, second = (subprocess.run(words, capture_output=True, text=True, check=True).stdout.split() for _ in range(2))
    assert first[0] == second[0]
    assert second[1] == "0"


@pytest.mark.parametrize("value", [1.0, -2.5, float("inf"), float("nan"), -0.0, 1e-45, 3e38, 2**63 - 1, -(2**63), True])
def test_literals(value):
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32):
        if not dtype.is_floating_point and (isinstance(value, float) or not -(2**31) < value < 2**31):
            continue
        text = expressions.literal(value, dtype)
        kernel = runtime._build(
            "put", 0, "", f"kernel void put(global {expressions.storage_type(dtype)}* y) {{ *y = {text}; }}"
        )
        y = torch.empty(1, dtype=dtype, device=DEVICE)
        kernel((y,), 1, 1, None)
        assert torch.equal(y.cpu().nan_to_num(7), torch.tensor([value], dtype=dtype).nan_to_num(7))
        assert torch.equal(y.cpu().signbit(), torch.tensor([value], dtype=dtype).signbit())
