"""dlbackend.fusion: layers with elementwise calls behind them in one launch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dlbackend
from dlbackend import fusion

LAYERS = {
    "conv1d": (nn.Conv1d(6, 8, 3, padding=1), nn.BatchNorm1d(8), (2, 6, 21)),
    "conv2d": (nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(8), (2, 6, 9, 12)),
    "conv2d_same": (nn.Conv2d(6, 8, 2, padding="same", bias=False), nn.BatchNorm2d(8), (2, 6, 9, 12)),
    "conv2d_circular": (nn.Conv2d(6, 8, 3, padding=1, padding_mode="circular"), nn.BatchNorm2d(8), (2, 6, 9, 12)),
    "conv3d": (nn.Conv3d(3, 4, 2), nn.BatchNorm3d(4), (1, 3, 5, 6, 7)),
    "linear": (nn.Linear(10, 12), nn.BatchNorm1d(12), (7, 10)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_norms(name):
    layer, norm, shape = LAYERS[name]
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    norm.eval()
    x = torch.randn(shape)
    with torch.no_grad():
        want = norm(layer(x))
        other = torch.randn(want.shape)
        want = F.silu(want) * 2 + other
        fused = fusion.fuse(layer, lambda y, o: F.silu(y) * 2 + o, norm=norm)
        torch.testing.assert_close(fused(x, other), want)  # on the CPU, call by call
        torch.testing.assert_close(fused.to("ocl")(x.to("ocl"), other.to("ocl")).cpu(), want, rtol=1e-4, atol=1e-5)
    assert layer.weight.device.type == "cpu"  # the norm went into a copy


def test_plan():
    layer = nn.Conv2d(16, 24, 3, padding=1).to("ocl")
    x, other = torch.randn(2, 16, 20, 20, device="ocl"), torch.randn(24, 1, 1, device="ocl")
    fused = fusion.fuse(layer, lambda y, o: F.relu(y * o))
    plan = fused.plan(x, other)
    assert plan.fused
    assert plan.solver in dlbackend.solvers.names("conv_fwd")
    assert plan.rows == "v0 = mul.f32(x0, x1); v1 = relu.f32(v0); y0 = v1"
    plan = fusion.fuse(layer, lambda y, o: F.relu(y * o).sum(0)).plan(x, other)
    assert (plan.fused, plan.rows) == (False, "")
    assert plan.solver


def test_batched_linear_with_operands_of_every_shape():
    layer = nn.Linear(10, 12).to("ocl")
    x = torch.randn(3, 5, 10, device="ocl")
    fused = fusion.fuse(layer, lambda y, *others: torch.tanh(sum(others, y)))
    with torch.no_grad():
        for shapes in (((3, 5, 12), (12,), (1,), ()), ((5, 1),), ((3, 1, 12), (1, 1, 12)), ((5, 12), (3, 1, 1))):
            others = [torch.randn(shape, device="ocl") for shape in shapes]
            torch.testing.assert_close(fused(x, *others), torch.tanh(sum(others, layer(x))))


def test_gradients_are_those_of_the_calls():
    layer = nn.Linear(10, 12).to("ocl")
    x = torch.randn(4, 10, device="ocl", requires_grad=True)
    fused = fusion.fuse(layer, F.gelu)
    torch.testing.assert_close(*(torch.autograd.grad(f(x).sum(), x)[0] for f in (fused, lambda x: F.gelu(layer(x)))))


def test_other_calls_run_one_by_one():
    layer, x = nn.Linear(10, 12).to("ocl"), torch.randn(4, 10, device="ocl")
    with torch.no_grad():
        for then in (lambda y: F.softmax(y, -1), lambda y: y.to(torch.bfloat16), lambda y: y):
            assert torch.equal(fusion.fuse(layer, then)(x), then(layer(x)))
        assert torch.equal(fusion.fuse(layer)(x), layer(x))


def test_wrong_arguments():
    with pytest.raises(TypeError, match="not ReLU"):
        fusion.fuse(nn.ReLU())
    with pytest.raises(TypeError, match="not ConvTranspose2d"):
        fusion.fuse(nn.ConvTranspose2d(3, 3, 3))
    with pytest.raises(ValueError, match=r"norm\.eval"):
        fusion.fuse(nn.Linear(3, 3), norm=nn.BatchNorm1d(3))
    with torch.no_grad(), pytest.raises(RuntimeError):
        fusion.fuse(nn.Linear(3, 4).to("ocl"), lambda y, o: y + o)(
            torch.randn(2, 3, device="ocl"), torch.randn(3, device="ocl")
        )
