"""The wheel's metadata and libraries, the command-line tools, and processes without a driver or after a fork."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, files, requires
from pathlib import Path

import pytest
import torch
from fresh_process import fresh_python, run_python

import dlbackend
from dlbackend.tools import opencl_probe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PACKAGE = Path(dlbackend.__file__).parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, VERSION = SETTINGS["project"], SETTINGS["tool"]["dlbackend"]["version"]
TORCH_MINOR = ".".join(torch.__version__.split(".")[:2])
# Hides the loader's drivers and, by naming a library, the ones that pip installed.
NO_DRIVER = {"OCL_ICD_VENDORS": "/nonexistent", "DLBACKEND_OPENCL_LIBRARY": "/nonexistent/libOpenCL.so.1"}


def test_version_comes_from_pyproject() -> None:
    assert dlbackend.__version__ == VERSION


def test_build_requires_the_torch_minor_it_was_compiled_for() -> None:
    assert dlbackend._C.torch_minor() == TORCH_MINOR
    code = "import torch_pin; print(torch_pin.dynamic_metadata({}, {}))"
    for tag in ("", "pt213"):
        variables = os.environ | {"PYTHONPATH": str(ROOT / "cmake"), "DLBACKEND_BUILD_TAG": tag}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=variables)
        expected = {"version": VERSION + ("+" + tag if tag else ""), "dependencies": [f"torch=={TORCH_MINOR}.*"]}
        assert done.stdout.strip() == str(expected)


def test_installed_metadata_pins_torch() -> None:
    try:
        found = requires("dlbackend") or []
    except PackageNotFoundError:
        pytest.skip("runs from the source folder: no metadata")
    assert f"torch=={TORCH_MINOR}.*" in found


def test_torch_compile_finds_the_backend_by_name() -> None:
    try:
        files("dlbackend")
    except PackageNotFoundError:
        pytest.skip("runs from the source folder: no metadata")
    assert "ocl" in torch._dynamo.list_backends()


def test_cpu_extra_has_both_parts_of_the_intel_runtime() -> None:
    names = {re.split(r"[ ;]", requirement)[0] for requirement in PROJECT["optional-dependencies"]["cpu"]}
    assert names == {"intel-opencl-rt", "intel-cmplr-lib-rt"}


def test_libraries_link_neither_opencl_nor_clblast_nor_cuda() -> None:
    for library in PACKAGE.glob("*.so"):
        table = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
        needed = re.findall(r"NEEDED.*\[(.*)\]", table)
        assert "libc10.so" in needed
        assert not [name for name in needed if re.search("opencl|clblast|cuda", name, re.IGNORECASE)]


def installed_files(prefix: Path) -> set[str]:
    """The files that the wheel puts into site-packages: by its RECORD where the package is installed, else by the
    build's install rules.
    """
    try:
        return {str(file) for file in files("dlbackend") or ()}
    except PackageNotFoundError:
        if not shutil.which("cmake"):
            pytest.skip("runs from the source folder, without CMake")
        command = ["cmake", "--install", str(ROOT / "build"), "--prefix", str(prefix)]
        subprocess.run(command, check=True, capture_output=True)
        return {str(file.relative_to(prefix)) for file in prefix.rglob("*") if file.is_file()}


def test_the_wheel_has_what_the_build_makes(tmp_path: Path) -> None:
    """And the packs that a release has in packs/: without them an installed package measures anew, unnoticed."""
    found = installed_files(tmp_path)
    packs = {f"dlbackend/packs/{file.name}" for file in (ROOT / "packs").glob("*.pack")}
    cmake = "share/cmake/dlbackend/dlbackendConfig.cmake"
    other = ("_build.py", "libdlbackend.so", "dlbackend-compiler", "include/dlbackend/template.h", cmake)
    missing = {f"dlbackend/{name}" for name in other} | {"dlbackend_autoload.py"}
    assert not missing - found
    assert {name for name in found if name.startswith("dlbackend/packs/")} == packs
    assert any(re.fullmatch(r"dlbackend/_C\..*so", name) for name in found)


def test_packages_are_all_found() -> None:
    """Folders of the Python package are packages, which is what the wheel takes from python/dlbackend."""
    folders = {file.parent for file in (ROOT / "python" / "dlbackend").rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_info_shows_every_device() -> None:
    done = run_python("-m", "dlbackend", "info")
    assert done.returncode == 0, done.stderr
    for index in range(torch.ocl.device_count()):
        properties = torch.ocl.get_device_properties(index)
        assert re.search(rf"^ocl:{index} +{re.escape(properties.name)}$", done.stdout, re.MULTILINE)
        assert properties.driver_version in done.stdout
    assert dlbackend._C.cache_dir() in done.stdout
    assert dlbackend.__version__ in done.stdout


def test_doctor_finds_a_working_device_well() -> None:
    done = run_python("-m", "dlbackend", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout
    assert "ocl:0" in done.stdout
    assert "computes" in done.stdout


def test_doctor_says_what_to_install_without_a_library() -> None:
    done = run_python("-m", "dlbackend", "doctor", **NO_DRIVER)
    assert done.returncode == 1
    assert "[FAIL] no OpenCL library loads" in done.stdout
    assert "apt-get install" in done.stdout


def test_doctor_sees_hidden_drivers() -> None:
    loader = [found for found in map(opencl_probe.probe, opencl_probe.candidates()) if found.get("platforms")]
    if "libOpenCL" not in loader[0]["library"]:
        pytest.skip("the driver is used without an ICD loader")
    hidden = {"OCL_ICD_VENDORS": "/nonexistent", "DLBACKEND_OPENCL_LIBRARY": loader[0]["library"]}
    if run_python(opencl_probe.__file__, **hidden).returncode == 0:
        pytest.skip("this OpenCL loader takes no OCL_ICD_VENDORS")
    done = run_python("-m", "dlbackend", "doctor", **hidden)
    assert done.returncode == 1
    assert "OCL_ICD_VENDORS" in done.stdout


def test_doctor_reports_a_filter_that_selects_nothing() -> None:
    done = run_python("-m", "dlbackend", "doctor", DLBACKEND_DEVICES="no such device")
    assert done.returncode == 1
    assert "DLBACKEND_DEVICES=no such device selects no device" in done.stdout


def test_probe_agrees_with_the_device_count() -> None:
    done = run_python(opencl_probe.__file__)
    assert done.returncode == 0, done.stderr
    devices = [name for platform in json.loads(done.stdout)[-1]["platforms"] for name in platform["devices"]]
    assert len(devices) >= torch.ocl.device_count() > 0


def test_without_a_driver_everything_else_works() -> None:
    code = """
import torch, dlbackend
assert torch.ocl.device_count() == 0 and not torch.ocl.is_available() and not torch.accelerator.is_available()
torch.manual_seed(1)
net = torch.nn.Linear(4, 2)
net(torch.randn(3, 4)).sum().backward()
assert torch.ocl.memory_allocated() == 0
for use in (lambda: torch.ones(2, device="ocl"), torch.ocl.current_device, lambda: net.to("ocl:0")):
    try:
        use()
    except RuntimeError as error:
        assert "python -m dlbackend doctor" in str(error), error
    else:
        raise AssertionError("no error")
"""
    done = fresh_python(code, **NO_DRIVER)
    assert done.returncode == 0, done.stderr


def test_a_forked_child_raises_instead_of_hanging() -> None:
    code = """
import os, torch, dlbackend
x = torch.ones(4, device="ocl") + 1
torch.ocl.synchronize()
child = os.fork()
if child == 0:
    status = 1
    try:
        torch.ones(4, device="ocl") + 1
    except RuntimeError as error:
        if "spawn" in str(error) and not torch.ocl.is_available():
            torch.manual_seed(3)
            status = 0 if (torch.ones(2) + 1).sum() == 4 else 2
    os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert x.sum().item() == 8
"""
    done = fresh_python(code)
    assert done.returncode == 0, done.stderr


def test_a_child_forked_before_first_use_can_use_the_device() -> None:
    code = """
import os, torch, dlbackend
torch.manual_seed(1)
child = os.fork()
if child == 0:
    os._exit(0 if (torch.ones(4, device="ocl") + 1).sum().item() == 8 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (torch.ones(4, device="ocl") + 1).sum().item() == 8
"""
    done = fresh_python(code)
    assert done.returncode == 0, done.stderr


def test_data_loader_workers_beside_a_device_in_use() -> None:
    code = """
import torch, dlbackend
from torch.utils.data import DataLoader, TensorDataset

torch.ones(2, device="ocl").sum().item()
data = TensorDataset(torch.arange(64.0).reshape(16, 4))
batches = [batch.to("ocl") for (batch,) in DataLoader(data, batch_size=4, num_workers=2, pin_memory=True)]
assert torch.cat(batches).cpu().equal(data.tensors[0])
"""
    done = fresh_python(code)
    assert done.returncode == 0, done.stderr


def test_exit_with_work_in_the_queue_is_clean() -> None:
    code = """
import torch, dlbackend
x = torch.ones(1 << 20, device="ocl")
for _ in range(200):
    x = x + 1
"""
    done = fresh_python(code)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


@pytest.mark.parametrize("script", ["scripts/setup.sh", "scripts/run.sh", "scripts/test.sh", ".ci/run"])
def test_scripts_parse(script: str) -> None:
    subprocess.run(["bash", "-n", ROOT / script], check=True)
