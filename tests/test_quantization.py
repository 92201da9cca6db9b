"""dlbackend.quantization: linear layers with weights of 8 bits, by hand and by the tuner."""

import copy

import pytest
import torch
from torch import nn

import dlbackend
from dlbackend import quantization
from dlbackend.quantization import Int8Linear, quantize_weights
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


def test_the_product_reads_the_integers():
    made = Int8Linear(nn.Linear(96, 112)).to("ocl")
    x = torch.randn(3, 96, device="ocl")
    for _ in range(3):
        made(x)
        dlbackend.solvers.wait()
    assert any("m=3 n=112 k=96" in p and " b=i8 then=" in p for p in dlbackend.solvers.problems())


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


def test_the_tuner_takes_it_when_asked(tmp_path):
    model = Net().eval()
    tokens = torch.randint(30, (2, 7))
    tuning = dlbackend.tune(model, tokens, precision=["int8-weights"], layout="nchw", fusion="off", solvers="heuristic")
    assert tuning.winner["precision"] == "int8-weights"
    assert tuning.winner["accuracy"] is not None
    path = tmp_path / "tuning.json"
    tuning.save(path)
    applied = dlbackend.load_tuning(path).apply(model)
    assert isinstance(applied.module.layers[0], Int8Linear)
    assert type(model.layers[0]) is nn.Linear
    want = model(tokens)
    got = applied.to("ocl")(tokens.to("ocl")).cpu()
    assert (got - want).norm() / want.norm() < 0.02


def test_the_tuner_says_where_it_is_not_offered():
    with pytest.raises(ValueError, match="no linear layer"):
        dlbackend.tune(nn.ReLU().eval(), torch.randn(3), precision="int8-weights")
    assert variant.refusal(variant.Configuration("int8-weights"), training=True, tensor_cores=True)
