"""PyTorch's own ways to quantize, on ocl: exported programs by torchao, layers of torch.ao, training with rounding."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dlbackend


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.norm(self.convolution(x)).relu().mean((2, 3)))


def net():
    torch.manual_seed(0)
    return Net(), torch.randn(4, 3, 12, 12)


def train(model, x, steps=10):
    """The losses of a few steps."""
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    labels, losses = torch.arange(4, device=x.device), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def pt2e(model, x, training):
    """The model exported, prepared, perhaps trained, converted, and its results and losses; on x's device."""
    quantize = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e", reason="pip install --no-deps torchao")
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    model = copy.deepcopy(model).train(training).to(x.device)
    exported = torch.export.export(model, (x,)).module()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_qat=training))
    prepare = quantize.prepare_qat_pt2e if training else quantize.prepare_pt2e
    prepared, losses = prepare(exported, quantizer), []
    if training:
        losses = train(prepared, x)
        move_exported_model_to_eval(prepared)
    else:
        prepared(x)
    return quantize.convert_pt2e(prepared)(x).detach().cpu(), losses


@pytest.mark.parametrize("training", [False, True], ids=["calibrated", "trained"])
def test_exported_programs(training):
    model, x = net()
    want, losses = pt2e(model, x, training)
    dlbackend.reset_fallback_report()
    got, on_device = pt2e(model, x.to("ocl"), training)
    assert dlbackend.fallback_report() == {}
    assert on_device == pytest.approx(losses, rel=1e-3)
    assert (got - want).norm() / want.norm() < (0.02 if training else 0.005)
    if training:
        assert on_device[-1] < on_device[0] - 0.05


def eager():
    from torch.ao import quantization

    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(quantization.QuantStub(), *layers, nn.Linear(8, 4), quantization.DeQuantStub())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_layers_of_torch_ao_train_with_rounding():
    """On the device alone; the converted layers' products are on the CPU, with its results."""
    from torch.ao import quantization

    _, x = net()
    model = eager().train()
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    quantization.fuse_modules_qat(model, [["1", "2", "3"]], inplace=True)
    prepared = quantization.prepare_qat(model).to("ocl")
    dlbackend.reset_fallback_report()
    losses = train(prepared, x.to("ocl"))
    assert dlbackend.fallback_report() == {}
    assert losses[-1] < losses[0] - 0.05
    prepared.eval()
    with torch.no_grad():
        rounded = prepared(x.to("ocl")).cpu()
        converted = quantization.convert(prepared)
        got, want = converted(x.to("ocl")).cpu(), converted.cpu()(x)
    assert (got - rounded).norm() / rounded.norm() < 0.05
    torch.testing.assert_close(got, want, rtol=0, atol=want.abs().max().item() / 100)
