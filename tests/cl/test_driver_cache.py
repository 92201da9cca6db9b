"""PoCL's own cache: damaged files, lost folders and full disks cost a compilation, not the process; it has a bound."""

import itertools
import json
import os
import subprocess

import pytest
from fresh_process import forked_python
from stores import without_root

from dlbackend import _C

pytestmark = pytest.mark.skipif(not _C.device_properties(0).late_code, reason="only PoCL has such a cache")

# The scan's and the sum's programs have several kernels, the sum of two tensors has one.
CODE = """
import torch, dlbackend
x = torch.ones(99, device="ocl:0")
assert (x + x).cumsum(0).sum().item() == 9900
stats = dlbackend.kernel_stats()
print(int(stats["compiled"]), int(stats["loaded"]))
"""


@pytest.fixture
def run(tmp_path):
    def call(code=CODE, start=forked_python, **variables):
        fixed = {"DLBACKEND_CACHE_DIR": str(tmp_path / "cache"), "DLBACKEND_PACKS": "", "TMPDIR": str(tmp_path)}
        result = start(code, **{**fixed, **variables})
        assert result.returncode == 0, result.stderr
        call.stderr = result.stderr
        return tuple(map(int, result.stdout.split()))

    call.folder = tmp_path / "cache" / "pocl"
    return call


@pytest.fixture
def filled(run):
    run.compiled, loaded = run()
    assert run.compiled >= 3
    assert loaded == 0
    assert run() == (0, run.compiled)
    return run


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


DAMAGE = (
    lambda file: os.truncate(file, 1000),
    lambda file: os.truncate(file, file.stat().st_size // 2),
    flip,
    lambda file: os.truncate(file, 0),
)


@pytest.mark.parametrize("pattern", ["program.bc", "*.so"])
def test_damaged_files_are_made_anew(filled, pattern):
    files = list(filled.folder.rglob(pattern))
    assert len(files) >= 4
    for file, damage in zip(files, itertools.cycle(DAMAGE), strict=False):
        damage(file)
    compiled, loaded = filled()
    assert compiled + loaded == filled.compiled
    # Only the IR of several kernels is made again: the store has the rest. A launch makes machine code, uncounted.
    assert (compiled >= 2) == (pattern == "program.bc")
    assert filled.stderr.count(": damaged;") == 1
    assert filled() == (0, filled.compiled)
    assert filled.stderr == ""


def test_what_a_killed_process_left_cut_is_made_anew(run):
    """Its code has no checksums yet."""
    killed = f"{CODE}\nimport os, signal, sys; sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(AssertionError):
        run(killed)
    files = list(run.folder.rglob("*.so"))
    assert len(files) >= 3
    for file in files:
        os.truncate(file, 1000)
    assert run()[0] == 0
    assert run.stderr.count(": damaged;") == 1
    assert run()[0] == 0
    assert run.stderr == ""


def test_lost_programs_count_as_compiled(filled):
    subprocess.run(f"rm -rf {filled.folder}/*", shell=True, check=True)
    assert filled() == (filled.compiled, 0)
    assert filled() == (0, filled.compiled)


FULL = """
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
int statvfs(const char* path, struct statvfs* disk) {
  memset(disk, 0, sizeof *disk);
  disk->f_frsize = 1 << 20;
  const char* full = getenv("FULL_DISK");
  disk->f_bavail = !full || strncmp(path, full, strlen(full)) ? 1000 : 1;
  return 0;
}
"""


def test_full_disk(run, tmp_path):
    """PoCL's compiler would end the process: where there is no room for its files they go elsewhere."""
    (tmp_path / "full.c").write_text(FULL)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "full.so", tmp_path / "full.c"], check=True)
    full = {"LD_PRELOAD": str(tmp_path / "full.so"), "FULL_DISK": str(run.folder)}
    assert run(**full)[0] >= 3
    assert run.stderr.count(f"no room in {run.folder}") == 1
    assert not list(run.folder.rglob("program.bc"))
    (elsewhere,) = tmp_path.glob("dlbackend-pocl-*")
    assert list(elsewhere.rglob("program.bc"))
    run(**{**full, "POCL_CACHE_DIR": str(run.folder)})
    assert run.stderr.count("no room in") == 1


FILLS_LATER = """
import os, pytest, torch, dlbackend
x = torch.rand(100).to("ocl:0")
wanted = x.exp().cpu()
os.environ["FULL_DISK"] = FOLDER
for _ in range(2):
    with pytest.raises(RuntimeError, match=f"the disk of {FOLDER} is full.*POCL_CACHE_DIR"):
        x.erfinv()
assert torch.equal(x.exp().cpu(), wanted)  # what is compiled runs on
del os.environ["FULL_DISK"]
torch.testing.assert_close(x.erfinv().cpu(), x.cpu().erfinv())
"""


def test_disk_that_fills_up_later(run, tmp_path):
    """An error instead of the end of the process, and all is well when there is room again."""
    (tmp_path / "full.c").write_text(FULL)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "full.so", tmp_path / "full.c"], check=True)
    code = FILLS_LATER.replace("FOLDER", repr(str(run.folder)))
    result = forked_python(
        code, LD_PRELOAD=str(tmp_path / "full.so"), POCL_CACHE_DIR=str(run.folder), DLBACKEND_CACHE_DIR=""
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_folder_for_temporary_files_of_another_user(tmp_path):
    """Code is loaded from it: one that others can write, or have made, is not used."""
    code = "import os; [os.environ.pop(v, 0) for v in ('DLBACKEND_CACHE_DIR', 'XDG_CACHE_HOME')]\n"
    code += "from dlbackend import _C; print(_C.cache_dir())"
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    folder = tmp_path / f"dlbackend-{os.geteuid()}"

    def cache_dir():
        result = without_root(code, HOME=str(home), TMPDIR=str(tmp_path))
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    assert cache_dir() == str(folder)
    folder.chmod(0o777)
    assert cache_dir() == ""
    folder.rmdir()
    (tmp_path / "real").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "real")
    assert cache_dir() == ""
    folder.unlink()
    folder.mkdir(mode=0o700)
    assert cache_dir() == str(folder)
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
        assert cache_dir() == ""


def test_bound(filled):
    """Programs beyond 512 MiB go, the least recently used first, and what killed processes left."""
    old = filled.folder / "AB" / ("C" * 37)
    old.mkdir(parents=True)
    (old / "last_accessed").touch()
    with (old / "program.bc").open("wb") as file:
        file.truncate(600 << 20)  # sparse
    left = filled.folder / "tempfile_abc"
    left.touch()
    for file in (old / "last_accessed", left):
        os.utime(file, (1, 1))
    next((filled.folder.parent / "programs").iterdir()).unlink()
    assert filled()[0] == 1  # storing the missing one prunes
    assert not old.exists()
    assert not left.exists()
    assert filled() == (0, filled.compiled)


CLI = """
import contextlib, io, json, sys
from dlbackend import __main__
results = []
for command in COMMANDS:
    sys.argv = ["dlbackend", "cache", *command.split()]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = __main__.main()
    results.append([status, out.getvalue()])
print(json.dumps(results))
"""


def test_command(filled, tmp_path):
    def cli(*commands, **variables):
        fixed = {"DLBACKEND_CACHE_DIR": str(tmp_path / "cache"), "DLBACKEND_PACKS": ""}
        result = forked_python(f"COMMANDS = {list(commands)!r}\n{CLI}", **{**fixed, **variables})
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    programs = list(filled.folder.glob("*/*/program.bc"))
    (_, info), (status, _), (_, find) = cli("info", "verify", "info --find")
    assert f"driver store   {len(programs)} entries" in info
    assert "driver" not in find
    assert status == 0
    flip(programs[0])
    (first, out), (second, _), (third, _) = cli("verify", "verify --repair", "verify")
    assert (first, second, third) == (1, 0, 0)
    assert "program.bc" in out
    assert not programs[0].parent.exists()
    ((_, out),) = cli("info", POCL_CACHE_DIR=str(tmp_path / "users"))
    assert "driver" not in out  # not ours
    cli("clear")
    assert not list(filled.folder.glob("*/*"))
    assert filled() == (filled.compiled, 0)
