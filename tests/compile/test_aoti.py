"""AOTInductor's packages and cpp_wrapper on the device: what C++ computes, against float64 on the CPU."""

import copy

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE
from fresh_process import fresh_python
from torch import nn
from torch._inductor import aoti_compile_and_package, aoti_load_package, config

from dlbackend.compile import PACKAGES_OF

pytestmark = pytest.mark.skipif(not torch.__version__.startswith(PACKAGES_OF), reason="AOTInductor has no code for ocl")


class Net(nn.Module):
    """Calls of every kind: products, convolutions with rows behind one, attention, other ops, and generated kernels;
    a constant of the CPU between those of the device, and a buffer that each call changes.
    """

    def __init__(self):
        super().__init__()
        self.first, self.rows = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = nn.Linear(8, 16)
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, images, at):
        self.calls.add_(1)
        x = F.hardswish(self.rows(self.first(images) * torch.tensor(1.5)))
        means = x.mean((2, 3))
        shares = F.gelu(self.last(means)).softmax(-1)
        heads = shares.view(-1, 2, 1, 8)
        attended = F.scaled_dot_product_attention(heads, heads.flip(1), heads)
        summed = torch.zeros_like(shares).index_put((at,), shares.sort(-1)[0], accumulate=True)
        return shares, shares[:, ::2], attended, summed.cumsum(0), self.calls * 2


def arguments(count):
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 3, 8, 8, generator=generator), torch.arange(count) // 2


def close(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        assert a.device.type == "ocl"
        assert a.stride() == e.stride()
        torch.testing.assert_close(a.cpu().double(), e, rtol=1e-5, atol=1e-5)


def expected_of(net, count):
    images, at = arguments(count)
    return net(images.double(), at)


@pytest.fixture(scope="module")
def packaged(tmp_path_factory):
    """The net in float64 on the CPU, and the path of its package for the device."""
    torch.manual_seed(0)
    net = Net().eval().requires_grad_(False)
    on_device = copy.deepcopy(net).to(DEVICE)
    batch = {0: torch.export.Dim("batch", min=2, max=64)}
    given = tuple(a.to(DEVICE) for a in arguments(4))
    program = torch.export.export(on_device, given, dynamic_shapes=(batch, batch))
    path = tmp_path_factory.mktemp("packages") / "net.pt2"
    return net.double(), aoti_compile_and_package(program, package_path=str(path))


def test_package(packaged):
    net, path = copy.deepcopy(packaged[0]), packaged[1]
    model = aoti_load_package(path)
    for count in (4, 5):
        close(model(*(a.to(DEVICE) for a in arguments(count))), expected_of(net, count))
    stream = torch.ocl.Stream()
    stream.wait_stream(torch.ocl.current_stream())
    with torch.ocl.stream(stream):
        actual = model(*(a.to(DEVICE) for a in arguments(2)))
        torch.ocl.current_stream().synchronize()
    close(actual, expected_of(net, 2))
    weights = {name: value.float().to(DEVICE) * 2 for name, value in net.state_dict().items() if name == "last.weight"}
    model.load_constants(weights, check_full_update=False)
    net.last.weight.mul_(2)
    close(model(*(a.to(DEVICE) for a in arguments(3))), expected_of(net, 3))
    with pytest.raises(RuntimeError, match="Input type"):
        model(*arguments(3))


RUN = """
import sys, torch, dlbackend
given, path = torch.load(sys.argv[1]), sys.argv[2]
results = torch._inductor.aoti_load_package(path)(*(a.to("ocl") for a in given))
torch.save([r.cpu() for r in results], sys.argv[1])
"""


def test_package_in_another_process(packaged, tmp_path):
    net, path = copy.deepcopy(packaged[0]), packaged[1]
    torch.save(arguments(6), tmp_path / "values")
    code = f"import sys; sys.argv[1:] = {[str(tmp_path / 'values'), str(path)]!r}\n{RUN}"
    done = fresh_python(code)
    assert done.returncode == 0, done.stderr
    for a, e in zip(torch.load(tmp_path / "values"), expected_of(net, 6), strict=True):
        torch.testing.assert_close(a.double(), e, rtol=1e-5, atol=1e-5)


def test_ops_that_a_package_cannot_call(tmp_path):
    class Shuffled(nn.Module):
        def forward(self, x):
            return x + torch.randperm(x.shape[0], device=x.device)

    program = torch.export.export(Shuffled(), (torch.ones(4, device=DEVICE),))
    with pytest.raises(Exception, match=r"AOTInductor cannot call aten\.randperm\.default on ocl"):
        aoti_compile_and_package(program, package_path=str(tmp_path / "shuffled.pt2"))


def test_cpp_wrapper():
    def function(x, weight, filters, number):
        rows = F.conv2d(x.view(-1, 8, 2, 4), filters, groups=8).relu()
        return (x @ weight).relu() * number, rows, x.cumsum(0), x.exp().sum(-1)

    number = torch.tensor(3.0)  # the CPU's, which kernels take as a number
    given = [torch.randn(64, 8), torch.randn(8, 1, 1, 1)]
    torch._dynamo.reset()
    with config.patch(cpp_wrapper=True):
        compiled = torch.compile(function, dynamic=True)
        for count in (4, 6):
            x = torch.randn(count, 64)
            actual = compiled(*(a.to(DEVICE) for a in (x, *given)), number)
            close(actual, function(*(a.double() for a in (x, *given, number))))
    torch._dynamo.reset()
