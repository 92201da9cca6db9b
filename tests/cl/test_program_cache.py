"""The disk cache of programs: second processes compile nothing; bad files, folders and disks do no harm."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fresh_process import forked_python
from stores import full_disk, without_root

from dlbackend import _C

CODE = """
import torch, dlbackend
x = torch.arange(10, dtype=torch.float32).to("ocl:0")
assert x.mul(3).add(1).neg().cpu().tolist() == [-(3.0 * i + 1) for i in range(10)]
stats = dlbackend.kernel_stats()
print(int(stats["compiled"]), int(stats["loaded"]))
"""


def counts(result):
    assert result.returncode == 0, result.stderr
    compiled, loaded = map(int, result.stdout.split())
    return compiled, loaded


@pytest.fixture
def run(tmp_path):
    def call(code=CODE, folder=tmp_path / "cache", **variables):
        return forked_python(code, **{"DLBACKEND_CACHE_DIR": str(folder), "DLBACKEND_PACKS": "", **variables})

    call.programs = tmp_path / "cache" / "programs"
    return call


@pytest.fixture
def filled(run):
    compiled, loaded = counts(run())
    assert compiled >= 3
    assert loaded == 0
    run.compiled = compiled
    run.files = sorted(run.programs.iterdir())
    assert len(run.files) == compiled
    return run


def test_second_process_compiles_nothing_and_bad_entries_are_rewritten(filled):
    assert counts(filled()) == (0, filled.compiled)
    first, second, third = filled.files[:3]
    sound = {f: f.read_bytes() for f in filled.files}
    first.write_bytes(sound[first][: len(sound[first]) // 2])  # truncated
    garbled = bytearray(sound[second])
    garbled[len(garbled) // 2] ^= 0x55
    second.write_bytes(garbled)
    third.write_bytes(sound[first])  # an entry of another key
    (filled.programs / "README").write_text("foreign")
    (filled.programs / ("0" * 32 + ".bin")).write_bytes(b"foreign")
    result = filled()
    assert counts(result) == (3, filled.compiled - 3)
    for f in (first, second, third):  # byte for byte, or at least sound again
        assert f.stat().st_size > 0
    assert counts(filled()) == (0, filled.compiled)
    for f in filled.files:  # empty files
        f.write_bytes(b"")
    assert counts(filled()) == (filled.compiled, 0)
    assert counts(filled()) == (0, filled.compiled)


def test_unusable_folders(run, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    result = run(folder=blocked)
    compiled, loaded = counts(result)
    assert compiled >= 3
    assert loaded == 0
    assert result.stderr.count("dlbackend: disk cache:") == 1  # said once
    assert counts(run(folder=""))[1] == 0  # no cache wanted


def test_read_only_folder(filled):
    for f in filled.files[1:]:
        f.unlink()
    filled.programs.chmod(0o500)
    try:
        result = without_root(CODE, DLBACKEND_CACHE_DIR=str(filled.programs.parent), DLBACKEND_PACKS="")
        assert counts(result) == (filled.compiled - 1, 1)
        assert result.stderr.count("dlbackend: disk cache:") == 1
    finally:
        filled.programs.chmod(0o700)


def test_full_disk(run, tmp_path):
    """A disk with room for 300 bytes: nothing is stored, no half file stays, everything works, with one warning."""
    result = run(**full_disk(tmp_path, run.programs, 300))
    compiled, _ = counts(result)
    assert compiled >= 3
    assert result.stderr.count("No space left on device") == 1
    assert list(run.programs.iterdir()) == []
    assert counts(run())[0] == compiled


def test_killed_while_writing(run, tmp_path):
    """kill -9 at any moment leaves a cache that the next process can use."""
    environment = {**os.environ, "DLBACKEND_CACHE_DIR": str(tmp_path / "cache"), "DLBACKEND_PACKS": ""}
    for delay in (0.0, 0.05, 0.15):
        process = subprocess.Popen([sys.executable, "-c", CODE], env=environment, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not (run.programs.exists() and any(run.programs.iterdir())) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
    leftover = run.programs / "tmp.1.0"
    leftover.write_bytes(b"half")
    counts(run())
    assert counts(run())[0] == 0


def test_two_processes_at_once(run, tmp_path):
    environment = {**os.environ, "DLBACKEND_CACHE_DIR": str(tmp_path / "cache"), "DLBACKEND_PACKS": ""}
    processes = [
        subprocess.Popen([sys.executable, "-c", CODE], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        assert sum(map(int, out.split())) >= 3
    assert counts(run())[0] == 0
    assert not list(run.programs.glob("tmp.*"))


def test_entries_do_not_pile_up_beyond_the_limit(run):
    """Old entries of a folder above the limit go, the least recently used first, and stale temporaries with them."""
    counts(run())
    mine = set(run.programs.iterdir())
    old = run.programs / ("a" * 32 + ".bin")
    with old.open("wb") as f:
        f.truncate(600 << 20)  # sparse
    stale = run.programs / "tmp.99999.7"
    stale.write_bytes(b"x")
    for f in (old, stale):
        os.utime(f, (1, 1))
    victim = next(iter(mine))
    victim.unlink()
    assert counts(run())[0] == 1  # the store of the missing one prunes
    assert not old.exists()
    assert not stale.exists()
    assert victim.exists()


def test_read_only_home(tmp_path):
    """Where neither the home nor XDG_CACHE_HOME can be written, the cache goes to the folder for temporary files."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir(mode=0o500)
    temporary.mkdir()
    code = f"import os; os.environ.pop('DLBACKEND_CACHE_DIR', None); os.environ.pop('XDG_CACHE_HOME', None)\n{CODE}"
    result = without_root(code, HOME=str(home), TMPDIR=str(temporary), DLBACKEND_PACKS="")
    assert counts(result)[0] >= 3
    assert result.stderr == ""
    assert list(temporary.glob("dlbackend-*/programs/*.bin"))


def test_folder_is_private_and_default_location_honours_xdg(tmp_path):
    code = "import torch, dlbackend; torch.ones(2).to('ocl:0').add(1); print(dlbackend._C.cache_dir())"
    environment = {"XDG_CACHE_HOME": str(tmp_path), "HOME": "/nonexistent"}
    removed = f"import os; os.environ.pop('DLBACKEND_CACHE_DIR', None); {code}"
    result = forked_python(removed, **environment)
    assert result.returncode == 0, result.stderr
    folder = Path(result.stdout.strip())
    assert folder == tmp_path / "dlbackend"
    assert folder.stat().st_mode & 0o077 == 0


PREFETCH = """
import threading, dlbackend
_C = dlbackend._C
body = "kernel void %s(global float* y) { y[get_global_id(0)] = %d.0f; }"
programs = [(body % (f"k{i}", i), "-DUNUSED" if i % 2 else "") for i in range(6)]
programs += [("kernel void broken(", ""), programs[0]]
seen = []
def progress(done):
    seen.append((done, threading.get_ident()))
    return True
assert _C.prefetch(0, programs, 3, progress) == 7
assert [done for done, _ in seen] == list(range(1, 9))
first = dlbackend.kernel_stats()
assert _C.prefetch(0, programs) == 7
stats = dlbackend.kernel_stats()
assert (stats["compiled"], stats["loaded"]) == (first["compiled"], first["loaded"])  # still in memory
print(int(stats["compiled"]), int(stats["loaded"]))
"""


def test_prefetch(run):
    """Programs are built in parallel, once each; one that does not build disturbs nothing; then they are loaded."""
    assert counts(run(PREFETCH)) == (6, 0)
    assert len(list(run.programs.iterdir())) == 6
    assert counts(run(PREFETCH)) == (0, 6)


def test_prefetch_ends_when_told_and_raises_what_its_callback_raises(run):
    code = """
import dlbackend
programs = [(f"kernel void k(global int* y) {{ *y = {i}; }}", "") for i in range(5)]
assert dlbackend._C.prefetch(0, programs, 1, lambda done: done < 2) == 2
def fail(done):
    raise KeyError("mine")
try:
    dlbackend._C.prefetch(0, programs, 2, fail)
except KeyError as error:
    print(error.args)
assert dlbackend._C.prefetch(0, []) == 0
"""
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "('mine',)\n"


def test_programs_that_the_driver_keeps_are_compiled_where_its_cache_is_another(run, tmp_path):
    """The store has only a note of programs with several kernels, which PoCL's own cache keeps and may lose."""
    if not _C.device_properties(0).late_code:
        pytest.skip("this driver's binaries are all stored")
    code = CODE.replace("stats =", "assert torch.ones(99, device='ocl:0').cumsum(0).sum().item() == 4950; stats =")
    here, there = ({"POCL_CACHE_DIR": str(tmp_path / name)} for name in ("here", "there"))
    compiled, _ = counts(run(code, **here))
    assert counts(run(code, **here)) == (0, compiled)
    again, loaded = counts(run(code, **there))
    assert again >= 2  # the sum's and the scan's
    assert loaded == compiled - again
    assert counts(run(code, **there)) == (0, compiled)
    assert counts(run(code, POCL_KERNEL_CACHE="0", **there)) == (again, loaded)


MANY = """
import threading, torch, dlbackend
names = "exp log1p sin cos tan tanh sqrt abs neg erf floor ceil round sigmoid rsqrt sign sum prod amax argmin".split()
x = torch.rand(1000) + 0.5
there, wanted = x.to("ocl:0"), {name: getattr(x, name)() for name in names}
def use(order):
    for _ in range(2):
        for name in order:
            got = getattr(there, name)()
            torch.testing.assert_close(got.cpu(), wanted[name], rtol=1e-4, atol=1e-4)
    done.append(1)
done = []
threads = [threading.Thread(target=use, args=(names[i * 5:] + names[:i * 5],)) for i in range(4)]
for t in threads: t.start()
for t in threads: t.join()
assert len(done) == 4
stats = dlbackend.kernel_stats()
print(int(stats["compiled"]), int(stats["loaded"]), int(stats["evicted"]))
"""


@pytest.mark.slow
def test_programs_in_memory_are_bounded(run):
    """The programs used least recently go, also under other threads' launches, and come back from the disk."""
    compiled, loaded, evicted = map(int, run(MANY).stdout.split())
    assert compiled >= 20
    assert (loaded, evicted) == (0, 0)
    bounded = run(MANY, DLBACKEND_MAX_PROGRAMS="8")
    assert bounded.returncode == 0, bounded.stderr
    compiled_again, loaded, evicted = map(int, bounded.stdout.split())
    assert compiled_again == 0
    assert loaded - 8 <= evicted <= loaded
    assert evicted > compiled  # each went several times
    # Where there is no disk to load from, they are compiled again.
    nowhere = run(MANY, folder="", DLBACKEND_MAX_PROGRAMS="16")
    assert nowhere.returncode == 0, nowhere.stderr
    assert int(nowhere.stdout.split()[0]) > compiled
    assert "DLBACKEND_MAX_PROGRAMS=few is ignored" in run(DLBACKEND_MAX_PROGRAMS="few").stderr


AT_ONCE = """
import torch, dlbackend
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).to("ocl:0")
x = torch.randn(2, 3, 9, 9, device="ocl:0")
dlbackend.precompile(net, x)
for _ in range(2):
    assert net(x).softmax(1).cumsum(0).isfinite().all().item()
print(int(dlbackend.kernel_stats()["evicted"]))
"""


@pytest.mark.parametrize("most", [1, 4])
def test_a_program_stays_until_it_is_launched(run, most):
    """It stays even where all others were made since the last launch, and none is older."""
    result = run(AT_ONCE, DLBACKEND_MAX_PROGRAMS=str(most), DLBACKEND_FIND_MODE="fast")
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[-1]) > 10
