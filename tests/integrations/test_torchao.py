"""torchao's configurations on ocl, eagerly; skipped without it."""

import copy

import pytest
import torch
from torch import nn

import dlbackend

quantization = pytest.importorskip("torchao.quantization", reason="pip install --no-deps torchao")

CASES = {
    "Int8WeightOnlyConfig": ({}, torch.float32, 0.01),
    "Int8DynamicActivationInt8WeightConfig": ({}, torch.float32, 0.03),
    "Int8DynamicActivationIntxWeightConfig": ({}, torch.float32, 0.03),
    "Int4WeightOnlyConfig": ({"group_size": 32}, torch.bfloat16, 0.15),
    "Float8WeightOnlyConfig": ({}, torch.float32, 0.06),
    "Float8DynamicActivationFloat8WeightConfig": ({}, torch.bfloat16, 0.1),
}


def net(dtype):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 128), nn.GELU(), nn.Linear(128, 64)).eval().to(dtype)


@pytest.mark.parametrize("name", CASES)
def test_configurations(name):
    options, dtype, most = CASES[name]
    model, x = net(dtype), torch.randn(4, 256).to(dtype)
    quantised = copy.deepcopy(model).to("ocl")
    quantization.quantize_(quantised, getattr(quantization, name)(**options))
    assert type(quantised[0].weight) is not nn.Parameter
    dlbackend.reset_fallback_report()
    with torch.no_grad():
        want, got = model(x).float(), quantised(x.to("ocl")).cpu().float()
    assert 0 < (got - want).norm() / want.norm() < most
    assert dlbackend.fallback_report() == {}


def test_four_bits():
    """The weight is that of the tensor's own steps; layers that the group does not divide stay as they are."""
    model = net(torch.bfloat16)
    weight = model[0].weight.detach().float()
    quantised = model.to("ocl")
    config = quantization.Int4WeightOnlyConfig(group_size=128)
    quantization.quantize_(quantised, config)
    eye = torch.eye(256, dtype=torch.bfloat16, device="ocl")
    with torch.no_grad():
        got = (quantised[0](eye) - quantised[0].bias).cpu().float().T
    groups = weight.reshape(128, 2, 128)
    step = (groups.amax(2) - groups.amin(2)) / 15
    assert ((got - weight).abs().reshape(128, 2, 128) <= 0.65 * step[..., None] + 2e-3).all()
    odd = nn.Sequential(nn.Linear(100, 8)).to("ocl", torch.bfloat16)
    quantization.quantize_(odd, config)
    assert type(odd[0].weight) is nn.Parameter
    with pytest.raises(ValueError, match=r"bfloat16, not of torch\.float32"):
        quantization.quantize_(nn.Sequential(nn.Linear(128, 8)).to("ocl"), config)
