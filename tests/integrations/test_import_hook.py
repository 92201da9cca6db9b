"""The hook that changes other packages when they are imported, with packages that pretend to be them."""

import os
import subprocess
from pathlib import Path

import pytest
from fresh_process import fresh_python
from packages import ocl_is_chosen

from dlbackend.integrations import HOOKED

STATE = """
import os

def is_npu_available():
    return False

class PartialState:
    @property
    def default_device(self):
        if is_npu_available():
            return "npu"
        return "cpu"

    def _prepare_backend(self):
        class DistributedType:
            MULTI_NPU, MULTI_GPU = "npu", "gpu"
        return ("hccl", DistributedType.MULTI_NPU) if is_npu_available() else (None, None)

    def set_device(self):
        return "cuda"

    def wait_for_everyone(self):
        torch.distributed.barrier(device_ids=[self.local_process_index])
"""
# As a package's own `import torch` does where dlbackend is autoloaded: the hook comes while the module is being run.
ACCELERATOR = """
import dlbackend

class Accelerator:
    def __init__(self):
        self.supported = ("cuda", "npu")
"""
USE = """
import dlbackend
from accelerate.state import PartialState
print(PartialState().default_device, PartialState()._prepare_backend(), PartialState().set_device())
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    package = tmp_path / "accelerate"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '99.0'\n")
    (package / "state.py").write_text(STATE)
    (package / "accelerator.py").write_text(ACCELERATOR)
    return tmp_path


def run(site: Path, code: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    return fresh_python(code, *options, PYTHONPATH=path, DLBACKEND_AUTOLOAD="0", **variables)


@ocl_is_chosen
def test_modules_are_changed_as_they_are_imported(site: Path) -> None:
    done = run(site, USE, "-W", "error")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ocl ('oclgloo', 'gpu') ocl\n"
    assert not done.stderr


def test_modules_imported_before_are_changed_too(site: Path) -> None:
    done = run(site, "from accelerate.state import PartialState as P; import dlbackend; print(P().default_device)")
    assert done.stdout == "ocl\n", done.stderr


def test_the_module_whose_import_brought_dlbackend_is_changed(site: Path) -> None:
    done = run(site, "from accelerate.accelerator import Accelerator; print(Accelerator().supported)")
    assert done.stdout == "('cuda', 'npu', 'ocl')\n", done.stderr


def test_the_variable_turns_it_off(site: Path) -> None:
    done = run(site, USE, DLBACKEND_INTEGRATIONS="0")
    assert done.stdout == "cpu (None, None) cuda\n", done.stderr


def test_what_does_not_fit_is_one_warning_that_says_what_to_do(site: Path) -> None:
    (site / "accelerate" / "state.py").write_text("class PartialState:\n    default_device = 'cpu'\n")
    code = "import dlbackend, accelerate.state; print(accelerate.state.PartialState.default_device)"
    done = run(site, code)
    assert done.stdout == "cpu\n", done.stderr
    assert done.stderr.count("RuntimeWarning") == 1, done.stderr
    for part in ("accelerate 99.0", "PartialState.default_device", "ACCELERATE_TORCH_DEVICE=ocl", "docs/ecosystem.md"):
        assert part in done.stderr
    strict = run(site, code, "-W", "error")
    assert strict.stdout == "cpu\n", strict.stderr


def test_importing_dlbackend_imports_nothing_but_for_torch() -> None:
    code = "import sys, dlbackend; print(*sorted(name for name in sys.modules if name.startswith('dlbackend.integ')))"
    done = fresh_python(code)
    names = ["", ".devices", ".patching", ".torch"]
    assert done.stdout.split() == [f"dlbackend.integrations{name}" for name in names], done.stderr


def test_each_hooked_module_has_patches() -> None:
    code = (
        "import importlib; from dlbackend.integrations import HOOKED\n"
        "for name, here in HOOKED.items():\n"
        "    patches = importlib.import_module(f'dlbackend.integrations.{here}').PATCHES\n"
        "    assert patches[name] and all(patch.upstream for patch in patches[name]), name\n"
        "    assert set(patches) == {each for each, file in HOOKED.items() if file == here}\n"
    )
    assert HOOKED
    done = fresh_python(code)
    assert done.returncode == 0, done.stderr
