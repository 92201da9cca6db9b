"""Features of PyTorch that go by lists of its own devices: tracing, rematerialising random numbers, DataParallel."""

import copy

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from fresh_process import fresh_python
from torch import nn


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def with_gradient(function, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.detach().requires_grad_()
    y = function(x)
    (y.abs() ** 2).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


def check_compiled(function, x: torch.Tensor) -> None:
    """Values, gradients and strides as without torch.compile."""
    want, got = with_gradient(function, x), with_gradient(compiled(function), x)
    for expected, found in zip(want, got, strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


LAST = {"memory_format": torch.channels_last}
NETS = {
    "input": (lambda: nn.Conv2d(3, 4, 3), LAST, {}),
    "weight": (lambda: nn.Conv2d(3, 4, 3), {}, LAST),
    "both": (lambda: nn.Conv2d(3, 4, 3), LAST, LAST),
    "neither": (lambda: nn.Conv2d(3, 4, 3), {}, {}),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 2), LAST, {}),
    "pooled": (lambda: nn.Sequential(nn.MaxPool2d(1), nn.Conv2d(3, 4, 3), nn.AvgPool2d(1)), LAST, {}),
}


@pytest.mark.parametrize("name", NETS)
def test_traced_convolutions_have_the_layout_of_real_ones(name):
    make, of_input, of_weight = NETS[name]
    torch.manual_seed(0)
    net = make().to("ocl", **of_weight)
    x = torch.randn(2, 3, 6, 6, device="ocl").contiguous(**of_input)
    check_compiled(lambda x: net(x).relu().permute(0, 2, 3, 1).reshape(2, -1), x)
    check_compiled(net, x)


def test_traced_convolutions_in_one_and_three_dimensions():
    check_compiled(nn.Conv1d(3, 4, 3).to("ocl"), torch.randn(2, 3, 9, device="ocl"))
    x = torch.randn(2, 3, 4, 5, 4, device="ocl").contiguous(memory_format=torch.channels_last_3d)
    check_compiled(nn.Conv3d(3, 4, 2).to("ocl"), x)
    check_compiled(lambda x: F.adaptive_avg_pool3d(x, 2).flatten(1), x)


def test_traced_gradients_have_the_layout_of_real_ones():
    x = torch.randn(2, 3, 6, 6, device="ocl").contiguous(**LAST)
    w = torch.randn(4, 3, 3, 3, device="ocl")
    check_compiled(lambda x: F.conv2d(x, w).as_strided((2, 2), (2, 1)), x)
    check_compiled(lambda w: F.conv2d(x, w), w)


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: torch.fft.fft(x, dim=1).transpose(1, 2).flatten(1),
        lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real.transpose(1, 2).reshape(2, -1),
        lambda x: torch.fft.rfft2(x, dim=(0, 1)),
        lambda x: torch.fft.irfftn(torch.fft.rfftn(x), x.shape),
        lambda x: torch.fft.hfft(x, dim=0),
    ],
)
def test_traced_transforms_have_the_layout_of_real_ones(transform):
    x = torch.randn(2, 4, 6, device="ocl")
    check_compiled(transform, x)
    got, expected = transform(x), transform(x.cpu())
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got.cpu(), expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_compiled_checkpoints_draw_the_same_numbers_again(reentrant):
    def run(x):
        return torch.utils.checkpoint.checkpoint(lambda x: F.dropout(x, 0.5), x, use_reentrant=reentrant)

    y, gradient = with_gradient(compiled(run), torch.ones(1000, device="ocl"))
    assert 300 < (y == 0).sum().item() < 700
    torch.testing.assert_close(gradient, 4 * y)


def test_questions_in_compiled_code():
    def run(x):
        return x + 1 if torch.ocl.is_available() and torch.ocl.device_count() > 0 else x

    assert compiled(run)(torch.ones(3, device="ocl")).tolist() == [2, 2, 2]


# With CUDA beside, nn.DataParallel takes that.
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="nn.DataParallel is for CUDA where there is CUDA")


@without_cuda
def test_data_parallel_on_one_device():
    net = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    expected = net(x)
    ours = nn.DataParallel(copy.deepcopy(net))
    y = ours(x)  # which goes to the device by itself
    assert y.device.type == "ocl"
    torch.testing.assert_close(y.cpu(), expected)
    y.sum().backward()
    assert ours.module.weight.grad is not None


TWO = """
import torch, dlbackend
from torch import nn
from torch.nn.parallel import comm
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()
x = torch.randn(5, 3).double()
net.eval()
net(x).pow(2).sum().backward()
expected = [p.grad.clone() for p in net.parameters()]
net.zero_grad()
ours = nn.DataParallel(net.to("ocl:0"), device_ids=[0, 1])
y = ours(x.to("ocl:0"))
assert y.device == torch.device("ocl:0") and y.shape == (5, 2)
y.pow(2).sum().backward()
print(max((p.grad.cpu() - e).abs().max().item() for p, e in zip(net.parameters(), expected)) < 1e-12)
pieces = comm.scatter(x, [0, 1], [2, 3])
print([str(piece.device) for piece in pieces], torch.equal(comm.gather(pieces, destination="cpu"), x))
there = [torch.empty(3, device=f"ocl:{i}") for i in (0, 1)]
comm.broadcast(torch.arange(3.0, device="ocl:1"), out=there)
out = torch.empty(6, device="ocl:1")
print(comm.gather(there, out=out).tolist(), comm.scatter(out, out=there)[1].tolist())
"""


@without_cuda
def test_data_parallel_on_two_devices():
    variables = {} if torch.ocl.device_count() > 1 else {"POCL_DEVICES": "pthread pthread"}
    done = fresh_python(TWO, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "True",
        "['ocl:0', 'ocl:1'] True",
        "[0.0, 1.0, 2.0, 0.0, 1.0, 2.0] [0.0, 1.0, 2.0]",
    ]
