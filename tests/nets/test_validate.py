"""python -m dlbackend validate: what passes, what fails, and what it writes."""

import json
import math
import mmap
import sys
from pathlib import Path

import pytest
import torch
from fresh_process import run_python
from torch import nn

from dlbackend.__main__ import main
from dlbackend.tools.host_memory import Peak
from dlbackend.tools.validation import command, rule, runs
from dlbackend.tools.validation.command import Net
from dlbackend.tools.validation.result import line
from dlbackend.tools.validation.rule import Example
from dlbackend.tools.validation.vision import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
import tv_shim  # noqa: F401  isort: skip  (before torchvision)


class Wrong(nn.Module):
    """Hands on what it is given; on the device, something else."""

    def __init__(self, spoil):
        super().__init__()
        self.spoil = spoil

    def forward(self, x):
        return self.spoil(x) if x.device.type == "ocl" else x


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.001


def net(spoil):
    """A small network in which an op is wrong on the device."""

    def make(quick):
        model = nn.Sequential(nn.Linear(6, 8), Wrong(spoil), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 10))
        return Example(model, (torch.randn(4, 6),), cross_entropy(torch.randint(10, (4,))))

    return Net("small", "test", make)


def validate(spoil):
    return command.validate(net(spoil), torch.device("ocl:0"), quick=True)


@pytest.fixture
def run(monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["dlbackend", *arguments])
        return main()

    return run


def test_a_right_net_passes():
    result = validate(lambda x: x)
    assert result.passed, line(result)
    assert {check.stage for check in result.checks} == {"train", "train, smooth", "eval"}
    assert {"outputs", "input gradient", "gradients", "parameters"} <= {check.what for check in result.checks}


@pytest.mark.parametrize(
    "spoil",
    [lambda x: x * 1.001, lambda x: x + 1e-3, lambda x: x * float("nan"), WrongGradient.apply],
    ids=["scaled", "shifted", "nan", "gradient"],
)
def test_a_wrong_result_fails(spoil):
    result = validate(spoil)
    assert not result.passed
    assert not result.error
    assert "FAIL" in line(result)
    assert any(not check.passed for check in result.checks)


@pytest.mark.filterwarnings("ignore")
def test_compiled_nets_are_held_to_the_rule():
    def breaks(x):
        torch._dynamo.graph_break()
        return x * 1.0

    def wrong(x):
        return x * 1.001 if torch.compiler.is_compiling() else x

    found = [command.validate(net(spoil), torch.device("ocl:0"), True, compiles=True) for spoil in (breaks, wrong)]
    assert [result.passed for result in found] == [True, False]
    assert [sum(result.graph_breaks.values()) > 0 for result in found] == [True, False]
    assert "graph break: " in line(found[0])
    assert validate(wrong).passed


def test_an_op_on_the_cpu_fails():
    result = validate(lambda x: torch.linalg.eigvals((x @ x.mT).detach()).real.sum() * 0 + x)
    assert all(check.passed for check in result.checks)
    assert any("eig" in op for op in result.fallbacks)
    assert not result.passed


def test_what_raises_fails_and_says_where():
    def fail(x):
        raise ValueError("broken")

    result = validate(fail)
    assert result.error == "train: ValueError: broken"
    assert not result.passed


def test_a_wrong_step_fails(monkeypatch):
    """The parameters after it are held against a step in float64."""
    step = torch.optim.SGD.step

    def wrong(self):
        step(self)
        for parameter in self.param_groups[0]["params"]:
            if parameter.device.type == "ocl":
                parameter.data.mul_(1.0001)

    monkeypatch.setattr(torch.optim.SGD, "step", wrong)
    result = validate(lambda x: x)
    assert {check.what for check in result.checks if not check.passed} == {"parameters"}


def test_gradients_of_zero_are_no_success():
    def make(quick):
        model = nn.Linear(6, 10)
        return Example(model, (torch.randn(4, 6),), lambda outputs: outputs.sum() * 0)

    result = command.validate(Net("zero", "test", make), torch.device("ocl:0"), quick=True)
    assert "the input gradient is zero" in result.error


def test_decisions_are_those_of_the_first_run():
    decisions = runs.Decisions()
    x = torch.tensor([[3.0, 1.0, 2.0]])
    with runs.Comparable(decisions=decisions):
        first = [*x.topk(2), *x.max(1), x > 1.5]
    decisions.replay()
    y = torch.tensor([[2.0, 3.0, 1.0]])
    with runs.Comparable(decisions=decisions):
        again = [*y.topk(2), *y.max(1), y > 1.5]
    assert again[0].tolist() == [[2.0, 1.0]]
    assert again[2].tolist() == [2.0]
    for i in (1, 3, 4):
        assert torch.equal(first[i], again[i])
    assert decisions.share == 5 / 6


def test_a_net_of_torchvision_as_json_and_picture(run, tmp_path, capsys):
    files = ["--json", str(tmp_path / "v.json"), "--picture", str(tmp_path / "v.png")]
    assert run("validate", "--quick", "--only", "shufflenet_v2_x0_5", *files) == 0
    assert "1 of 1 passed" in capsys.readouterr().out
    record = json.loads((tmp_path / "v.json").read_text())
    (made,) = record["nets"]
    assert record["quick"]
    assert made["passed"]
    assert made["fallbacks"] == {}
    assert made["stages"]["train"]["seconds"] > 0
    assert made["peak_host_bytes"] is None or made["peak_host_bytes"] > 50e6
    assert all(check["error"] <= check["allowed"] for check in made["stages"]["eval"]["checks"])
    assert (tmp_path / "v.png").stat().st_size > 1000


def test_a_failure_is_the_exit_status(run, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "nets", lambda: [net(lambda x: x * 1.001)])
    assert run("validate", "--only", "small", "--json", str(tmp_path / "v.json")) == 1
    assert "small failed" in capsys.readouterr().out
    assert not json.loads((tmp_path / "v.json").read_text())["nets"][0]["passed"]


def interrupted(quick):
    raise KeyboardInterrupt


def test_an_interrupted_run_keeps_what_it_has(run, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "nets", lambda: [net(lambda x: x), Net("second", "test", interrupted)])
    with pytest.raises(KeyboardInterrupt):
        run("validate", "--only", "small,second", "--json", str(tmp_path / "v.json"))
    assert [made["name"] for made in json.loads((tmp_path / "v.json").read_text())["nets"]] == ["small"]


def test_a_missing_or_an_additional_output_fails():
    truth = rule.Run({"outputs": [(torch.ones(3),), (torch.ones(2),)]}, 0.0, 0)
    one, three = (rule.Run({"outputs": truth.quantities["outputs"][:1] * n}, 0.0, 0) for n in (1, 3))
    right = rule.errors(truth, truth).of["outputs"]
    assert right == [0.0, 0.0]
    for made in (one, three):
        wrong = rule.errors(made, truth).of["outputs"]
        assert math.inf in wrong
        for here, there in ((right, wrong), (wrong, right)):  # where the CPU's are other, nothing can be said either
            assert not all(check.passed for check in rule.check("eval", "outputs", here, there, True))


def test_distance_is_the_relative_norm():
    torch.manual_seed(0)
    sizes = ((3, 700_000), (5,), (0,), ())  # the first takes several pieces
    a, b = ([torch.randn(size) for size in sizes] for _ in range(2))
    flat, exact = (torch.cat([x.flatten().double() for x in vector]) for vector in (a, b))
    expected = pytest.approx(float((flat - exact).norm() / exact.norm()), rel=1e-12)
    assert rule.distance(a, b) == expected
    assert rule.distance([a[0].to("ocl:0").mT, *a[1:]], [b[0].mT, *b[1:]]) == expected
    assert rule.distance(a[1:], b) == math.inf
    assert math.isnan(rule.distance([torch.tensor([1.0, math.nan])], [torch.ones(2)]))
    assert rule.distance([torch.tensor([3.0, 4.0])], [torch.zeros(2)]) == 5.0


def test_only_the_truth_is_kept_while_others_run():
    """All that all runs of a network compute is 30 times its weights, which are 34 MB here."""
    width, inner = 4096, 2048

    def make(quick):
        model = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, 10))
        return Example(model, (torch.randn(4, width),), cross_entropy(torch.randint(10, (4,))))

    assert validate(lambda x: x).passed  # what is loaded and compiled once is no part of it
    before = Peak().bytes()
    result = command.validate(Net("wide", "test", make), torch.device("ocl:0"), quick=True)
    assert result.passed, line(result)
    if before is None or result.peak_bytes is None:
        pytest.skip("the system does not tell how much memory a process held")
    weights = 4 * width * inner
    assert 4 * weights < result.peak_bytes - before < 14 * weights


def test_the_peak_begins_anew():
    if Peak().bytes() is None:
        pytest.skip("the system does not tell how much memory a process held")
    peak = Peak()
    with mmap.mmap(-1, 64 << 20) as large:  # which the process has not yet, as an allocator might
        for at in range(0, len(large), mmap.PAGESIZE):
            large[at] = 1
    high = peak.bytes()
    assert Peak().bytes() + (48 << 20) < high


def test_list_and_names(run, capsys):
    assert run("validate", "--list") == 0
    listed = capsys.readouterr().out
    for name in ("alexnet", "efficientnet_b4", "maskrcnn_resnet50_fpn", "raft_small", "r3d_18"):
        assert name in listed
    with pytest.raises(SystemExit, match="no network nothing"):
        run("validate", "--only", "nothing")


def test_without_torchvision_it_says_how_to_install_it(tmp_path):
    (tmp_path / "torchvision.py").write_text("raise ImportError('not here')")
    path = f"{tmp_path}:{Path(command.__file__).parents[3]}"
    done = run_python("-m", "dlbackend", "validate", "--only", "alexnet", PYTHONPATH=path)
    assert done.returncode == 1
    assert "pip install --no-deps torchvision" in done.stderr
