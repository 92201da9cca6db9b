"""`import torch` alone, `import dlbackend` in both orders, opting out, other accelerators, and builds that do not load.

Each case is a process of its own: what is tested happens once, at import.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from fresh_process import fresh_python

import dlbackend
from dlbackend_autoload import other_accelerator

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PACKAGE = Path(dlbackend.__file__).parent
USE = "assert (torch.ones(3, device='ocl:0') + 1).tolist() == [2, 2, 2]"
NO_DRIVER_OPEN = "assert not [line for line in open('/proc/self/maps') if 'OpenCL' in line or 'pocl' in line]"


def write_entry_point(site: Path) -> None:
    """Makes `site` announce pyproject's entry point, as an installed wheel does."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch.backends"]
    info = site / "dlbackend-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dlbackend\nVersion: 0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[torch.backends]", *lines]))


def path_with(*folders: Path) -> str:
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def slot_is_free() -> None:
    if other := other_accelerator(torch):
        pytest.skip(f"beside {other} autoload takes nothing, as other tests show with a pretended one")


@pytest.fixture
def autoload(tmp_path: Path, slot_is_free: None) -> dict[str, str]:
    """Variables under which `import torch` autoloads, whether this package is installed or only on the path."""
    write_entry_point(tmp_path)
    return {"PYTHONPATH": path_with(tmp_path, PACKAGE.parent)}


@pytest.fixture
def broken(tmp_path: Path, slot_is_free: None) -> Path:
    """A copy of the package, with its entry point, whose extension is not there; first on the path."""
    shutil.copytree(PACKAGE, tmp_path / "dlbackend", ignore=shutil.ignore_patterns("*.so", "__pycache__", "_build.py"))
    shutil.copy(PACKAGE.parent / "dlbackend_autoload.py", tmp_path)
    write_entry_point(tmp_path)
    return tmp_path


@pytest.mark.parametrize("imports", ["import torch", "import torch, dlbackend", "import dlbackend, torch"])
def test_every_import_order_gives_a_device(autoload: dict[str, str], imports: str) -> None:
    done = fresh_python(f"{imports}; {USE}; assert torch.ocl.Stream", "-W", "error", **autoload)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


@pytest.mark.parametrize("imports", ["import dlbackend, torch", "import torch, dlbackend"])
def test_explicit_import_works_without_entry_point(imports: str) -> None:
    done = fresh_python(f"{imports}; {USE}", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr


def test_import_and_seeding_open_no_driver(autoload: dict[str, str]) -> None:
    code = f"import torch; torch.manual_seed(1); assert not torch.ocl.is_initialized(); {NO_DRIVER_OPEN}"
    done = fresh_python(code, **autoload)
    assert done.returncode == 0, done.stderr


def test_import_does_not_load_the_compiler(autoload: dict[str, str]) -> None:
    done = fresh_python("import sys, torch; assert torch.ocl; assert 'torch._dynamo' not in sys.modules", **autoload)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("variable", ["DLBACKEND_AUTOLOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD"])
def test_opting_out_leaves_torch_alone_and_import_still_works(autoload: dict[str, str], variable: str) -> None:
    untouched = "assert not hasattr(torch, 'ocl'); assert torch._C._get_privateuse1_backend_name() == 'privateuseone'"
    done = fresh_python(f"import torch; {untouched}; import dlbackend; {USE}", **autoload, **{variable: "0"})
    assert done.returncode == 0, done.stderr


CUDA_MACHINE = """
import os, sys, torch, dlbackend_autoload
del os.environ["DLBACKEND_AUTOLOAD"]
torch.version.cuda = "13.0"
dlbackend_autoload.glob.glob = lambda pattern: ["/dev/nvidia0"] if "nvidia" in pattern else []
dlbackend_autoload.autoload()
"""


def test_beside_cuda_autoload_takes_nothing(slot_is_free: None) -> None:
    code = CUDA_MACHINE + (
        "assert 'dlbackend' not in sys.modules\n"
        "assert torch._C._get_privateuse1_backend_name() == 'privateuseone'\n"
        "assert str(torch.accelerator.current_accelerator()) in ('None', 'cuda')\n"  # as the wheel is built
        "x = torch.ones(2, requires_grad=True); x.sum().backward()\n"
    )
    done = fresh_python(code, DLBACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("use", ["import dlbackend", "torch.ocl.device_count()"])
def test_beside_cuda_import_or_first_use_takes_the_slot(use: str) -> None:
    code = CUDA_MACHINE + f"{use}\n{USE}\nassert torch.ocl.__name__ == 'dlbackend.ocl'"
    done = fresh_python(code, DLBACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr


def test_a_hidden_cuda_gpu_does_not_count(slot_is_free: None) -> None:
    done = fresh_python(CUDA_MACHINE + USE, DLBACKEND_AUTOLOAD="0", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr


def test_another_extension_keeps_the_slot() -> None:
    taken = "import os, torch; torch.utils.rename_privateuse1_backend('npu')"
    quiet = f"{taken}; import dlbackend_autoload as a; del os.environ['DLBACKEND_AUTOLOAD']; a.autoload()"
    done = fresh_python(f"{quiet}; assert 'dlbackend' not in __import__('sys').modules", DLBACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr
    done = fresh_python(f"{taken}; import dlbackend", DLBACKEND_AUTOLOAD="0")
    assert "ImportError" in done.stderr
    assert "'npu' holds it" in done.stderr


def make_unbuilt(site: Path) -> str:
    return "not built"


def make_for_another_torch(site: Path) -> str:
    (site / "dlbackend" / "_build.py").write_text('VERSION = "0"\nTORCH_VERSION = "1.0.0"\nTORCH_MINOR = "1.0"\n')
    return "built for torch 1.0, but torch"


def make_unloadable(site: Path) -> str:
    shutil.copy(PACKAGE / "_build.py", site / "dlbackend")
    (module,) = PACKAGE.glob("_C.*.so")
    (site / "dlbackend" / module.name).write_bytes(b"not a library")
    return "does not load"


@pytest.mark.parametrize("damage", [make_unbuilt, make_for_another_torch, make_unloadable])
def test_a_build_that_does_not_load_leaves_torch_working(broken: Path, damage) -> None:
    expected = damage(broken)
    path = path_with(broken)
    done = fresh_python("import torch; print(torch.ones(2).sum().item())", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2.0\n"
    assert done.stderr.count(expected) == 1, done.stderr
    assert "pip install" in done.stderr

    done = fresh_python("import torch; import dlbackend", PYTHONPATH=path, DLBACKEND_AUTOLOAD="0")
    assert done.stderr.splitlines()[-1].startswith("ImportError: ")
    assert expected in done.stderr


def test_a_build_that_does_not_load_is_no_error_under_strict_warnings(broken: Path) -> None:
    done = fresh_python("import torch; print('fine')", "-W", "error", PYTHONPATH=path_with(broken))
    assert done.stdout == "fine\n", done.stderr
    assert "not built" in done.stderr
