"""dlbackend.quantization: layers of 8 and 4 bits, by hand and by the tuner."""

import copy

import pytest
import torch
from torch import nn

import dlbackend
from dlbackend import quantization
from dlbackend.quantization import Int4Linear, Int8Layer, Int8Linear, quantize_static, quantize_weights
from dlbackend.tuning import variant


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
    for relu in (False, True):
        made = Int8Layer(layer, x.abs().max().item() / 127, relu)
        want = layer.float()(x.float())
        want = want.relu() if relu else want
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


@pytest.mark.parametrize("percentile", [100.0, 99.9])
def test_a_static_model(percentile):
    model, batches = Images().eval(), [torch.randn(4, 3, 12, 12) for _ in range(3)]
    want = model(batches[0])
    quantised = copy.deepcopy(model)
    assert quantize_static(quantised, [*batches[:2], (batches[2],)], percentile) == 3
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
        quantize_static(model, [x], percentile=0)
    with torch.no_grad():
        model.head.weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match="head: the weight holds"):
        quantize_static(model, [x])
    assert type(model.features[0]) is nn.Conv2d
    assert not model.features[0]._forward_pre_hooks
    with pytest.raises(TypeError, match="Int8Layer takes"):
        Int8Layer(nn.Conv2d(2, 2, 3, padding="same"), 1.0)


def test_what_cannot_be_quantised():
    with pytest.raises(ValueError, match=r"call eval\(\) first"):
        quantize_weights(Net())
    model = Net().eval()
    with torch.no_grad():
        model.layers[2].weight[3, 5] = float("nan")
    with pytest.raises(ValueError, match=r"layers\.2: the weight holds"):
        quantize_weights(model)
    assert len(quantization.quantizable(model)) == 3  # nothing was changed
    with pytest.raises(ValueError, match="float64"):
        Int8Linear(nn.Linear(3, 3).double())


@pytest.mark.parametrize(("precision", "made"), [("int8-weights", Int8Linear), ("int4-weights", Int4Linear)])
def test_the_tuner_takes_it_when_asked(tmp_path, precision, made):
    model = Net().eval()
    tokens = torch.randint(30, (2, 7))
    tuning = dlbackend.tune(
        model, tokens, precision=[precision], max_error=0.2, layout="nchw", fusion="off", solvers="heuristic"
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
