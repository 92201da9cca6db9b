"""dlbackend.quantization: layers of 8 and 4 bits, by hand and by the tuner."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

import dlbackend
from dlbackend import calibration, quantization
from dlbackend.quantization import DynamicLinear, Int4Linear, Int8Layer, Int8Linear, quantize_static, quantize_weights
from dlbackend.tuning import search, variant


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 64)
        self.layers = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64, bias=False))
        self.head = nn.Linear(64, 30, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_layers_are_those_of_their_rounded_weights(dtype):
    layer = nn.Linear(70, 40).to(dtype)
    made = Int8Linear(layer)
    assert made.weight.dtype == torch.int8
    assert made.weight.abs().amax(1).ge(126).all()
    rounded = made.weight.double() * made.scale.double()[:, None]
    assert ((rounded - layer.weight.double()).abs() <= 0.51 * made.scale[:, None].double()).all()
    tolerance = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}[dtype]
    for shape in ((70,), (1, 70), (5, 70), (2, 3, 70), (0, 70)):
        x = torch.randn(shape).to(dtype)
        want = x.double() @ rounded.T + layer.bias.double()
        for device in ("cpu", "ocl"):
            got = made.to(device)(x.to(device))
            assert got.dtype == dtype
            torch.testing.assert_close(got.cpu().double(), want, rtol=tolerance, atol=tolerance)
        made.to("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_layers_of_four_bits(dtype):
    layer = nn.Linear(192, 40).to(dtype)
    with torch.no_grad():
        layer.weight[1] = 0.25
    made = Int4Linear(layer, group=96)
    assert made.weight.shape == (40, 96)
    assert made.scale_and_zero.shape == (2, 40, 2)
    rounded = made.dequantized(torch.float32).double()
    step = made.scale_and_zero[..., 0].T.repeat_interleave(96, 1).double()
    most = {torch.float32: 0.501, torch.float16: 0.52, torch.bfloat16: 0.6}[dtype]
    assert ((rounded - layer.weight.double()).abs()[2:] <= most * step[2:]).all()
    torch.testing.assert_close(rounded[1], layer.weight[1].double(), rtol=0, atol=0.05)
    tolerance = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}[dtype]
    for shape in ((192,), (1, 192), (5, 192), (2, 3, 192), (0, 192)):
        x = torch.randn(shape).to(dtype)
        want = x.double() @ rounded.T + layer.bias.double()
        for device in ("cpu", "ocl"):
            got = made.to(device)(x.to(device))
            assert got.dtype == dtype
            torch.testing.assert_close(got.cpu().double(), want, rtol=tolerance, atol=tolerance)
        made.to("cpu")


def test_a_model_of_four_bits():
    model = Net().eval()
    tokens = torch.randint(30, (2, 7))
    want = model(tokens)
    quantised = copy.deepcopy(model)
    assert quantize_weights(quantised, bits=4, group=32) == 3
    got = quantised.to("ocl")(tokens.to("ocl")).cpu()
    assert 0 < (got - want).norm() / want.norm() < 0.15
    assert quantize_weights(copy.deepcopy(model), bits=4, group=64) == 2  # one layer has 96 inputs
    with pytest.raises(ValueError, match="multiples of 32"):
        quantize_weights(model, bits=4, group=48)
    with pytest.raises(ValueError, match="8 or 4 bits"):
        quantize_weights(model, bits=3)


def test_the_product_reads_the_integers():
    made = Int8Linear(nn.Linear(96, 112)).to("ocl")
    x = torch.randn(3, 96, device="ocl")
    for _ in range(3):
        made(x)
        dlbackend.solvers.wait()
    assert any("m=3 n=112 k=96" in p and " b=i8 then=" in p for p in dlbackend.solvers.problems())
    made = Int4Linear(nn.Linear(96, 112), group=32).to("ocl")
    for _ in range(3):
        made(x)
        dlbackend.solvers.wait()
    (key,) = [
        p for p in dlbackend.solvers.problems() if "m=3 n=112 k=96" in p and " b=u4 group=32" in p and "then=" in p
    ]
    assert "cpu_small" in dlbackend.solvers.explain(key)
    with pytest.raises((ValueError, RuntimeError), match="groups"):
        dlbackend.solvers.explain(key.replace("group=32", "group=33"))


def test_a_model_and_its_state():
    model = Net().eval()
    tokens = torch.randint(30, (2, 7))
    want = model(tokens)
    quantised = copy.deepcopy(model)
    assert quantize_weights(quantised) == 3
    assert quantize_weights(quantised) == 0
    assert quantised.embedding.weight.dtype == torch.float32
    got = quantised.to("ocl")(tokens.to("ocl")).cpu()
    assert 0 < (got - want).norm() / want.norm() < 0.02
    again = Net().eval()
    quantize_weights(again)
    again.load_state_dict(quantised.cpu().state_dict())
    torch.testing.assert_close(again.to("ocl")(tokens.to("ocl")).cpu(), got, rtol=1e-5, atol=1e-5)


def test_rows_of_zeros():
    layer = nn.Linear(8, 4)
    with torch.no_grad():
        layer.weight[1] = 0
    x = torch.randn(3, 8)
    torch.testing.assert_close(Int8Linear(layer).to("ocl")(x.to("ocl")).cpu()[:, 1], layer(x)[:, 1])


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 8, 3, stride=2, padding=1), (2, 3, 9, 11)),
        (nn.Conv2d(6, 6, 3, groups=6, bias=False), (1, 6, 7, 5)),
        (nn.Conv1d(4, 5, 1), (3, 4, 10)),
        (nn.Linear(33, 21), (2, 4, 33)),
    ],
    ids=["conv2d", "depthwise", "conv1d", "linear"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layers_of_integers(layer, shape, dtype):
    layer, x = copy.deepcopy(layer).to(dtype), torch.randn(shape).to(dtype)
    for unsigned in (False, True):
        x = x.abs() if unsigned else x
        made = Int8Layer(layer, x.abs().max().item() / (255 if unsigned else 127), unsigned)
        want = layer.float()(x.float())
        on_cpu = made(x)
        assert (on_cpu.float() - want).norm() / want.norm() < 0.03
        got = made.to("ocl")(x.to("ocl"))
        assert got.dtype == dtype
        torch.testing.assert_close(got.cpu(), on_cpu, rtol=8e-3 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)
        made.to("cpu"), layer.to(dtype)


def test_rounding_and_saturation():
    layer = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight[:] = 127
    made = Int8Layer(layer, 0.5).to("ocl")
    x = torch.tensor([[0.25], [0.75], [-0.25], [-0.75], [1.3], [100.0], [-100.0]])
    want = torch.tensor([[0.0], [2], [0], [-2], [3], [127], [-128]]) * 0.5 * 127
    assert torch.equal(made(x.to("ocl")).cpu(), want)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU())
        self.head = nn.Linear(8, 5)
        self.unused = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


@pytest.mark.parametrize("method", ["minmax", "percentile", "mse"])
def test_a_static_model(method):
    model, batches = Images().eval(), [torch.randn(4, 3, 12, 12) for _ in range(3)]
    want = model(batches[0])
    quantised = copy.deepcopy(model)
    assert quantize_static(quantised, [*batches[:2], (batches[2],)], method, 99.9) == 3
    assert type(quantised.unused) is nn.Linear
    got = quantised.to("ocl")(batches[0].to("ocl")).cpu()
    assert 0 < (got - want).norm() / want.norm() < 0.1
    again = copy.deepcopy(quantised).cpu()
    torch.testing.assert_close(again(batches[0]), got, rtol=1e-4, atol=1e-4)
    dlbackend.reset_fallback_report()
    quantised(batches[1].to("ocl"))
    assert dlbackend.fallback_report() == {}


def test_what_cannot_be_calibrated():
    model, x = Images().eval(), torch.randn(2, 3, 12, 12)
    with pytest.raises(ValueError, match="no inputs"):
        quantize_static(model, [])
    with pytest.raises(ValueError, match=r"features\.0: its inputs hold"):
        quantize_static(model, [x, x * float("nan")])
    with pytest.raises(ValueError, match=r"call eval\(\) first"):
        quantize_static(Images(), [x])
    with pytest.raises(ValueError, match="percentile"):
        quantize_static(model, [x], "percentile", percentile=0)
    with pytest.raises(ValueError, match="there are minmax, percentile, mse"):
        quantize_static(model, [x], "entropy")
    with pytest.raises(ValueError, match=r"features\.1: int8 is for Linear and Conv1d and .*, not for ReLU"):
        quantize_static(model, [x], layers=["features.0", "features.1"])
    with pytest.raises(ValueError, match="no layer 'tail'"):
        quantize_static(model, [x], layers=["tail"])
    with torch.no_grad():
        model.head.weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match="head: the weight holds"):
        quantize_static(model, [x])
    assert type(model.features[0]) is nn.Conv2d
    assert not model.features[0]._forward_pre_hooks
    with pytest.raises(TypeError, match="its padding is 'same'"):
        Int8Layer(nn.Conv2d(2, 2, 3, padding="same"), 1.0)


def test_what_cannot_be_quantised():
    with pytest.raises(ValueError, match=r"call eval\(\) first"):
        quantize_weights(Net())
    model = Net().eval()
    with torch.no_grad():
        model.layers[2].weight[3, 5] = float("nan")
    with pytest.raises(ValueError, match=r"layers\.2: the weight holds"):
        quantize_weights(model)
    assert len(quantization.quantizable(model, "int8-weights")) == 3  # nothing was changed
    with pytest.raises(ValueError, match="float64"):
        Int8Linear(nn.Linear(3, 3).double())


@pytest.mark.parametrize(("precision", "made"), [("int8-weights", Int8Linear), ("int4-weights", Int4Linear)])
def test_the_tuner_takes_it_when_asked(tmp_path, precision, made, monkeypatch):
    monkeypatch.setattr(search.Sweep, "saves", lambda *_: True)  # whatever the pace of the machine
    model = Net().eval()
    tokens = torch.randint(30, (2, 7))
    tuning = dlbackend.tune(
        model,
        tokens,
        precision=[precision],
        max_error=0.2,
        max_drop=1,
        layout="nchw",
        fusion="off",
        solvers="heuristic",
    )
    assert tuning.winner["precision"] == precision
    assert tuning.winner["accuracy"] is not None
    path = tmp_path / "tuning.json"
    tuning.save(path)
    applied = dlbackend.load_tuning(path).apply(model)
    assert isinstance(applied.module.layers[0], made)
    assert type(model.layers[0]) is nn.Linear
    want = model(tokens)
    got = applied.to("ocl")(tokens.to("ocl")).cpu()
    assert (got - want).norm() / want.norm() < (0.02 if precision == "int8-weights" else 0.2)


def test_the_tuner_says_where_it_is_not_offered():
    with pytest.raises(ValueError, match="no linear layer"):
        dlbackend.tune(nn.ReLU().eval(), torch.randn(3), precision="int8-weights")
    with pytest.raises(ValueError, match="no linear layer of a multiple of 64"):
        dlbackend.tune(nn.Sequential(nn.Linear(3, 3)).eval(), torch.randn(2, 3), precision="int4-weights")
    assert variant.refusal(variant.Configuration("int8-weights"), training=True, tensor_cores=True)


class Residual(nn.Module):
    """Two blocks and a head. Integers pass between convolutions and between the linear layers; the sums and all
    activations but GELU are part of layers.
    """

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.a, self.b = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.Conv2d(16, 8, 1)
        self.norm, self.short = nn.BatchNorm2d(16), nn.Conv2d(8, 8, 1, stride=2)
        self.relu, self.relu6 = nn.ReLU(inplace=True), nn.ReLU6()
        self.c, self.d = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.first, self.second, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x):
        x = torch.nn.functional.gelu(self.stem(x))
        x = self.relu(self.b(self.relu(self.norm(self.a(x)))) + self.short(x))
        y = self.relu6(self.c(x))
        x = self.d(y) + x  # no activation
        return self.last(self.second(self.first(x.mean((2, 3))).relu()))


def residual():
    torch.manual_seed(2)
    model, batches = Residual().eval(), [torch.randn(4, 3, 12, 12) for _ in range(3)]
    model.norm.running_var.uniform_(0.5, 2)
    return model, batches


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_what_follows_layers_of_integers_is_part_of_them(layout):
    model, batches = residual()
    variant.fold_batch_norms(model)
    precisions = quantization.static_precisions(model, quantization.quantizable(model, "int8"), batches, "minmax", 100)
    configuration = variant.Configuration("int8", layout, quantized=tuple(precisions.items()))
    apart = variant.make_variant(copy.deepcopy(model), configuration)
    fused = variant.make_variant(model, dataclasses.replace(configuration, fusion="on"))
    calls = [str(n.target) for n in fused.module.graph.nodes if n.op in ("call_module", "call_function", "call_method")]
    assert sorted(calls) == sorted(
        ["stem", "<built-in function gelu>", "a", "short", "b", "c", "d", "mean", "first", "second", "last"]
    )
    integers = {n for n, m in fused.module.named_modules() if getattr(m, "output_scale", None) is not None}
    assert integers == {"a", "c", "first", "second"}
    assert fused.module.b.input_dtype == fused.module.second.input_dtype == torch.uint8
    x = batches[0]
    want, on_cpu = apart(x), fused(x)
    torch.testing.assert_close(on_cpu, want, rtol=0, atol=0)
    with torch.no_grad():
        got, want = fused.to("ocl")(x.to("ocl")), apart.to("ocl")(x.to("ocl"))
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    torch.testing.assert_close(got.cpu(), on_cpu, rtol=1e-4, atol=1e-4)
    dlbackend.reset_fallback_report()
    fused(batches[1].to("ocl"))
    assert dlbackend.fallback_report() == {}


def test_sums_that_layers_of_integers_cannot_take():
    layer = nn.Linear(8, 8)
    made = Int8Layer(layer, 0.02)
    made.low, made.high = 0.0, math.inf
    x = torch.randn(2, 8)
    for summand in (torch.randn(3, 2, 8), torch.randn(8), torch.randn(2, 8, dtype=torch.float64), torch.tensor(2)):
        want = made(x, summand)
        assert want.min() >= 0
        got = made.to("ocl")(x.to("ocl"), summand.to("ocl")).cpu()
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        made.to("cpu")
    one = Int8Layer(nn.Conv2d(3, 4, 3), 0.02)
    x = torch.randn(3, 6, 5)
    torch.testing.assert_close(one(x), one.to("ocl")(x.to("ocl")).cpu(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_layers_that_scale_each_row(target, dtype):
    layer = nn.Linear(96, 40, bias=dtype != torch.float16).to(dtype)
    made = DynamicLinear(layer, target)
    assert made.weight.dtype == target
    tolerance = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
    for shape in ((96,), (1, 96), (5, 96), (2, 3, 96), (0, 96)):
        x = torch.randn(shape).to(dtype)
        if x.dim() == 2 and len(x) > 1:
            x[0], x[1] = 0, x[1] * 1000
        want = layer.float()(x.float())
        layer.to(dtype)
        on_cpu = made.to("cpu")(x)
        got = made.to("ocl")(x.to("ocl"))
        assert got.dtype == on_cpu.dtype == dtype
        torch.testing.assert_close(got.cpu(), on_cpu, rtol=tolerance, atol=tolerance)
        if x.numel():
            assert (on_cpu.float() - want).norm() / want.norm() < (0.02 if target == torch.int8 else 0.06)
    assert not made(torch.full((2, 96), math.nan, dtype=dtype, device="ocl")).isfinite().any()
    with pytest.raises(ValueError, match="not to"):
        DynamicLinear(layer, torch.float8_e5m2)


@pytest.mark.parametrize("precision", ["int8-dynamic", "fp8"])
def test_a_dynamic_model(precision):
    model = Net().eval()
    tokens = torch.randint(30, (2, 7))
    want = model(tokens)
    assert quantization.quantize(model, precision) == 3
    got = model.to("ocl")(tokens.to("ocl")).cpu()
    assert 0 < (got - want).norm() / want.norm() < (0.03 if precision == "int8-dynamic" else 0.08)
    with pytest.raises(ValueError, match="quantize_static"):
        quantization.quantize(Net().eval(), "int8")


def test_ranges():
    values = torch.randn(20_000)
    values[0] = 30.0
    batches = [values[5000:], values[:5000] * 1.0]  # the range doubles with the second
    model = nn.Sequential(nn.Identity())
    found = {
        method: calibration.observe(model, {"0": model[0]}, batches, method, 99.0)["0"]
        for method in calibration.METHODS
    }
    assert not found["minmax"].unsigned
    assert found["minmax"].scale == pytest.approx(30 / 127)
    assert found["percentile"].scale * 127 == pytest.approx(values.abs().quantile(0.99).item(), abs=0.03)
    errors = {}
    for method, one in found.items():
        rounded = (values / one.scale).round().clamp(-128, 127) * one.scale
        errors[method] = (rounded - values).square().mean().item()
    assert min(errors, key=errors.__getitem__) == "mse"
    positive = calibration.observe(model, {"0": model[0]}, [values.abs()])["0"]
    assert positive.unsigned
    assert positive.scale == pytest.approx(30 / 255)
    assert calibration.observe(model, {"0": model[0]}, [torch.zeros(3)]) == {}
    with pytest.raises(ValueError, match="0: its inputs hold infinities"):
        calibration.observe(model, {"0": model[0]}, [values, torch.tensor([math.inf])])


def test_nothing_is_half_converted():
    model, _ = residual()
    before = {name: type(m) for name, m in model.named_modules()}
    weights = copy.deepcopy(model.state_dict())
    good = quantization.LayerPrecision("int8", 0.1)
    for name, how, message in (
        ("gone", good, "no layer 'gone'"),
        ("relu", good, "relu: int8 is for Linear"),
        ("a", quantization.LayerPrecision("fp8"), "a: fp8 is for Linear, not for Conv2d"),
        ("c", quantization.LayerPrecision("int8", 0.0), "c: the scale of its inputs is 0.0"),
        ("last", quantization.LayerPrecision("int2"), "last: layers are not quantized to 'int2'"),
    ):
        configuration = variant.Configuration("int8", fusion="on", quantized=(("stem", good), (name, how)))
        with pytest.raises(ValueError, match=message):
            variant.make_variant(model, configuration)
    assert {name: type(m) for name, m in model.named_modules()} == before
    assert all(torch.equal(t, weights[name]) for name, t in model.state_dict().items())
