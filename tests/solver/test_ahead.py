"""Programs of convolutions that will follow are compiled by other processes while the first one's are waited for."""

import json

import pytest
from fresh_process import forked_python

CODE = """
import json, torch, dlbackend
def stats():
    dlbackend.solvers.wait()
    s = dlbackend.kernel_stats()
    return [s["compiled"], s["compiled_elsewhere"]]
torch.manual_seed(0)
conv = torch.nn.Conv2d(8, 12, 3, stride=2, bias=False)
x = torch.randn(2, 8, 21, 21, requires_grad=True)
y = conv(x)
y.backward(y.detach())
ours = torch.nn.Conv2d(8, 12, 3, stride=2, bias=False).to("ocl")
ours.load_state_dict(conv.state_dict())
z = x.detach().to("ocl").requires_grad_()
"""
BACKWARD = """
out.backward(out.detach())
assert (z.grad.cpu() - x.grad).abs().max() < 1e-4
assert (ours.weight.grad.cpu() - conv.weight.grad).abs().max() < 1e-3
"""


@pytest.fixture
def process(tmp_path):
    def run(code: str, cache: str = "a"):
        settings = {
            "DLBACKEND_CACHE_DIR": str(tmp_path / cache),
            "POCL_CACHE_DIR": str(tmp_path / cache / "pocl"),
            "DLBACKEND_PACKS": "",
            "DLBACKEND_EMULATE": "class=gpu",  # whose directions have programs of their own
            "DLBACKEND_COMPILE_PROCESSES": "2",
            "DLBACKEND_FIND_MODE": "fast",
        }
        result = forked_python(CODE + code, **settings)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    return run


def test_gradients_are_compiled_while_nobody_waits(process):
    forward, backward = process(
        "out = ours(z)\nforward = stats()\n" + BACKWARD + "print(json.dumps([forward, stats()]))"
    )
    assert forward[1] >= 2
    assert backward == forward
    again = process("out = ours(z)\n" + BACKWARD + "print(json.dumps(stats()))")
    assert again == [0, 0]


def test_nothing_is_compiled_for_gradients_that_nobody_wants(process):
    trained = process("ours(z)\nprint(json.dumps(stats()))", cache="a")
    inferred = process("with torch.no_grad(): ours(z)\nprint(json.dumps(stats()))", cache="b")
    assert inferred[1] < trained[1]
