"""Every optimizer of torch.optim, plain, foreach and fused, for some steps against float64 on the CPU, without a
fallback; PyTorch's own samples; fused steps with gradient scaling, tensor learning rates and low precision."""

import warnings

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db
from torch.testing._internal.two_tensor import TwoTensor

import dlbackend

DEVICE = "ocl:0"
SIZES = [(4, 3), (7,), (), (2, 3, 2, 2), (65,)]
STEPS = 5


def gradients(step):
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in SIZES]


def parameters(dtype, device):
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(size, generator=generator, dtype=torch.float64) for size in SIZES]
    return [torch.nn.Parameter(v.to(device=device, dtype=dtype)) for v in values]


def train(make, dtype, device, steps=STEPS, layout=None):
    params = parameters(dtype, device)
    optimizer = make(params)
    for step in range(steps):
        for p, g in zip(params, gradients(step), strict=True):
            p.grad = g.to(device=device, dtype=dtype)
            if layout is not None and p.dim() == 4:
                p.grad = p.grad.to(memory_format=layout)
        optimizer.step()
    return [p.detach().cpu().double() for p in params], optimizer


def compare(make, dtype=torch.float32, reference=None, **options):
    expected, _ = train(reference or make, torch.float64, "cpu")
    dlbackend.reset_fallback_report()
    actual, optimizer = train(make, dtype, DEVICE, **options)
    assert dlbackend.fallback_report() == {}
    # Each step rounds a parameter of size about 1 a few times: 2^-24 (2^-8 for bfloat16, 2^-11 for float16) times
    # steps and operations; squared gradients and their roots add some.
    tolerance = {torch.float32: 3e-6, torch.float64: 1e-12, torch.bfloat16: 6e-2, torch.float16: 1e-2}[dtype]
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance)
    return optimizer


CONFIGS = {
    torch.optim.SGD: [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
                      {"momentum": 0.9, "dampening": 0.5, "maximize": True}],
    torch.optim.Adam: [{}, {"weight_decay": 0.1, "amsgrad": True}, {"maximize": True, "betas": (0.5, 0.9)}],
    torch.optim.AdamW: [{}, {"weight_decay": 0.1, "amsgrad": True}, {"maximize": True}],
    torch.optim.Adagrad: [{}, {"weight_decay": 0.1, "lr_decay": 0.1}, {"maximize": True}],
    torch.optim.RMSprop: [{}, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}],
    torch.optim.NAdam: [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    torch.optim.RAdam: [{}, {"weight_decay": 0.1}],
    torch.optim.Adamax: [{}, {"weight_decay": 0.1}],
    torch.optim.Adadelta: [{}, {"weight_decay": 0.1}],
    torch.optim.ASGD: [{}],
    torch.optim.Rprop: [{}],
}  # fmt: skip
FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
CASES = [(cls, config) for cls, configs in CONFIGS.items() for config in configs]
NAMES = [f"{cls.__name__}-{'-'.join(config) or 'default'}" for cls, config in CASES]


@pytest.mark.parametrize(("cls", "config"), CASES, ids=NAMES)
@pytest.mark.parametrize("way", ["plain", "foreach", "fused"])
def test_matches_float64(cls, config, way):
    if way == "fused" and cls not in FUSED:
        pytest.skip("PyTorch has no fused form")
    options = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[way]
    compare(
        lambda params: cls(params, lr=0.05, **config, **options),
        reference=lambda params: cls(params, lr=0.05, **config, foreach=False),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("cls", FUSED)
def test_fused_dtypes(cls, dtype):
    eps = {} if cls is torch.optim.SGD else {"eps": 1e-4}  # float16 has no 1e-8
    compare(
        lambda params: cls(params, lr=0.01, **eps, fused=True),
        dtype,
        reference=lambda params: cls(params, lr=0.01, **eps),
    )


@pytest.mark.parametrize("cls", FUSED)
def test_fused_is_one_launch_and_the_tables_stay(cls, background_at_rest):
    params = [torch.nn.Parameter(torch.ones(i + 1, device=DEVICE)) for i in range(120)]
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer = cls(params, lr=0.1, fused=True)
    for _ in range(2):
        optimizer.step()
    before = dlbackend.kernel_stats()
    optimizer.step()
    after = dlbackend.kernel_stats()
    assert after["compiled"] == before["compiled"]
    assert after["launches"] - before["launches"] <= 2  # the step, and the step counts where there are some


@pytest.mark.parametrize(
    ("cls", "config"), [(torch.optim.Adam, {}), (torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9})]
)
def test_the_default_is_one_launch_too(cls, config, background_at_rest):
    """PyTorch's default is foreach, some ten launches for Adam. Its state stays foreach's: steps on the CPU."""
    params = [torch.nn.Parameter(torch.ones(i + 1, device=DEVICE)) for i in range(120)]
    optimizer = cls(params, lr=0.1, **config)
    for p in params[:50]:  # steps that differ
        p.grad = torch.ones_like(p)
    optimizer.step()
    for p in params:
        p.grad = torch.ones_like(p)
    for _ in range(2):
        optimizer.step()
    before = dlbackend.kernel_stats()
    optimizer.step()
    assert dlbackend.kernel_stats()["launches"] - before["launches"] == 1
    if "step" in optimizer.state[params[0]]:
        assert [optimizer.state[p]["step"].item() for p in (params[0], params[-1])] == [4, 3]
        assert optimizer.state[params[0]]["step"].is_cpu
    torch.testing.assert_close(params[0].detach().cpu(), _alone(cls, config, 4), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(params[-1].detach().cpu()[:1], _alone(cls, config, 3), rtol=1e-5, atol=1e-6)


def _alone(cls, config, steps):
    p = torch.nn.Parameter(torch.ones(1))
    optimizer = cls([p], lr=0.1, **config, foreach=False)
    for _ in range(steps):
        p.grad = torch.ones(1)
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize(("cls", "config"), [(torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9})])
def test_what_does_not_fit_one_launch_goes_foreach(cls, config):
    """A parameter with gaps, one that is there twice, a gradient of another dtype's parameter, complex numbers."""
    wide = torch.ones(4, 6, device=DEVICE)
    twice = torch.ones(3, device=DEVICE, requires_grad=True)
    for params in (
        [wide[:, :3].detach().requires_grad_(), torch.ones(5, device=DEVICE, requires_grad=True)],
        [twice, twice],
        [torch.ones(4, device=DEVICE, dtype=torch.complex64, requires_grad=True)],
        [torch.ones(4, device=DEVICE, dtype=d, requires_grad=True) for d in (torch.float32, torch.float16)],
    ):
        expected = [torch.nn.Parameter(p.detach().cpu()) for p in params]
        if params[0] is params[1 % len(params)] and len(params) == 2:
            expected[1] = expected[0]
        for group in (params, expected):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch's, of parameters that are there twice
                optimizer = cls(group, lr=0.1, **config, foreach=True)
            for step in range(3):
                for p in group:
                    p.grad = torch.full_like(p, step + 1)
                optimizer.step()
        for p, e in zip(params, expected, strict=True):
            torch.testing.assert_close(p.detach().cpu(), e.detach(), rtol=2e-3, atol=2e-3)


def test_tensors_of_other_classes_go_foreach(background_at_rest):
    """They say themselves what an op does with them, which for foreach's they do, as DTensor."""
    p = torch.nn.Parameter(TwoTensor(torch.ones(3, device=DEVICE), torch.zeros(3, device=DEVICE)))
    optimizer = torch.optim.AdamW([p], lr=0.1, foreach=True)
    for _ in range(2):
        p.grad = TwoTensor(torch.ones(3, device=DEVICE), torch.ones(3, device=DEVICE))
        before = dlbackend.kernel_stats()["launches"]
        optimizer.step()
    assert dlbackend.kernel_stats()["launches"] - before > 4
    torch.testing.assert_close(p.a.cpu(), _alone(torch.optim.AdamW, {}, 2).expand(3), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cls", FUSED)
@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_fused_tensor_lr(cls, device):
    compare(
        lambda params: cls(params, lr=torch.tensor(0.05, device=device), fused=True),
        reference=lambda params: cls(params, lr=0.05),
    )


@pytest.mark.parametrize("cls", FUSED)
def test_fused_gradients_in_another_layout(cls):
    compare(
        lambda params: cls(params, lr=0.05, fused=True),
        reference=lambda params: cls(params, lr=0.05),
        layout=torch.channels_last,
    )


@pytest.mark.parametrize("cls", FUSED)
def test_fused_scaling(cls):
    """grad_scale and found_inf: gradients are unscaled in place; with found_inf nothing changes."""
    scale = 128.0
    expected, _ = train(lambda params: cls(params, lr=0.05), torch.float64, "cpu", steps=2)
    params = parameters(torch.float32, DEVICE)
    optimizer = cls(params, lr=0.05, fused=True)
    for step, infinite in enumerate([0.0, 1.0, 0.0]):
        grads = gradients(min(step, 1))
        for p, g in zip(params, grads, strict=True):
            p.grad = (g * scale).to(device=DEVICE, dtype=torch.float32)
        optimizer.grad_scale = torch.tensor(scale, device=DEVICE)
        optimizer.found_inf = torch.tensor(infinite, device=DEVICE)
        before = [p.detach().cpu() for p in params]
        optimizer.step()
        for p, g, b in zip(params, grads, before, strict=True):
            if infinite:
                assert torch.equal(p.detach().cpu(), b)
            else:
                torch.testing.assert_close(p.grad.cpu(), g.float())
    for p, e in zip(params, expected, strict=True):
        torch.testing.assert_close(p.detach().cpu().double(), e, rtol=3e-6, atol=3e-6)


def test_fused_early_bias_correction_is_accurate():
    """1 - 0.999999^1 in float32 would be off by 5 %."""
    p = torch.nn.Parameter(torch.zeros(4, device=DEVICE))
    q = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    for param in (p, q):
        optimizer = torch.optim.Adam([param], lr=1.0, betas=(0.9, 0.999999), fused=True)
        for _ in range(3):
            param.grad = torch.tensor([1.0, -2.0, 1e-3, 5.0], device=param.device, dtype=param.dtype)
            optimizer.step()
    torch.testing.assert_close(p.detach().cpu().double(), q.detach(), rtol=3e-6, atol=0)


def test_fused_errors():
    p = torch.nn.Parameter(torch.zeros(6, device=DEVICE))
    buffer = torch.zeros(5, device=DEVICE)
    arguments = dict(weight_decay=0.0, momentum=0.9, lr=0.1, dampening=0.0, nesterov=False, maximize=False)
    with pytest.raises(RuntimeError, match="same sizes"):
        torch._fused_sgd_([p.detach()], [torch.zeros(6, device=DEVICE)], [buffer], **arguments, is_first_step=True)
    with pytest.raises(RuntimeError, match="overlap"):
        torch._fused_sgd_([p.detach()] * 2, [torch.zeros(6, device=DEVICE)] * 2,
                          [torch.zeros(6, device=DEVICE), torch.zeros(6, device=DEVICE)], **arguments,
                          is_first_step=True)  # fmt: skip


def test_capturable_and_differentiable_steps_still_work():
    compare(
        lambda params: (
            torch.optim.Adam(params, lr=torch.tensor(0.05, device=params[0].device), capturable=True)
            if params[0].device.type == "ocl"
            else torch.optim.Adam(params, lr=0.05)
        )
    )


def test_state_dict_goes_between_devices():
    _, here = train(lambda params: torch.optim.AdamW(params, lr=0.05), torch.float32, "cpu", steps=2)
    params = parameters(torch.float32, DEVICE)
    there = torch.optim.AdamW(params, lr=0.05, fused=True)
    there.load_state_dict(here.state_dict())
    assert all(state["exp_avg"].device.type == "ocl" for state in there.state.values())
    for p in params:
        p.grad = torch.ones_like(p)
    there.step()
    back = torch.optim.AdamW(parameters(torch.float32, "cpu"), lr=0.05)
    back.load_state_dict(there.state_dict())
    assert all(state["exp_avg"].device.type == "cpu" for state in back.state.values())


@pytest.mark.parametrize("info", optim_db, ids=lambda info: info.optim_cls.__name__)
def test_samples_of_pytorch(info):
    """PyTorch's own configurations of every optimizer, three steps, foreach where the optimizer has it."""
    if info.optim_cls.__name__ in ("SparseAdam", "LBFGS", "Muon"):
        pytest.skip("sparse gradients, or a closure; tested elsewhere")
    for sample in info.optim_inputs_func(device=torch.device("cpu")):
        if isinstance(sample.kwargs.get("lr"), torch.Tensor) or sample.kwargs.get("differentiable"):
            continue
        kwargs = {k: v for k, v in sample.kwargs.items() if k not in ("foreach", "fused", "capturable")}
        compare(
            lambda params, kwargs=kwargs: info.optim_cls(params, **kwargs),
            reference=lambda params, kwargs=kwargs: info.optim_cls(params, **kwargs, foreach=False),
        )


def test_muon_and_lbfgs():
    torch.manual_seed(0)
    x, y = torch.randn(16, 4), torch.randn(16, 3)
    for cls in filter(None, (torch.optim.LBFGS, getattr(torch.optim, "Muon", None))):
        results = []
        for device in ("cpu", DEVICE):
            torch.manual_seed(0)
            layer = torch.nn.Linear(4, 3, bias=False).to(device)
            optimizer = cls(layer.parameters(), lr=0.1)

            def closure(layer=layer, optimizer=optimizer, device=device):
                optimizer.zero_grad()
                loss = (layer(x.to(device)) - y.to(device)).square().mean()
                loss.backward()
                return loss

            for _ in range(2):
                optimizer.step(closure)
            results.append(layer.weight.detach().cpu())
        # Muon orthogonalises in bfloat16
        torch.testing.assert_close(results[0], results[1], rtol=2e-2, atol=2e-3)
