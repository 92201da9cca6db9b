"""Packs: read-only entries under the user's stores; whatever is damaged costs its own entries and no others."""

import os
import shutil
import subprocess
import sys

import pytest
from fresh_process import forked_python
from stores import HEADER, PACK_HEADER, full_disk, store_in, without_root, write_pack

from dlbackend import _C

ENTRIES = [
    ("program", b"device\n-O2\nkernel void a()", b"binary of a"),
    ("find", b"device|2|cpu\ngemm:1", b"solver x: 10 us"),
    ("program", b"device\n-O2\nkernel void b()", os.urandom(5000)),
    ("find", b"other|2|cpu\ngemm:1", b""),
]


def found_in(path):
    """{(kind, key): payload} of a pack's sound entries, and everything that is wrong with it."""
    pack = _C.Pack(str(path))
    faults, found = list(pack.faults()), {}
    for index in range(len(pack.items())):
        fault, kind, key, payload = pack.read(index)
        if fault:
            faults.append(fault)
        else:
            found[kind, key] = payload
    return found, faults


WHOLE = {(kind, key): payload for kind, key, payload in ENTRIES}
SIZES = [HEADER + len(key) + len(payload) for _, key, payload in ENTRIES]
ENDS = [PACK_HEADER + sum(SIZES[: n + 1]) for n in range(len(SIZES))]


@pytest.fixture
def pack(tmp_path):
    return write_pack(tmp_path / "fleet.pack", ENTRIES)


def test_round_trip(pack):
    assert pack.stat().st_size == ENDS[-1]
    assert found_in(pack) == (WHOLE, [])
    assert [p.name for p in pack.parent.iterdir()] == ["fleet.pack"]
    assert found_in(write_pack(pack, [])) == ({}, [])


def test_truncated_anywhere(pack):
    sound = pack.read_bytes()
    interesting = {n for end in (0, PACK_HEADER, *ENDS) for n in range(end - 9, end + 80)} | set(
        range(0, len(sound), 97)
    )
    for size in sorted(n for n in interesting if 0 <= n < len(sound)):
        pack.write_bytes(sound[:size])
        found, faults = found_in(pack)
        complete = sum(end <= size for end in ENDS)
        assert found == dict(list(WHOLE.items())[:complete]), size
        assert faults, size


def test_any_byte_garbled(pack):
    """Only the entry that holds the byte is lost, and the fault is found. In the header, nothing is lost."""
    sound = bytearray(pack.read_bytes())
    for at in [*range(ENDS[1] + HEADER + 40), *range(ENDS[1] + HEADER + 40, len(sound), 101), len(sound) - 1]:
        garbled = bytearray(sound)
        garbled[at] ^= 0xFF
        pack.write_bytes(garbled)
        found, faults = found_in(pack)
        lost = [] if at < PACK_HEADER else [next(n for n, end in enumerate(ENDS) if at < end)]
        assert found == {k: v for n, (k, v) in enumerate(WHOLE.items()) if n not in lost}, at
        assert faults, at


@pytest.mark.parametrize("content", [b"", b"x", b"no pack at all" * 1000, b"DLBPACK9" + bytes(5000)])
def test_what_is_no_pack(tmp_path, content):
    path = tmp_path / "x.pack"
    path.write_bytes(content)
    found, faults = found_in(path)
    assert not found
    assert faults


def test_missing_unreadable_and_strange_paths(tmp_path):
    os.mkfifo(tmp_path / "pipe.pack")
    for name in ("missing.pack", "pipe.pack", "."):
        found, faults = found_in(tmp_path / name)
        assert not found
        assert faults


# Looks entries up the way a process does, through a store over the packs of DLBACKEND_PACKS.
LOOK = """
import sys, dlbackend
stores = {"program": dlbackend._C.program_cache(), "find": dlbackend._C.find_cache()}
for kind, key, payload in ENTRIES:
    print(stores[kind].load(key) == payload)
assert stores["find"].load(b"no such key") is None
"""


def look(tmp_path, packs, run=forked_python, entries=ENTRIES, **variables):
    variables = {"DLBACKEND_CACHE_DIR": str(tmp_path / "cache"), "DLBACKEND_PACKS": packs, **variables}
    result = run(f"ENTRIES = {entries!r}\n{LOOK}", **variables)
    assert result.returncode == 0, result.stderr
    return [line == "True" for line in result.stdout.split()], result.stderr


def test_used_without_being_copied(tmp_path, pack):
    assert look(tmp_path, str(pack)) == ([True] * 4, "")
    assert not list((tmp_path / "cache").glob("**/*.bin"))
    assert look(tmp_path, "") == ([False] * 4, "")
    assert look(tmp_path, str(pack), DLBACKEND_CACHE_DIR="") == ([True] * 4, "")  # no folder, but packs


def test_users_entries_come_first_and_packs_in_their_order(tmp_path, pack):
    kind, key, _ = ENTRIES[1]
    other = write_pack(tmp_path / "other.pack", [(kind, key, b"another result")])
    assert look(tmp_path, f"{pack}:{other}") == ([True] * 4, "")
    assert look(tmp_path, f":{other}::{pack}:") == ([True, False, True, True], "")
    store_in(tmp_path / "cache" / "find", "find").store(key, b"the user's own")
    mine = [(kind, key, b"the user's own")]
    assert look(tmp_path, f"{pack}:{other}", entries=mine) == ([True], "")
    (file,) = (tmp_path / "cache" / "find").iterdir()
    file.write_bytes(file.read_bytes()[:-1])  # damaged: the pack's is used
    assert look(tmp_path, str(pack), entries=[ENTRIES[1]])[0] == [True]


def test_damaged_packs_cost_one_warning_each(tmp_path, pack):
    garbled = bytearray(pack.read_bytes())
    garbled[ENDS[0] - 1] ^= 1  # the first entry's payload
    garbled[ENDS[2] + 10] ^= 1  # the last entry's header
    pack.write_bytes(garbled)
    found, errors = look(tmp_path, f"{pack}:{tmp_path / 'missing.pack'}")
    assert found == [False, True, True, False]
    assert sorted(line.split(": ")[1] for line in errors.splitlines()) == sorted(
        [f"pack {pack}", f"pack {tmp_path / 'missing.pack'}"]
    )
    sound = write_pack(tmp_path / "sound.pack", ENTRIES)  # a sound one behind them fills the gaps
    assert look(tmp_path, f"{pack}:{sound}")[0] == [True] * 4


def test_read_only_pack(tmp_path, pack):
    folder = tmp_path / "fleet"
    folder.mkdir()
    pack.rename(folder / "fleet.pack")
    (folder / "fleet.pack").chmod(0o400)
    folder.chmod(0o500)
    try:
        assert look(tmp_path, str(folder / "fleet.pack"), run=without_root) == ([True] * 4, "")
    finally:
        folder.chmod(0o700)


def test_replaced_under_a_running_process(tmp_path, pack):
    """A pack that is renamed over or cut off while in use: what was there goes on being used, or is a miss."""
    code = f"""
import dlbackend, os, shutil
find = dlbackend._C.find_cache()
kind, key, payload = {ENTRIES[1]!r}
assert find.load(key) == payload
os.rename({str(tmp_path / "new.pack")!r}, {str(pack)!r})
assert find.load(key) == payload
"""
    write_pack(tmp_path / "new.pack", [])
    variables = {"DLBACKEND_CACHE_DIR": str(tmp_path / "cache"), "DLBACKEND_PACKS": str(pack)}
    result = forked_python(code, **variables)
    assert (result.returncode, result.stderr) == (0, "")
    write_pack(pack, ENTRIES)
    cut = code.replace(f"os.rename({str(tmp_path / 'new.pack')!r}, {str(pack)!r})", f"os.truncate({str(pack)!r}, 40)")
    result = forked_python(cut.replace("assert find.load(key) == payload\n", "print(find.load(key))\n"), **variables)
    assert result.stdout.splitlines() == [str(ENTRIES[1][2]), "None"]
    assert result.stderr.count("\n") == 1


def test_opened_on_the_first_miss_only(tmp_path, pack):
    """Payloads are not read before they are asked for, and nothing is opened while the user's store hits."""
    _, key, _ = ENTRIES[1]
    store_in(tmp_path / "cache" / "find", "find").store(key, b"mine")
    code = f"""
import dlbackend, os
find, key = dlbackend._C.find_cache(), {key!r}
def is_open():
    return any(os.path.realpath(f"/proc/self/fd/{{fd}}") == {str(pack)!r} for fd in os.listdir("/proc/self/fd"))
assert find.load(key) == b"mine" and not is_open()
assert find.load(b"another") is None and is_open()
"""
    result = forked_python(code, DLBACKEND_CACHE_DIR=str(tmp_path / "cache"), DLBACKEND_PACKS=str(pack))
    assert (result.returncode, result.stderr) == (0, "")


def test_no_room_while_writing_leaves_no_pack(tmp_path):
    code = f"""
import dlbackend, os
target = {str(tmp_path / "out" / "fleet.pack")!r}
for room in (0, 1, 31, 32, 33, 95, 96, 97, 140, 5000):
    os.environ["ROOM"] = str(room)
    try:
        writer = dlbackend._C.PackWriter(target)
        for entry in {ENTRIES!r}:
            writer.add(*entry)
        writer.finish()
    except RuntimeError as error:
        assert "No space left on device" in str(error), error
    else:
        raise AssertionError(room)
    assert os.listdir(os.path.dirname(target)) == [], room
"""
    (tmp_path / "out").mkdir()
    result = forked_python(code, **full_disk(tmp_path, tmp_path / "out", -1))
    assert (result.returncode, result.stderr) == (0, "")


PROGRAMS = """
import torch, dlbackend
x = torch.arange(10, dtype=torch.float32).to("ocl:0")
assert x.mul(3).add(1).neg().cpu().tolist() == [-(3.0 * i + 1) for i in range(10)]
stats = dlbackend.kernel_stats()
print(*(int(stats[name]) for name in ("compiled", "loaded", "loaded_from_pack")))
"""


def run_programs(tmp_path, packs, **variables):
    result = forked_python(
        PROGRAMS, **{"DLBACKEND_CACHE_DIR": str(tmp_path / "cache"), "DLBACKEND_PACKS": packs, **variables}
    )
    assert result.returncode == 0, result.stderr
    return [int(word) for word in result.stdout.split()], result.stderr


@pytest.fixture(scope="module")
def program_pack(tmp_path_factory):
    """A pack of the programs of PROGRAMS, their number, and the entries."""
    tmp_path = tmp_path_factory.mktemp("programs")
    (compiled, _, _), _ = run_programs(tmp_path, "")
    pack = tmp_path / "programs.pack"
    command = ["dlbackend", "cache", "export", "--programs", str(pack)]
    exported = forked_python(
        f"import sys\nfrom dlbackend.__main__ import main\nsys.argv = {command!r}\nsys.exit(main())",
        DLBACKEND_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert exported.returncode == 0, exported.stderr
    entries = [(*entry, payload) for entry, payload in found_in(pack)[0].items()]
    assert len(entries) == compiled >= 3
    return pack, compiled, entries


def test_a_machine_with_a_pack_compiles_nothing(tmp_path, program_pack):
    pack, count, _ = program_pack
    assert run_programs(tmp_path, str(pack), DLBACKEND_COMPILE_PROCESSES="0") == ([0, count, count], "")
    assert not list((tmp_path / "cache").glob("programs/*.bin"))


def test_programs_that_the_driver_refuses_are_compiled(tmp_path, program_pack):
    """Sound entries whose binaries are nonsense to the driver: compiled, stored, and preferred from then on."""
    _, count, entries = program_pack
    bad = write_pack(tmp_path / "bad.pack", [(kind, key, b"no binary") for kind, key, _ in entries])
    assert run_programs(tmp_path, str(bad))[0] == [count, 0, 0]
    assert run_programs(tmp_path, str(bad))[0] == [0, count, 0]


def test_packs_of_the_package(tmp_path, program_pack):
    """Packs in the package's folder packs/ are used with nothing set."""
    pack, count, _ = program_pack
    package = tmp_path / "site" / "dlbackend"
    source = os.path.dirname(os.path.dirname(_C.__file__))
    shutil.copytree(os.path.join(source, "dlbackend"), package, symlinks=False, ignore=shutil.ignore_patterns("*.pack"))
    shutil.copy(os.path.join(source, "dlbackend_autoload.py"), package.parent)
    (package / "packs").mkdir(exist_ok=True)
    shutil.copy(pack, package / "packs" / "shipped.pack")
    environment = {k: v for k, v in os.environ.items() if k != "DLBACKEND_PACKS"}
    environment |= {"DLBACKEND_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(package.parent)}
    command = [sys.executable, "-c", PROGRAMS]
    result = subprocess.run(command, check=False, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stdout.split(), result.stderr) == (0, ["0", str(count), str(count)], "")
