"""The example programs as a user runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_process import run_python
from PIL import Image

EXAMPLES = Path(__file__).parents[1] / "examples"


def train(device: str, folder: Path) -> tuple[float, float]:
    """(accuracy in percent, seconds) of a run of train_digits.py, whose picture must be there and not blank."""
    picture = folder / f"{device.replace(':', '')}.png"
    command = [sys.executable, str(EXAMPLES / "train_digits.py"), "--device", device, "--out", str(picture)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = re.search(r"test accuracy ([\d.]+)% in ([\d.]+) s", done.stdout)
    assert found
    with Image.open(picture) as image:
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 50
    return float(found[1]), float(found[2])


@pytest.mark.slow
def test_digits_are_learnt_as_well_as_on_the_cpu(tmp_path: Path) -> None:
    accuracy, seconds = train("ocl:0", tmp_path)
    assert accuracy >= 98
    assert abs(accuracy - train("cpu", tmp_path)[0]) <= 1
    print(f"{accuracy} % in {seconds} s")


def test_training_that_learns_nothing_fails(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--epochs", "1", "--out", str(tmp_path / "x.png")]
    done = run_python(str(EXAMPLES / "train_digits.py"), *options)
    assert done.returncode == 1
    assert "below the expected 98%" in done.stdout


def stub_torchvision(folder: Path, models: str) -> dict[str, str]:
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").touch()
    (folder / "torchvision" / "models.py").write_text(models)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "DLBACKEND_AUTOLOAD": "0"}


def test_classify_says_how_to_get_torchvision(tmp_path: Path) -> None:
    variables = stub_torchvision(tmp_path, "raise ImportError('No module named torchvision')")
    done = run_python(str(EXAMPLES / "classify.py"), "--device", "cpu", **variables)
    assert done.returncode == 1
    assert "pip install 'torchvision==" in done.stderr
    assert "Traceback" not in done.stderr


def test_classify_says_where_weights_belong(tmp_path: Path) -> None:
    offline = """
from urllib.error import URLError
class Weights:
    DEFAULT = type("W", (), {"url": "https://example.org/resnet18.pth"})
def get_model_weights(name): return Weights
def get_model(name, weights): raise URLError("no network")
"""
    done = run_python(str(EXAMPLES / "classify.py"), "--device", "cpu", **stub_torchvision(tmp_path, offline))
    assert done.returncode == 1
    assert "https://example.org/resnet18.pth" in done.stderr
    assert "checkpoints" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "ocl:0"])
def test_classify_names_pictures(device: str, tmp_path: Path) -> None:
    bright = """
import torch
class Weights:
    meta = {"categories": ["dark", "bright"]}
    def transforms(self):
        return lambda image: torch.tensor(list(image.resize((1, 1)).getdata())[0]) / 255
class All:
    DEFAULT = Weights()
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.stack([1 - x.mean(1), x.mean(1)], 1)
def get_model_weights(name): return All
def get_model(name, weights): return Net()
"""
    picture = tmp_path / "white.png"
    Image.new("L", (8, 8), 255).save(picture)
    variables = stub_torchvision(tmp_path, bright)
    run = [str(EXAMPLES / "classify.py"), "--device", device, "--top", "2"]
    done = run_python(*run, str(picture), **variables)
    assert done.stdout.split() == ["white.png", "73.1%", "bright", "26.9%", "dark"], done.stderr
    done = run_python(*run, **variables)
    assert "china.jpg" in done.stdout
    assert "flower.jpg" in done.stdout
    done = run_python(*run, str(tmp_path / "none.png"), **variables)
    assert "cannot read a picture" in done.stderr


def test_an_op_from_a_kernel() -> None:
    done = run_python(str(EXAMPLES / "custom_kernel.py"), "--shape", "3", "5", "40")
    found = dict(re.findall(r"(\w+): loss [\d.]+, largest relative error of the gradient ([\d.e-]+)", done.stdout))
    assert found.keys() == {"eager", "compiled"}, done.stderr
    assert max(map(float, found.values())) < 1e-5


def test_a_graph_trains_as_eager_mode_does() -> None:
    done = run_python(str(EXAMPLES / "graph.py"), "--steps", "20")
    found = dict(re.findall(r"(\w+): [\d.]+ ms a step, last loss ([\d.]+)", done.stdout))
    assert found.keys() == {"eager", "graph"}, done.stderr
    assert found["eager"] == found["graph"]


def test_mean_and_variance_by_a_template() -> None:
    done = run_python(str(EXAMPLES / "template_mean_var.py"), "--shape", "3", "5", "7", "9")
    found = re.search(r"largest error ([\d.e-]+); [\d.]+ GB/s", done.stdout)
    assert found, done.stderr
    assert float(found[1]) < 1e-5
