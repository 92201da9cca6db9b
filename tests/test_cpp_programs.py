"""Programs in C++ that use the installed headers, library and CMake package, without Python."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import dlbackend
from dlbackend.compile import PACKAGES_OF

EXAMPLES = Path(__file__).parents[1] / "examples" / "cpp"
PACKAGE = Path(dlbackend.__file__).parent
BUILD = Path(__file__).parents[1] / "build"

pytestmark = [
    pytest.mark.slow,  # libtorch's headers take a minute to compile
    pytest.mark.skipif(not shutil.which("cmake"), reason="needs CMake"),
]


def run(*command, **variables):
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | variables,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The folder with the built programs: against the installed package, or what the build would install."""
    folder = tmp_path_factory.mktemp("cpp")
    prefix = Path(dlbackend.cmake_prefix_path)
    if not (prefix / "share").is_dir():  # runs from the source folder
        run("cmake", "--install", BUILD, "--prefix", folder / "installed")
        prefix = folder / "installed" / "dlbackend"
    run(
        "cmake",
        *("-S", EXAMPLES, "-B", folder / "build"),
        f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-Ddlbackend_TORCH_DIR={Path(torch.__file__).parent}",
        "-DCMAKE_CXX_FLAGS=-O0",
    )
    run("cmake", "--build", folder / "build", "-j", "2")
    return folder / "build"


def test_training(programs):
    found = re.search(r"accuracy ([\d.]+)% after", run(programs / "train", DLBACKEND_FALLBACK="error"))
    assert found
    assert float(found[1]) > 90


def test_template(programs):
    assert "largest error" in run(programs / "template")


@pytest.mark.skipif(not torch.__version__.startswith(PACKAGES_OF), reason="AOTInductor has no code for ocl")
def test_package(programs, tmp_path):
    """A package that Python compiled, for a batch of another size."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).requires_grad_(False)
    expected = net(torch.ones(6, 8)).sum().item()
    batch = {0: torch.export.Dim("batch", min=2)}
    program = torch.export.export(net.to("ocl"), (torch.ones(4, 8, device="ocl"),), dynamic_shapes=(batch,))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "net.pt2"))
    found = re.search(r"\[6, 4\] sum ([\d.e+-]+)", run(programs / "package", path, 6, 8))
    assert found
    assert float(found[1]) == pytest.approx(expected, rel=1e-5)


def test_wrong_torch(programs, tmp_path):
    """A package of another torch is named, rather than linked."""
    other = tmp_path / "torch"
    other.mkdir()
    (other / "version.py").write_text("__version__ = '2.9.0'\n")
    prefix = next(
        line.partition("=")[2]
        for line in (programs / "CMakeCache.txt").read_text().splitlines()
        if line.startswith("CMAKE_PREFIX_PATH")
    )
    command = ["cmake", "-S", EXAMPLES, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}"]
    done = subprocess.run([*command, f"-Ddlbackend_TORCH_DIR={other}"], check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "but" in done.stderr
    assert "is 2.9" in " ".join(done.stderr.split())
