"""The tuner's quantized precisions: which layers get them, what the JSON says of it, and how the winner comes back."""

import copy
import json

import pytest
import torch
from common import DEVICE
from torch import nn

import dlbackend
from dlbackend import quantization
from dlbackend.__main__ import main
from dlbackend.inputs import arguments, squared
from dlbackend.tuning import search, sensitivity, tuner, variant


class Net(nn.Module):
    """One layer's inputs have an outlier, so that 8 bits keep nothing of the rest."""

    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.b, self.c = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.bad, self.head = nn.Linear(17, 32), nn.Linear(32, 6)

    def forward(self, x):
        x = self.norm(self.a(x)).relu()
        x = (self.c(self.b(x).relu()) + x).relu().mean((2, 3))
        large = torch.full_like(x[:, :1], 3e4)
        return self.head(self.bad(torch.cat([x, large], 1)).relu())


def net():
    """The model, and batches with labels."""
    torch.manual_seed(3)
    model = Net().eval()
    with torch.no_grad():
        model.bad.weight[:, 16] = 0
        model.bad.weight *= 3
        model.bad.bias.zero_()
        model.head.bias.zero_()
    return model, [(torch.randn(8, 3, 10, 10) + 3 * torch.randn(8, 3, 1, 1), torch.zeros(8)) for _ in range(3)]


KNOBS = {"layout": "nchw", "solvers": "heuristic"}


@pytest.fixture(scope="module")
def tuned():
    model, batches = net()
    before = copy.deepcopy(model.state_dict())
    found = dlbackend.tune(model, batches[0][0], precision="int8", calibration=batches, max_drop=0.1, **KNOBS)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    return found


def test_layers_that_cost_accuracy_stay_in_float(tuned, tmp_path):
    tuned.save(tmp_path / "t.json")
    data = json.loads((tmp_path / "t.json").read_text())
    assert data == tuned.data
    about = data["quantization"]
    assert (about["batches"], about["method"], about["max_drop"]) == (3, "minmax", 0.1)
    layers = {x["name"]: x for x in about["layers"]["int8"]}
    assert list(layers) == ["a", "b", "c", "bad", "head"]
    assert max(layers, key=lambda name: layers[name]["error"]) == "bad"
    assert layers["bad"]["float32"] == "the drop would be above 0.1"
    assert layers["bad"]["milliseconds"] is None
    for name in ("a", "b", "c", "head"):
        assert 0 < layers[name]["error"] < 0.2
        assert layers[name]["float32"] in (None, "float32 is as fast")
        assert layers[name]["milliseconds"] > 0 < layers[name]["float32_milliseconds"]
    entries = [e for e in data["configurations"] if e["precision"] == "int8"]
    assert entries
    assert {e["fusion"] for e in data["configurations"]} == {"on", "off"}
    for entry in entries:
        assert "bad" not in entry["layer_precisions"]
        assert all(how["input_scale"] > 0 for how in entry["layer_precisions"].values())
        assert entry["accuracy"]["drop"] <= 0.1
    assert {"b", "c"} <= {n for n, how in entries[0]["layer_precisions"].items() if how["unsigned"]}
    only = [e for e in data["configurations"] if e["precision"] == "fp32"]
    assert {e["rejected"] for e in only} == {"measured only to choose precisions of layers"}
    assert set(tuned.winner["layer_precisions"]) == {
        x["name"] for xs in about["layers"].values() for x in xs if x["winner"]
    }
    assert tuned.winner["precision"] == "int8"


def test_the_winner_comes_back_and_is_a_module(tuned, tmp_path):
    model, batches = net()
    x = batches[0][0]
    data = copy.deepcopy(tuned.data)
    for entry in data["configurations"]:  # whichever was fastest: one with sums and activations in layers of integers
        entry["winner"] = False
    entry = next(e for e in data["configurations"] if (e["precision"], e["fusion"]) == ("int8", "on"))
    entry.update(winner=True, final=True)
    (tmp_path / "t.json").write_text(json.dumps(data))
    made = dlbackend.load_tuning(tmp_path / "t.json").apply(model)
    assert type(model.b) is nn.Conv2d
    integers = {name for name, m in made.module.named_modules() if isinstance(m, quantization.Int8Layer)}
    assert integers == set(entry["layer_precisions"])
    made = made.to(DEVICE)
    with torch.no_grad():
        want, got = model(x), made(x.to(DEVICE)).cpu()
    assert 0 < (got - want).norm() / want.norm() < 0.1
    torch.save(made, tmp_path / "module.pt")
    again = torch.load(tmp_path / "module.pt", weights_only=False)
    assert torch.equal(again(x.to(DEVICE)).cpu(), got)
    calls = [[str(n.target) for n in m.module.graph.nodes if n.op == "call_module"] for m in (made, again)]
    assert calls[0] == calls[1]
    fresh = dlbackend.Tuning(data).apply(net()[0])
    fresh.load_state_dict(made.cpu().state_dict())
    assert torch.equal(fresh.to(DEVICE)(x.to(DEVICE)).cpu(), got)


def test_a_tuning_of_other_layers(tuned):
    data = copy.deepcopy(tuned.data)
    winner = next(e for e in data["configurations"] if e["winner"])
    winner["layer_precisions"] = {"norm": {"precision": "int8", "input_scale": 0.1, "unsigned": False}}
    model, _ = net()
    with pytest.raises(ValueError, match="norm: int8 is for Linear"):
        dlbackend.Tuning(data).apply(model, inplace=True)
    assert type(model.norm) is nn.BatchNorm2d
    winner["layer_precisions"]["norm"]["precision"] = "int5"
    with pytest.raises(ValueError, match=r"layer_precisions\.norm\.precision must be one of int8, .*, not 'int5'"):
        dlbackend.load_tuning(data)
    del winner["layer_precisions"]  # as in files of before
    winner["precision"] = "int8-dynamic"
    made = dlbackend.Tuning(data).apply(model)
    assert isinstance(made.module.head, quantization.DynamicLinear)


def test_a_replay(tuned, monkeypatch):
    seen = []
    monkeypatch.setattr(search.Search, "take_turns", lambda _, entries: seen.extend(entries))
    model, batches = net()
    tuner.replay(tuned, model, batches[0][0], DEVICE, squared)
    assert seen[0].configuration.quantized == variant.configuration_of(tuned.winner).quantized


def test_picture(tuned, tmp_path):
    from PIL import Image

    tuned.picture(tmp_path / "t.png")
    with Image.open(tmp_path / "t.png") as image:
        tall = image.height
    plain = dlbackend.Tuning({k: v for k, v in tuned.data.items() if k != "quantization"})
    plain.picture(tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as image:
        assert image.height < tall


def test_what_is_refused():
    model, batches = net()
    x = batches[0][0]
    with pytest.raises(ValueError, match="a: its inputs hold infinities or NaN"):
        dlbackend.tune(model, x, precision="int8", calibration=[x, x * float("nan")], **KNOBS)
    with pytest.raises(ValueError, match="int8 is not offered: it needs calibration"):
        dlbackend.tune(model, x, precision="int8", **KNOBS)
    with pytest.raises(ValueError, match="calibration has no inputs"):
        dlbackend.tune(model, x, precision="int8", calibration=iter([]), **KNOBS)
    with pytest.raises(ValueError, match="there are minmax, percentile, mse"):
        dlbackend.tune(model, x, precision="int8", calibration=batches, calibration_method="max", **KNOBS)
    with pytest.raises(ValueError, match="max_drop must be 0 or more"):
        dlbackend.tune(model, x, precision="int8", calibration=batches, max_drop=-1, **KNOBS)
    with torch.no_grad():
        model.head.weight[1, 2] = float("inf")
    with pytest.raises(ValueError, match="head: the weight holds infinities or NaN"):
        dlbackend.tune(model, x, precision="int8-dynamic", calibration=batches, **KNOBS)
    assert type(model.a) is nn.Conv2d
    assert not model.a._forward_pre_hooks
    assert variant.refusal(variant.Configuration("int8"), training=True, tensor_cores=True)


def test_drops_and_how_many_layers_stay():
    """The number of layers that stay is the least, with the most sensitive first."""
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)]).eval()
    batches = [arguments(torch.randn(5, 8)), arguments(torch.randn(3, 8))]
    layers = dict.fromkeys("012345", quantization.LayerPrecision("int8-dynamic"))
    errors = {"0": 3.0, "1": 1.0, "2": 6.0, "3": 5.0, "4": 2.0}  # of "5" none is known

    def count(model):
        return -float(sum(isinstance(m, quantization.DynamicLinear) for m in model.modules()))

    found = sensitivity.Sensitivity(model, batches, count)
    for limit, names in ((6, "012345"), (5, "01234"), (3, "014"), (0.5, ""), (0, "")):
        assert "".join(found.within(layers, errors, limit)) == names
    found = sensitivity.Sensitivity(model, batches, None)
    assert found.drop(model) == 0
    assert 0 < found.error("3", layers["3"]) < 0.1
    assert type(model[3]) is nn.Linear
    with torch.no_grad():
        other = copy.deepcopy(model)
        other[5].weight *= -1
        other[5].bias *= -1
    assert found.drop(other) == 1
    with torch.no_grad():
        other[5].bias[2] = float("nan")
    assert found.drop(other) == float("inf")


def test_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "t_int8.py").write_text(
        "import torch\n"
        "def net(): return torch.nn.Sequential(torch.nn.Linear(8, 3)).eval(), torch.randn(2, 8)\n"
        "def batches(): return [torch.randn(4, 8), torch.full((1, 8), float('nan'))]\n"
    )
    monkeypatch.chdir(tmp_path)
    command = ["dlbackend", "tune", "t_int8:net", "--precision", "int8", "--layout", "nchw", "--solvers", "heuristic"]
    monkeypatch.setattr("sys.argv", command)
    assert main() == 1
    assert "it needs calibration" in capsys.readouterr().err
    options = ["--calibration", "t_int8:batches", "--calibration-method", "percentile", "--percentile", "99"]
    monkeypatch.setattr("sys.argv", command + options)
    assert main() == 1
    assert "0: its inputs hold infinities or NaN" in capsys.readouterr().err
