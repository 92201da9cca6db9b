"""The whole-model tuner: what it measures and writes, what a tuning brings back, and what it refuses."""

import copy
import dataclasses
import json
import math
import sys
import warnings

import pytest
import torch
from common import DEVICE
from fresh_process import forked_python
from torch import nn

import dlbackend
from dlbackend.__main__ import main
from dlbackend.inputs import squared
from dlbackend.tuning import measure, search, tuner, variant
from dlbackend.tuning import result as results
from dlbackend.tuning.variant import Configuration

TENSOR_CORES = torch.ocl.get_device_properties(0).has_tensor_cores

NET = """
import torch
from torch import nn


def net():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2),
        nn.BatchNorm2d(12),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 5),
    )
    return model.eval(), torch.randn(2, 3, 12, 12)
"""


def net():
    scope: dict = {}
    exec(NET, scope)
    return scope["net"]()


def fresh_norms(model):
    """Batch norms as after training: no statistic is 0 or 1."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 2)
                nn.init.normal_(module.bias)
    return model


@pytest.fixture(scope="module")
def tuned():
    """A tuning of net() on PoCL's few programs: float32, both layouts, both fusions."""
    model, x = net()
    before = copy.deepcopy(model.state_dict())
    mode, state = torch.backends.ocl.find_mode, torch.get_rng_state()
    found = dlbackend.tune(model, x, layout="pick", fusion="pick", solvers="pick", budget=200)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.backends.ocl.find_mode == mode
    assert torch.equal(torch.get_rng_state(), state)
    return found


def test_json_says_what_was_measured(tuned, tmp_path):
    tuned.save(tmp_path / "t.json")
    data = json.loads((tmp_path / "t.json").read_text())
    assert data == tuned.data
    assert (data["schema"], data["version"], data["training"]) == ("dlbackend-tuning", 1, False)
    assert data["device"]["name"] == torch.ocl.get_device_name(0)
    assert data["inputs"] == [{"shape": [2, 3, 12, 12], "dtype": "float32"}]
    assert data["model"]["parameters"] == sum(p.numel() for p in net()[0].parameters())
    assert len(data["configurations"]) >= 4
    for entry in data["configurations"]:
        assert entry["milliseconds"] > 0
        assert entry["accuracy"]["finite"]
        assert entry["accuracy"]["relative_l2"] < 1e-5
        assert entry["accuracy"]["top1_agreement"] == 1
        fused = {1, 2} if entry["fusion"] == "on" else set()  # a batch norm folded, a ReLU in the convolution's kernel
        names = [x["name"] for x in entry["layers"]]
        assert names == [str(i) for i in range(8) if i not in fused | ({4} if fused else set())]
        assert sum(x["milliseconds"] for x in entry["layers"]) > 0
        assert any(key.startswith("conv_fwd:float32") for key in entry["solutions"])
    assert data["knobs"]["layout"]["tried"] == ["nchw", "nhwc", "per-layer"]
    assert {e["layout"] for e in data["configurations"]} >= {"nchw", "nhwc"}
    assert {e["fusion"] for e in data["configurations"]} == {"on", "off"}
    assert {e["solvers"] for e in data["configurations"]} == {"measured", "heuristic"}
    finals = [e["milliseconds"] for e in data["configurations"] if e["final"] and not e["rejected"]]
    assert tuned.winner["milliseconds"] == min(finals)
    assert set(data["records"]) == set(tuned.winner["solutions"])
    assert all("  <- winner" in line for line in tuned.table().splitlines() if "winner" in line)


def test_the_winner_comes_back(tuned, tmp_path):
    model, x = net()
    expected = copy.deepcopy(model).double()(x.double())
    tuned.save(tmp_path / "t.json")
    again = dlbackend.load_tuning(tmp_path / "t.json")
    made = again.apply(model).to(DEVICE)
    assert made.configuration == variant.configuration_of(tuned.winner)
    with torch.no_grad():
        torch.testing.assert_close(made(x.to(DEVICE)).cpu().double(), expected, rtol=1e-5, atol=1e-5)
    assert type(model[1]) is nn.BatchNorm2d  # the model itself is as it was
    parameters = {p.data_ptr() for p in model.parameters()}
    inplace = again.apply(model, inplace=True)
    assert {p.data_ptr() for p in inplace.parameters()} & parameters  # no copy of what is not folded
    results._loaded.clear()
    results.restore_solvers()


def test_a_process_takes_the_solvers_of_a_tuning(tuned, tmp_path):
    data = copy.deepcopy(tuned.data)
    key = next(key for key in data["records"] if key.startswith("conv_fwd"))
    head = data["records"][key].splitlines()[:2]
    reference = next(name for name in head[1].split() if name.startswith("reference"))
    data["records"][key] = "\n".join([*head, f"{reference} 0,0,0,0,0,0 1.00 0 0", ""])
    (tmp_path / "t.json").write_text(json.dumps(data))
    (tmp_path / "t_net.py").write_text(NET)
    code = f"""
import sys, torch, dlbackend
sys.path.insert(0, {str(tmp_path)!r})
import t_net
if len(sys.argv) < 2:
    tuning = dlbackend.load_tuning({str(tmp_path / "t.json")!r})
else:
    tuning = dlbackend.load_tuning()
model, x = t_net.net()
with torch.no_grad():
    tuning.apply(model).to("ocl:0")(x.to("ocl:0"))
print(dlbackend.solvers.explain({key!r}).split()[0], dlbackend.solvers.stats()["measured"])
"""
    empty = {"DLBACKEND_CACHE_DIR": str(tmp_path / "cache")}
    assert forked_python(code, **empty).stdout == "reference 0\n"
    by_environment = code.replace("len(sys.argv) < 2", "False")
    done = forked_python(by_environment, DLBACKEND_TUNING=str(tmp_path / "t.json"), **empty)
    assert done.stdout == "reference 0\n", done.stderr


@pytest.mark.parametrize("swapped", [False, True], ids=["as recorded", "other solvers"])
def test_a_replay_takes_exactly_what_is_recorded(tuned, tmp_path, swapped):
    """In a new process with an empty store: the winner's knobs, and for each of its problems the recorded solution.
    Other solvers than the winner's tell what is recorded from what is chosen anyway.
    """
    data = copy.deepcopy(tuned.data)
    winner = next(entry for entry in data["configurations"] if entry["winner"])
    for key in data["records"] if swapped else ():
        now = winner["solutions"][key]
        others = [s for s in dlbackend.solvers.solutions(key) if s.estimate and s.solver != now["solver"]]
        other = next((s for s in others if not s.specialised), None)
        if other:
            data["records"][key] = search.record_of([dataclasses.replace(other, taken=True)])
            winner["solutions"][key] = {**now, "solver": other.solver, "config": other.config}
    recorded = {key: [s["solver"], s["config"]] for key, s in winner["solutions"].items()}
    if swapped:
        changed = {key for key, s in recorded.items() if s[0] != tuned.winner["solutions"][key]["solver"]}
        assert len(changed) >= 2
    (tmp_path / "t.json").write_text(json.dumps(data))
    (tmp_path / "t_net.py").write_text(NET)
    code = f"""
import json, sys, torch, dlbackend
from dlbackend import solvers
sys.path.insert(0, {str(tmp_path)!r})
import t_net
model, x = t_net.net()
model = dlbackend.load_tuning().apply(model).to("ocl:0")
with torch.no_grad():
    for _ in range(3):
        model(x.to("ocl:0"))
solvers.wait()
taken = {{key: [[s.solver, s.config] for s in solvers.solutions(key) if s.taken] for key in solvers.problems()}}
print(json.dumps([str(model.configuration), model.configuration.layers, taken, solvers.stats()["measured"]]))
"""
    done = forked_python(
        code, DLBACKEND_TUNING=str(tmp_path / "t.json"), DLBACKEND_CACHE_DIR=str(tmp_path / "cache"), DLBACKEND_PACKS=""
    )
    assert done.returncode == 0, done.stderr
    name, layers, taken, measured = json.loads(done.stdout)
    configuration = variant.configuration_of(winner)
    assert (name, layers) == (str(configuration), [list(pair) for pair in configuration.layers])
    assert {key: [s] for key, s in recorded.items()} == taken
    assert measured == 0


@pytest.mark.parametrize("driver", ["same", "another"])
def test_what_a_replay_measures(tuned, monkeypatch, driver):
    """The recorded solvers; of another driver's none, as load_tuning() says."""
    data = copy.deepcopy(tuned.data)
    if driver == "another":
        data["device"]["place"] = "another"
        data["records"] = dict.fromkeys(data["records"], "nonsense")
    seen = []
    monkeypatch.setattr(search.Search, "take_turns", lambda _, entries: seen.extend(entries))
    model, x = net()
    tuner.replay(dlbackend.Tuning(data), model, x, DEVICE, squared)
    assert [e.configuration for e in seen] == [variant.configuration_of(e) for e in (tuned.winner, tuned.slowest)]
    assert (seen[0].records == data["records"]) == (driver == "same")
    assert seen[0].records.keys() == data["records"].keys()
    with pytest.raises(ValueError, match="has others"):
        tuner.replay(tuned, nn.Linear(3, 3).eval(), torch.randn(1, 3), DEVICE, squared)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"schema": "other"}, ValueError, "not a tuning"),
        ({"version": 99}, ValueError, "schema version 99"),
        ({"records": None}, ValueError, "records missing"),
        ({"configurations": []}, ValueError, "needs one winner"),
        ({"device": {"name": "GTX 960"}}, RuntimeError, "another device: its name is 'GTX 960'"),
        ({"device": {"compute_units": 4711}}, RuntimeError, "its compute_units is 4711"),
    ],
)
def test_refused(tuned, change, error, message):
    data = copy.deepcopy(tuned.data)
    for key, value in change.items():
        if value is None:
            del data[key]
        elif isinstance(value, dict):
            data[key].update(value)
        else:
            data[key] = value
    with pytest.raises(error, match=message):
        dlbackend.load_tuning(data)


def put(data, path, value):
    """Sets the field that a path of keys and indices leads to; removes it for KeyError."""
    *way, last = path
    for step in way:
        data = data[step]
    if value is KeyError:
        del data[last]
    else:
        data[last] = value


MALFORMED = [
    (("records",), [], "records must be an object, not \\[\\]"),
    (("records", "gemm"), 5, "records.gemm must be a string, not 5"),
    (("records", "gemm"), "\ud800", "records.gemm must be a string"),
    (("records", "gemm"), "nonsense", "not a find record"),
    (("device",), "GTX 960", "device must be an object, not 'GTX 960'"),
    (("device", "place"), KeyError, "device.place missing"),
    (("device", "compute_units"), "2", "device.compute_units must be an integer"),
    (("model",), [1], "model must be an object"),
    (("model", "fingerprint"), KeyError, "model.fingerprint missing"),
    (("training",), 0, "training must be true or false, not 0"),
    (("knobs",), None, "knobs must be an object"),
    (("knobs", "layout"), "nchw", "knobs.layout must be an object"),
    (("configurations",), None, "configurations must be an array, not None"),
    (("configurations",), {}, "configurations must be an array"),
    (("configurations", 0), "fp32", r"configurations\[0\] must be an object, not 'fp32'"),
    (("configurations", 1, "precision"), "fp4", r"configurations\[1\].precision must be one of fp32, .*, not 'fp4'"),
    (("configurations", 0, "milliseconds"), "1", "milliseconds must be a number above 0"),
    (("configurations", 0, "milliseconds"), -1, "milliseconds must be a number above 0"),
    (("configurations", 0, "milliseconds"), True, "milliseconds must be a number above 0"),
    (("configurations", 0, "accuracy"), None, "milliseconds but no accuracy"),
    (("configurations", 0, "accuracy", "relative_l2"), "small", "relative_l2 must be a number, not 'small'"),
    (("configurations", 0, "layer_layouts"), {"0": "chwn"}, "layer_layouts.0 must be one of nchw, nhwc"),
    (("configurations", 0, "layers"), [3], r"layers\[0\] must be an object"),
    (("configurations", 0, "winner"), KeyError, "winner missing"),
    (("replayed",), {"winner": 1.0}, "replayed.slowest missing"),
]


@pytest.mark.parametrize(("path", "value", "message"), MALFORMED)
def test_malformed(tuned, path, value, message):
    data = copy.deepcopy(tuned.data)
    put(data, path, value)
    loaded = results._loaded.copy()
    with pytest.raises(ValueError, match=message):
        dlbackend.load_tuning(data)
    assert results._loaded == loaded


def test_malformed_winner(tuned):
    data = copy.deepcopy(tuned.data)
    winner = next(entry for entry in data["configurations"] if entry["winner"])
    winner["milliseconds"] = None
    with pytest.raises(ValueError, match="winner has no final time"):
        dlbackend.load_tuning(data)


@pytest.mark.parametrize("bare", ["import torch", "import dlbackend, torch"])
def test_malformed_environment_is_a_warning(tuned, tmp_path, bare):
    """The device is there whatever the file holds; one process tries all of it."""
    texts = ["[" * 100_000, "[]", "null", '"tuning"', "\xff"]
    for path, value, _ in MALFORMED:
        data = copy.deepcopy(tuned.data)
        put(data, path, value)
        texts.append(json.dumps(data))
    files = [tmp_path / f"{number}.json" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="latin-1")
    code = f"""
{bare}
import os, warnings
from dlbackend import tuning
for number in range({len(texts)}):
    os.environ["DLBACKEND_TUNING"] = {str(tmp_path)!r} + f"/{{number}}.json"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tuning.load_environment()
    assert "DLBACKEND_TUNING is not used" in str(caught[0].message), number
print((torch.ones(2, device="ocl") + 1).tolist())
"""
    done = forked_python(code, DLBACKEND_TUNING=str(files[-2]))
    assert done.stdout == "[2.0, 2.0]\n", done.stderr
    assert "DLBACKEND_TUNING is not used" in done.stderr


def test_a_bad_record_keeps_the_others_out(tuned):
    data = copy.deepcopy(tuned.data)
    key, text = next((key, text) for key, text in data["records"].items() if key.startswith("conv_fwd"))
    head = text.splitlines()[:2]
    reference = next(name for name in head[1].split() if name.startswith("reference"))
    model, x = net()
    model = tuned.apply(model).to(DEVICE)

    def taken(records):
        data["records"] = records
        dlbackend.load_tuning(copy.deepcopy(data))
        return running()

    def running():
        with torch.no_grad():
            model(x.to(DEVICE))
        return dlbackend.solvers.explain(key).split()[0]

    try:
        with torch.backends.ocl.flags(find_mode="fast"):
            assert taken({key: "\n".join([*head, f"{reference} 0,0,0,0,0,0 1.00 0 0", ""])}) == "reference"
            with pytest.raises(ValueError, match="not a find record"):
                taken({key: "", "gemm": "nonsense"})
            assert running() == "reference"
            assert taken({key: ""}) != "reference"  # what was kept out is seen
    finally:
        results._loaded.clear()
        results.restore_solvers()


class Silent(nn.Module):
    """Gives zeros, or with `leak` on the device something else."""

    def __init__(self, leak):
        super().__init__()
        self.layer, self.leak = nn.Linear(4, 4), leak

    def forward(self, x):
        y = self.layer(x) * 0
        return y + 1e-3 if self.leak and y.device.type == "ocl" else y


def test_a_reference_of_zeros(tmp_path):
    options = {"fusion": "off", "layout": "nchw", "solvers": "heuristic"}
    found = dlbackend.tune(Silent(False).eval(), torch.randn(2, 4), budget=math.inf, **options)
    assert found.winner["accuracy"] == {"finite": True, "max_relative": 0, "relative_l2": 0, "top1_agreement": 1}
    assert found.data["search"]["budget_seconds"] is None  # JSON has no infinity
    found.save(tmp_path / "new" / "t.json")
    refuse = lambda name: pytest.fail(f"{name} in the JSON")  # noqa: E731
    assert json.loads((tmp_path / "new" / "t.json").read_text(), parse_constant=refuse) == found.data
    with pytest.raises(RuntimeError, match=r"error above 0\.2"):
        dlbackend.tune(Silent(True).eval(), torch.randn(2, 4), **options)


def test_errors():
    zeros, ones = [torch.zeros(3).double()], [torch.ones(3).double()]
    names = ("finite", "max_relative", "relative_l2")

    def of(found, expected):
        return tuple(measure.accuracy_of(found, expected)[name] for name in names)

    assert of(zeros, zeros) == (True, 0, 0)
    assert of(ones, zeros) == (True, math.inf, math.inf)
    assert of(zeros, ones) == (True, 1, 1)
    assert of([zeros[0][:0]], [zeros[0][:0]]) == (True, 0, 0)
    assert of(ones, [ones[0] * math.nan]) == (True, math.inf, math.inf)
    assert of([ones[0] * math.nan], zeros) == (False, None, None)


def test_numbers_that_json_has_not(tuned, tmp_path):
    """Written as null, and read as null where a file has them all the same."""
    data = copy.deepcopy(tuned.data)
    entry = next(entry for entry in data["configurations"] if not entry["winner"])
    entry["accuracy"].update(relative_l2=math.nan, max_relative=math.inf)
    (tmp_path / "nan.json").write_text(json.dumps(data))
    dlbackend.Tuning(data).save(tmp_path / "null.json")
    entry["accuracy"].update(relative_l2=None, max_relative=None)
    try:
        for name in ("nan.json", "null.json"):
            again = dlbackend.load_tuning(tmp_path / name)
            assert again.data == data
            assert "infinite" in again.table()
    finally:
        results._loaded.clear()
        results.restore_solvers()


def test_unreadable_files(tmp_path):
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(ValueError, match=r"t\.json: "):
        dlbackend.load_tuning(tmp_path / "t.json")
    with pytest.raises(FileNotFoundError):
        dlbackend.load_tuning(tmp_path / "none.json")
    with pytest.raises(ValueError, match="DLBACKEND_TUNING to name one"):
        dlbackend.load_tuning()


def test_another_driver_keeps_all_but_the_solvers(tuned, monkeypatch):
    data = copy.deepcopy(tuned.data)
    data["device"].update(driver="0.1", place="another")
    monkeypatch.setattr(dlbackend.Tuning, "load_solvers", lambda _: pytest.fail("loaded"))
    with pytest.warns(UserWarning, match=r"made with driver 0\.1 .* solver choices are found anew"):
        again = dlbackend.load_tuning(data)
    again.apply(net()[0])


def test_another_model_or_mode_is_refused(tuned):
    with pytest.raises(ValueError, match="has others"):
        tuned.apply(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="call eval"):
        tuned.apply(net()[0].train())


def test_picture(tuned, tmp_path, monkeypatch):
    from PIL import Image

    tuned.picture(tmp_path / "t.png")
    with Image.open(tmp_path / "t.png") as image:
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 50
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        tuned.picture(tmp_path / "u.png")


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize(("bias", "affine", "groups"), [(True, True, 1), (False, True, 2), (True, False, 4)])
def test_folding(dimensions, bias, affine, groups):
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dimensions - 1]
    model = nn.Sequential(convolution(4, 8, 3, groups=groups, bias=bias), norm(8, affine=affine), nn.ReLU())
    fresh_norms(model).eval()
    x = torch.randn(2, 4, *[6] * dimensions)
    expected = copy.deepcopy(model).double()(x.double())
    assert variant.fold_batch_norms(model) == 1
    assert type(model[1]) is nn.Identity
    with torch.no_grad():
        torch.testing.assert_close(model.to(DEVICE)(x.to(DEVICE)).cpu().double(), expected, rtol=2e-5, atol=2e-5)


class Branches(nn.Module):
    """Only `a` and its norm may be folded."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        self.na, self.nb, self.nc = (nn.BatchNorm2d(4) for _ in range(3))
        self.nd = nn.BatchNorm2d(4, track_running_stats=False)

    def forward(self, x):
        x = self.na(self.a(x))
        y = self.b(x)
        x = self.nb(y) + y  # read twice
        x = self.nc(self.c(self.c(x)))  # called twice
        return self.nd(self.d(x))  # statistics of the batch


def test_what_is_not_folded():
    model = fresh_norms(Branches().eval())
    x = torch.randn(2, 4, 5, 5)
    expected = copy.deepcopy(model).double()(x.double())
    assert variant.fold_batch_norms(model) == 1
    assert type(model.na) is nn.Identity
    torch.testing.assert_close(model(x).double(), expected, rtol=1e-4, atol=1e-4)
    hooked = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).eval()
    hooked[0].register_forward_hook(lambda *_: None)
    assert variant.foldable(hooked) == []
    with pytest.raises(ValueError, match="inference only"):
        variant.fold_batch_norms(Branches())

    class Untraceable(Branches):
        def forward(self, x):
            return self.na(self.a(x)) if x.sum() > 0 else x

    with pytest.raises(ValueError, match=r"torch\.fx cannot trace"):
        variant.fold_batch_norms(Untraceable().eval())


class Residual(nn.Module):
    """Seven activations, of which those in the comments can be fused; `relu` is called often, as in ResNets."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        self.e = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.na = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.na(self.a(x)))  # behind a batch norm that is folded
        y = torch.relu(self.b(y))  # this
        y = self.relu(y + x)  # with the sum
        z = self.c(y)
        y = self.relu(z + z.relu())  # the first with the sum; what the other reads is read twice
        y = self.d(y).relu_()  # this
        return self.relu(self.e(y))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("activation", [nn.ReLU(True), nn.ReLU6(), nn.Hardtanh(-0.3, 0.7)], ids=str)
def test_fused_activations(dimensions, activation):
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    model = nn.Sequential(convolution(4, 6, 3, stride=2, padding=1), activation, convolution(6, 5, 1)).eval()
    x = torch.randn(2, 4, *[9] * dimensions)
    expected = copy.deepcopy(model).double()(x.double())
    fused = variant.fuse_activations(model)
    assert [type(m).__name__ for m in fused.children()] == [f"BoundedConv{dimensions}d"] * 2
    assert fused.get_submodule("2").high == -fused.get_submodule("2").low == math.inf
    assert type(model[0]) is convolution
    torch.testing.assert_close(fused(x).double(), expected, rtol=1e-5, atol=1e-5)  # on the CPU, too
    copied = copy.deepcopy(fused).to(DEVICE)
    with torch.no_grad():
        torch.testing.assert_close(copied(x.to(DEVICE)).cpu().double(), expected, rtol=1e-5, atol=1e-5)
        one = copied(x[0].to(DEVICE))  # no batch
        torch.testing.assert_close(one.cpu().double(), expected[0], rtol=1e-5, atol=1e-5)
        with torch.autocast("ocl", torch.bfloat16):
            low = copied(x.to(DEVICE))
        assert low.dtype == torch.bfloat16
        torch.testing.assert_close(low.cpu().double(), expected, rtol=5e-2, atol=5e-2)
    copied(x.to(DEVICE)).sum().backward()  # gradients pass the bounds as they pass the activation
    model(x).sum().backward()
    torch.testing.assert_close(copied.get_parameter("0.weight").grad.cpu(), model[0].weight.grad, rtol=1e-4, atol=1e-4)


def test_which_activations_are_fused(background_at_rest):
    model = fresh_norms(Residual().eval())
    x = torch.randn(2, 4, 6, 6)
    expected = copy.deepcopy(model).double()(x.double())
    assert variant.fusible(model)
    fused = variant.make_variant(model, Configuration(fusion="on")).to(DEVICE)
    assert {name for name, m in fused.module.named_children() if getattr(m, "low", -math.inf) == 0} == {"a", "b", "d"}
    plain = variant.make_variant(copy.deepcopy(model), Configuration()).to(DEVICE)
    x = x.to(DEVICE)

    def launches_of(net):
        net(x)  # what is done once
        before = dlbackend.kernel_stats()["launches"]
        net(x)
        return dlbackend.kernel_stats()["launches"] - before

    with torch.no_grad(), torch.backends.ocl.flags(deterministic=True):  # nothing is measured
        torch.testing.assert_close(fused(x).cpu().double(), expected, rtol=2e-5, atol=2e-5)
        assert launches_of(fused) == launches_of(plain) - 5
    hooked = Residual().eval()
    hooked.register_forward_hook(lambda *_: None)  # a graph would not call it
    assert variant.fuse_activations(hooked) is hooked
    with pytest.raises(ValueError, match="inference only"):
        variant.fuse_activations(Residual())


class Sums(nn.Module):
    """Sums in place with an activation behind them: the one into a layer's own result is fused, the others would be
    missed by whoever reads what they write over."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.a(x)
        y += x
        y = torch.relu(y)  # fused
        z = self.b(y)
        view = z.view(-1)
        view += 1.5 * y.view(-1)
        w = nn.functional.relu6(view)  # z changes with its view
        size = old = z.size(1)
        size *= 2
        x += 1
        return z * old + size + w.view_as(z) + nn.functional.hardtanh(x.add(y, alpha=2), -0.5, 0.5)


def test_sums_in_place():
    model, x = Sums().eval(), torch.randn(3, 4)
    expected_x = x.double()
    expected = copy.deepcopy(model).double()(expected_x)
    fused = variant.fuse_activations(model)
    assert fused.code.count("variant_add_bounded(") == 1
    fused, x_ocl = fused.to(DEVICE), x.to(DEVICE)
    with torch.no_grad():
        torch.testing.assert_close(fused(x_ocl).cpu().double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x_ocl.cpu().double(), expected_x)
    leaf = x.to(DEVICE).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable"):  # as the model itself: it writes over its input
        fused(leaf)


def test_layouts_of_layers():
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.ConvTranspose2d(6, 8, 3), nn.Conv2d(8, 5, 3)).eval()
    x = torch.randn(2, 4, 9, 9)
    expected = copy.deepcopy(model).double()(x.double())
    assert variant.layered(model) == ["0", "2", "3"]
    layers = (("0", "nchw"), ("2", "nhwc"), ("3", "nchw"))
    made = variant.make_variant(model, Configuration(layout="per-layer", layers=layers)).to(DEVICE)
    seen = []
    for layer in (0, 2, 3):
        model[layer].register_forward_hook(
            lambda _, args, out: seen.extend(t.is_contiguous(memory_format=torch.channels_last) for t in (args[0], out))
        )
    with torch.no_grad():
        result = made(x.to(DEVICE))
    assert seen == [False, False, True, True, False, False]
    torch.testing.assert_close(result.cpu().double(), expected, rtol=2e-5, atol=2e-5)
    with pytest.raises(ValueError, match="no convolution named '7'"):
        variant.make_variant(model, Configuration(layout="per-layer", layers=(("7", "nhwc"),)))


@pytest.mark.parametrize("precision", ["fp16", "bf16", "autocast-fp16", "autocast-bf16"])
def test_precisions_take_and_give_float32(precision):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.randn(4, 8)
    made = variant.make_variant(copy.deepcopy(model), Configuration(precision=precision)).to(DEVICE)
    with torch.no_grad():
        result = made(x.to(DEVICE))
    assert result.dtype == torch.float32
    error = (result.cpu() - model(x)).norm() / model(x).norm()
    assert 0 < error < 0.03


def test_layouts_by_gain_of_each_layer():
    """All layers that gain, then the half that gains most; not those that gain nothing."""
    model = nn.Sequential(*(nn.Conv2d(4, 4, 1) for _ in range(5))).eval()
    run = search.Search(model, torch.randn(1, 4, 4, 4), 0, False, squared, 10, 1, False)
    times = {"nchw": [5, 5, 5, 5, 5], "nhwc": [1, 2, 3, 9, 9]}
    for layout, layers in times.items():
        entry = measure.Entry(Configuration(layout=layout), samples=[30 if layout == "nhwc" else 25])
        entry.layers = [{"name": str(i), "milliseconds": ms} for i, ms in enumerate(layers)]
        run.entries[entry.configuration] = entry
    tried = list(run.layouts_of_layers(*run.entries))
    assert [[name for name, layout in c.layers if layout == "nhwc"] for c in tried] == [["0", "1", "2"], ["0"]]
    assert {c.layout for c in tried} == {"per-layer"}


def test_pace_of_rounds_cancels():
    """Rounds at very different paces, with a run that something disturbed in each."""
    true, paces = [60.0, 80.0, 75.0], [1.0, 1.3, 0.9, 1.25, 1.1]
    rounds = [[pace * t * (3 if k == i else 1) for i, t in enumerate(true)] for k, pace in enumerate(paces)]
    times = measure.in_turns(rounds)
    assert times == pytest.approx([times[0] * t / true[0] for t in true], rel=0.01)
    assert measure.in_turns([[p * t for t in true] for p in paces]) == pytest.approx([1.1 * t for t in true])


def test_budget():
    model, x = net()
    found = dlbackend.tune(model, x, precision="pick", budget=0)
    assert len(found.data["configurations"]) == 1
    assert not found.data["search"]["complete"]
    if not TENSOR_CORES:
        assert "tensor cores" in found.data["knobs"]["precision"]["not_offered"]["tf32"]
        assert "tensor cores" in found.table()


def test_exhaustive_measures_every_combination():
    model, x = net()
    options = {"layout": "nchw,nhwc", "fusion": "on", "solvers": ("heuristic",), "search": "exhaustive"}
    found = dlbackend.tune(model, x, **options)
    assert [e["layout"] for e in found.data["configurations"]] == ["nchw", "nhwc"]
    assert found.data["search"]["complete"]
    assert found.data["knobs"]["solvers"] == {"tried": ["heuristic"], "not_offered": {}, "asked": "heuristic"}


def test_training():
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(), nn.Linear(16, 4)).train()
    found = dlbackend.tune(
        model, {"input": torch.randn(8, 16)}, precision="fp32,autocast-bf16", solvers="heuristic", training=True
    )
    assert "autocast" in variant.refusal(Configuration("fp16"), True, True)
    assert "fp32_precision" in variant.refusal(Configuration("tf32"), True, True)
    assert "inference only" in found.data["knobs"]["fusion"]["not_offered"]["on"]
    assert found.data["knobs"]["layout"]["tried"] == ["nchw"]
    by_precision = {e["precision"]: e["accuracy"]["relative_l2"] for e in found.data["configurations"]}
    assert by_precision["fp32"] < 1e-5 < by_precision["autocast-bf16"] < 0.05
    made = found.apply(model).to(DEVICE)
    made(torch.randn(8, 16, device=DEVICE)).sum().backward()
    assert next(made.parameters()).grad is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp4"}, "precision 'fp4' does not exist; there are pick, fp32"),
        pytest.param(
            {"precision": "tf32"},
            "tf32 is not offered: the device has no tensor cores",
            marks=pytest.mark.skipif(TENSOR_CORES, reason="the device has tensor cores"),
        ),
        ({"fusion": "on"}, "there is no batch norm or activation"),
        ({"layout": "nhwc"}, "no convolution"),
        ({"precision": []}, "precision needs a value: pick, fp32"),
        ({"search": "clever"}, "guided"),
        ({"budget": math.nan}, "budget must be 0 or more, not nan"),
        ({"max_error": -0.1}, "max_error must be 0 or more"),
        ({"device": "cpu"}, "devices of type ocl"),
    ],
)
def test_knobs_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        dlbackend.tune(nn.Linear(3, 3), torch.randn(2, 3), **options)


def test_command(tmp_path, monkeypatch, capsys):
    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["dlbackend", "tune", *arguments])
        return main()

    other = "\n\ndef other():\n    return nn.Linear(3, 3).eval(), torch.randn(2, 3)\n"
    (tmp_path / "t_net.py").write_text(NET + other)
    monkeypatch.chdir(tmp_path)
    knobs = ("--layout", "nchw", "--fusion", "on", "--solvers", "heuristic")
    assert command("t_net:net", *knobs, "--out", "t.json", "--picture", "t.png") == 0
    assert "<- winner" in capsys.readouterr().out
    assert (tmp_path / "t.png").exists()
    kept = json.loads((tmp_path / "t.json").read_text())["replayed"]  # by a process of its own
    assert min(kept["winner"], kept["slowest"]) > 0
    assert command("t_net:net", "--replay", "t.json") == 0
    replayed = capsys.readouterr().out
    assert "ms now" in replayed
    assert f"{kept['winner']:.2f} ms before" in replayed
    assert f"slowest / winner: {kept['slowest'] / kept['winner']:.2f}x before" in replayed
    assert json.loads((tmp_path / "t.json").read_text())["replayed"] == kept
    with pytest.raises(SystemExit, match="2"):
        command("t_net:net", "--out", "t.json/t.json")
    assert "'t.json' is no folder" in capsys.readouterr().err
    assert command("t_net:other", "--replay", "t.json") == 1
    assert "this tuning is of torch.nn" in capsys.readouterr().err
    assert command("t_net:net", "--precision", "fp4") == 1
    assert "'fp4' does not exist" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="No module named 'nowhere'"):
        command("nowhere:net")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(SystemExit, match="needs torchvision"):
        command("resnet18")
    results._loaded.clear()
    results.restore_solvers()


def test_what_does_not_apply_is_a_warning(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    done = forked_python(
        "import torch, dlbackend; from dlbackend import _C\n"
        "_C.load_find_record('elsewhere', 'gemm', '')\n"
        "torch.ones(3, 3, device='ocl') @ torch.ones(3, 3, device='ocl')",
        DLBACKEND_TUNING=str(tmp_path / "t.json"),
    )
    assert "DLBACKEND_TUNING is not used" in done.stderr
    assert "the tuning that was loaded is of elsewhere" in done.stderr
    with pytest.raises(ValueError, match="not a find record"):
        dlbackend._C.load_find_record("elsewhere", "gemm", "nonsense")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dlbackend._C.drop_find_records()
