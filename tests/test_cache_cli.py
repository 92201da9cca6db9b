"""python -m dlbackend cache: shows, checks, clears and carries what the stores hold, also beside running processes."""

import json
import os
import subprocess
import sys
import time

import pytest
from fresh_process import forked_python, run_python
from stores import contents, full_disk, store_in, without_root, write_pack

from dlbackend import _C

DAY = 86400
TAG = "Platform|1.2|A Device|1.2|driver 3"
PROGRAM = f"{TAG}\n-cl-std=CL1.2\nkernel void first(int a) {{}}\nkernel __attribute__((x)) void second() {{}}".encode()
FIND = f"{TAG}|2|cpu\ngemm:m=3".encode()

# Runs commands one after the other in one process: [[status, stdout, stderr], ...].
DRIVER = """
import contextlib, io, json, sys
from dlbackend import __main__
results = []
for command in COMMANDS:
    sys.argv = ["dlbackend", "cache", *command]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = __main__.main()
        except SystemExit as error:
            status = error.code
    results.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


@pytest.fixture
def cli(tmp_path):
    def run(*commands, start=forked_python, **variables):
        variables = {"DLBACKEND_CACHE_DIR": str(tmp_path / "cache"), "DLBACKEND_PACKS": "", **variables}
        result = start(f"COMMANDS = {[command.split() for command in commands]!r}\n{DRIVER}", **variables)
        assert result.returncode == 0, result.stderr
        run.stderr = result.stderr
        return json.loads(result.stdout)

    run.folder = tmp_path / "cache"
    run.programs, run.find = run.folder / "programs", run.folder / "find"
    return run


@pytest.fixture
def filled(cli):
    """A store of each kind with a few entries, one of them of 10 days ago."""
    programs, find = store_in(cli.programs), store_in(cli.find, "find")
    programs.store(PROGRAM, b"binary")
    (old,) = cli.programs.iterdir()
    os.utime(old, (time.time() - 10 * DAY,) * 2)
    programs.store(b"no tag", b"\xff\x00")
    find.store(FIND, b"solver a: 12 us\nsolver b: 15 us")
    return cli


def test_the_command_itself(filled):
    result = run_python("-m", "dlbackend", "cache", "info", DLBACKEND_CACHE_DIR=str(filled.folder), DLBACKEND_PACKS="")
    assert result.returncode == 0, result.stderr
    assert str(filled.folder) in result.stdout
    assert run_python("-m", "dlbackend", "cache").returncode == 2


def test_info(filled, tmp_path):
    fleet = write_pack(tmp_path / "fleet.pack", [("find", b"k", b"p"), ("program", b"k", b"p")])
    bad = tmp_path / "bad.pack"
    bad.write_bytes(fleet.read_bytes()[:-1])
    (status, out, _), (_, only_find, _) = filled("info", f"info --find {bad}", DLBACKEND_PACKS=str(fleet))
    assert status == 0
    lines = {line[:14].strip(): line[15:] for line in out.splitlines()}
    assert lines["cache folder"] == str(filled.folder)
    assert lines["program store"].startswith("2 entries, 0.3 KiB (at most 100000 entries, 512.0 MiB), last used 20")
    assert lines["find store"].startswith("1 entries")
    packs = [line[15:] for line in out.splitlines() if line.startswith("pack")]  # the package's own come behind
    assert packs[0].startswith(f"{fleet}: 1 program, 1 find")
    assert "program store" not in only_find
    assert f"{bad}: 0 program, 1 find" in only_find
    assert "faults" in only_find.splitlines()[-1]


def test_empty_and_absent_folder(cli):
    commands = ("info", "list", "list --json", "verify --repair", "clear")
    results = cli(*commands)
    assert [status for status, *_ in results] == [0] * len(commands)
    assert json.loads(results[2][1]) == []
    results = cli(*commands, DLBACKEND_CACHE_DIR="")
    assert [status for status, *_ in results] == [0] * len(commands)
    assert "nothing is stored" in results[0][1]


def test_list(filled, tmp_path):
    text, as_json, find = (out for _, out, _ in filled("list", "list --json", "list --json --find"))
    assert "first, second" in text
    assert "gemm:m=3\n    solver a: 12 us\n    solver b: 15 us\n" in text
    assert text.count("A Device") == 2
    entries = json.loads(as_json)
    assert [entry["kind"] for entry in entries] == ["program", "program", "find"]
    program = entries[1]  # used 10 days ago: behind the other
    assert program["device"] == TAG
    assert program["device_name"] == "A Device"
    assert program["what"] == "first, second"
    assert program["size"] == os.path.getsize(program["place"])
    assert abs(time.time() - program["used"] - 10 * DAY) < 3600
    assert program["text"] == ""
    assert json.loads(find) == [entries[2]]
    assert entries[2]["text"] == "solver a: 12 us\nsolver b: 15 us"
    pack = write_pack(tmp_path / "x.pack", [("find", FIND, b"from the pack")])
    ((_, out, _),) = filled(f"list --json {pack}")
    (entry,) = json.loads(out)
    assert (entry["place"], entry["text"], entry["used"]) == (str(pack), "from the pack", None)
    missing, as_json = filled(f"list {tmp_path}/missing {pack}", f"list --json {__file__}")
    assert missing[0] == as_json[0] == 1
    assert f"{tmp_path}/missing: No such file" in missing[2]
    assert "from the pack" in missing[1]
    assert json.loads(as_json[1]) == []


def test_list_leaves_out_what_is_damaged(filled):
    (file,) = filled.find.iterdir()
    os.truncate(file, 70)
    ((status, out, _),) = filled("list")
    assert status == 0
    assert "gemm" not in out
    assert file.exists()  # to look is not to touch


def test_clear(filled):
    (filled.programs / "tmp.1.1").write_bytes(b"half")
    os.utime(filled.programs / "tmp.1.1", (1, 1))
    (filled.programs / "README").write_text("foreign")
    ((status, out, _),) = filled("clear --older-than 9 --programs")
    assert status == 0
    assert "program store: 1 entries removed" in out
    assert "find store" not in out
    assert contents(filled.programs) == {b"no tag": b"\xff\x00"}
    assert not (filled.programs / "tmp.1.1").exists()
    results = filled("clear --find", "clear", "clear --older-than x", "clear --older-than -1")
    assert [status for status, *_ in results] == [0, 0, 2, 2]
    assert not contents(filled.find, "find")
    assert [f.name for f in filled.programs.iterdir()] == ["README"]


def test_clear_of_a_read_only_folder(filled):
    filled.programs.chmod(0o500)
    try:
        ((status, _, errors),) = filled("clear", start=without_root)
    finally:
        filled.programs.chmod(0o700)
    assert status == 1
    assert "cannot be written" in errors
    assert len(contents(filled.programs)) == 2


def test_export_and_import(filled, tmp_path):
    pack = tmp_path / "all.pack"
    programs, find = contents(filled.programs), contents(filled.find, "find")
    (damaged,) = (f for f in filled.programs.iterdir() if b"no tag" in f.read_bytes())
    sound = damaged.read_bytes()
    damaged.write_bytes(sound[:-1])
    assert filled(f"export --all {pack}")[0][1].startswith(f"{pack}: 1 program, 1 find")  # without the damaged one
    damaged.write_bytes(sound)
    exported, verified = filled(f"export --all {pack}", f"verify {pack}")
    assert exported[0] == verified[0] == 0
    assert "6 entries checked, 0 wrong" in verified[1]
    _, imported, again = filled("clear", f"import {pack}", f"import {pack}")
    assert "3 entries new, 0 there already, 0 faults" in imported[1]
    assert "0 entries new, 3 there already" in again[1]
    assert contents(filled.programs) == programs
    assert contents(filled.find, "find") == find
    store_in(filled.find, "find").store(FIND, b"my own")
    filled(f"import {pack}")
    assert contents(filled.find, "find") == {FIND: b"my own"}  # what the user has stays


def test_export_takes_this_machines_devices(filled, tmp_path):
    own = _C.device_properties(0).cache_tag.encode() + b"\n\nkernel void broken("
    store_in(filled.programs).store(own, b"binary")
    pack = tmp_path / "mine.pack"
    (status, out, _), (find_status, find_out, _) = filled(f"export {pack}", f"export --find --all {pack}.find")
    assert (status, find_status) == (0, 0)
    assert f"{pack}: 1 program, 0 find" in out
    assert "0 program, 1 find" in find_out
    read = _C.Pack(str(pack)).read(0)
    assert read == ("", "program", own, b"binary")  # as stored: the driver does not build it
    (status, _, errors), *_ = filled(f"export {pack}", DLBACKEND_DEVICES="")
    assert status == 1
    assert "--all" in errors


MULTIPLY = """
import json, torch, dlbackend
a, b = torch.randn(96, 80), torch.randn(80, 72)
assert ((a.to("ocl") @ b.to("ocl")).cpu() - a @ b).abs().max() < 1e-4
print(json.dumps({**dlbackend.solvers.stats(), **dlbackend.kernel_stats()}))
"""


def test_another_machine_starts_warm(cli, tmp_path):
    """Another machine uses through a pack what one compiled and measured, and stores nothing itself, unless other
    processes make machine code of it."""
    variables = {"DLBACKEND_CACHE_DIR": str(cli.folder), "DLBACKEND_PACKS": "", "DLBACKEND_FIND_MODE": "normal"}
    first = json.loads(forked_python(MULTIPLY, **variables).stdout)
    assert first["measured"] >= 1
    pack = tmp_path / "x.pack"
    ((status, out, _), (_, listed, _)) = cli(f"export {pack}", f"list --json --find {pack}")
    assert status == 0
    assert any(entry["what"].startswith("gemm:float32 b=1 m=96") for entry in json.loads(listed)), out
    other = {**variables, "DLBACKEND_CACHE_DIR": str(tmp_path / "other"), "DLBACKEND_PACKS": str(pack)}
    other["DLBACKEND_COMPILE_PROCESSES"] = "0"
    second = json.loads(forked_python(MULTIPLY, **other).stdout)
    assert (second["hits"], second["misses"], second["measured"], second["compiled"]) == (1, 0, 0, 0)
    assert not list((tmp_path / "other").glob("*/*.bin"))


def test_what_was_measured_holds_for_other_versions_of_the_driver(cli, tmp_path):
    """With the same driver it is final; with another the solver is checked once, used, and all is measured again."""
    variables = {"DLBACKEND_CACHE_DIR": str(cli.folder), "DLBACKEND_PACKS": "", "DLBACKEND_FIND_MODE": "normal"}
    forked_python(MULTIPLY, **variables)
    pack, other = tmp_path / "x.pack", tmp_path / "other.pack"
    ((status, *_),) = cli(f"export --find --any-driver {pack}")
    assert status == 0
    found, driver = _C.Pack(str(pack)), _C.device_properties(0).driver_version.replace(" ", "_").encode()
    entries = [found.read(index)[1:] for index in range(len(found.items()))]
    records = [payload for *_, payload in entries if payload.startswith(b"dlbackend-find")]
    assert records
    assert all(b"@" + driver + b"\n" in payload for payload in records)
    write_pack(other, [(kind, key, payload.replace(b"@" + driver, b"@0.1")) for kind, key, payload in entries])
    results = []
    for path in (pack, other):
        caches = {"DLBACKEND_CACHE_DIR": str(tmp_path / path.stem), "DLBACKEND_PACKS": str(path)}
        results.append(json.loads(forked_python(MULTIPLY, **{**variables, **caches}).stdout))
    same, another = results
    assert (same["hits"], same["misses"], same["verified"]) == (1, 0, 0)
    assert (another["hits"], another["misses"], another["verified"]) == (1, 0, 1)


def sizes_by_key(path):
    pack = _C.Pack(str(path))
    return {key: len(payload) for _, _, key, payload in map(pack.read, range(len(pack.items())))}


def test_exported_programs_have_the_code_that_the_driver_made_later(cli, tmp_path):
    """PoCL compiles a kernel for a work-group size at its first launch: a fleet shall not have to."""
    if not _C.device_properties(0).late_code:
        pytest.skip("this driver makes all machine code when it builds a program")
    run = "import torch, dlbackend; print(torch.ones(9).to('ocl:0').add(1).sum().item(), dlbackend.kernel_stats())"
    variables = {
        "DLBACKEND_CACHE_DIR": str(cli.folder),
        "DLBACKEND_PACKS": "",
        "POCL_CACHE_DIR": str(tmp_path / "pocl"),
    }
    assert forked_python(run, **variables).stdout.startswith("18.0")
    pack, as_stored = tmp_path / "x.pack", tmp_path / "stored.pack"
    results = cli(f"export {pack}", f"export --as-stored {as_stored}", **variables)
    assert [status for status, *_ in results] == [0, 0]
    stored, complete = (sizes_by_key(p) for p in (as_stored, pack))
    assert not stored  # the store has only notes
    assert complete
    cold = {
        **variables,
        "DLBACKEND_CACHE_DIR": "",
        "DLBACKEND_PACKS": str(pack),
        "POCL_CACHE_DIR": str(tmp_path / "cold"),
    }
    result = forked_python(run, **cold)
    assert result.stdout.startswith("18.0"), result.stderr
    assert f"'loaded_from_pack': {len(complete)}" in result.stdout


def test_import_of_damaged_packs(cli, tmp_path):
    entries = [("find", b"%d" % n, b"payload %d" % n) for n in range(5)]
    pack = write_pack(tmp_path / "x.pack", entries)
    garbled = bytearray(pack.read_bytes())
    garbled[garbled.index(b"payload 3")] ^= 1
    pack.write_bytes(garbled[:-1])
    (status, out, _), *others = cli(f"import {pack}", f"import {tmp_path}/missing", f"import {__file__}")
    assert status == 0
    assert "3 entries new" in out
    assert contents(cli.find, "find") == {b"%d" % n: b"payload %d" % n for n in range(3)}
    assert [status for status, *_ in others] == [1, 1]
    assert "No such file" in others[0][2]
    assert cli(f"import {pack}", DLBACKEND_CACHE_DIR="")[0][0] == 1


def test_verify_and_repair(filled, tmp_path):
    fleet = write_pack(tmp_path / "fleet.pack", [("find", b"k", b"payload")])
    healthy = f"verify {fleet}"
    assert filled(healthy)[0][:2] == [0, "4 entries checked, 0 wrong\n"]
    first, second = sorted(filled.programs.iterdir())
    (find,) = filled.find.iterdir()
    first.write_bytes(first.read_bytes()[:-1])
    (filled.find / first.name).write_bytes(find.read_bytes())  # under another name
    second.write_bytes(b"DLBKC001" + bytes(100))
    (filled.find / "README").write_text("foreign")
    status, out, _ = filled("verify")[0]
    assert status == 1
    assert f"{first}: ends early" in out
    assert f"{second}: written by another version" in out
    assert f"{filled.find / first.name}: another entry" in out
    assert "4 entries checked, 3 wrong" in out
    assert first.exists()
    (status, out, _), (after, *_) = filled("verify --repair", "verify")
    assert (status, after) == (0, 0)
    assert "3 wrong, 3 removed" in out
    assert not first.exists()
    assert find.exists()
    fleet.write_bytes(fleet.read_bytes()[:-1])
    (status, out, _), (named, *_) = filled("verify --repair", f"verify --find {fleet}", DLBACKEND_PACKS=str(fleet))
    assert (status, named) == (1, 1)
    assert f"{fleet}: the entry at byte 32: ends early" in out
    assert fleet.exists()


def test_full_disk(filled, tmp_path):
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "x.pack"
    ((status, _, errors),) = filled(f"export --all {target}", **full_disk(tmp_path, tmp_path / "out", 200))
    assert status == 1
    assert f"cannot write {target}: No space left on device" in errors
    assert list(target.parent.iterdir()) == []
    filled(f"export --all {target}", "clear")
    ((status, *_),) = filled(f"import {target}", **full_disk(tmp_path, filled.folder, 300))
    assert status == 1
    assert "No space left on device" in filled.stderr
    assert not list(filled.folder.glob("*/tmp.*"))
    assert filled(f"verify {target}", f"import {target}")[0][0] == 0
    assert len(contents(filled.programs)) == 2


BUSY = """
import random, sys, dlbackend
store = dlbackend._C.DiskCache("program", sys.argv[1], 1 << 40, 30)
choose = random.Random(1)
print("ready", flush=True)
while True:
    key = b"%d" % choose.randrange(60)
    got = store.load(key)
    assert got is None or got == key * 9000
    assert store.store(key, key * 9000)
    store.prune()
"""


def test_everything_beside_a_running_process(cli, tmp_path):
    """Entries come and go under every command; neither side sees anything wrong."""
    pack = tmp_path / "x.pack"
    command = [sys.executable, "-c", BUSY, str(cli.programs)]
    busy = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert busy.stdout.readline() == "ready\n"
        round_ = [
            "info",
            "list --json",
            "verify --repair",
            f"export --all {pack}",
            f"verify {pack}",
            f"import {pack}",
            "clear",
        ]
        results = cli(*round_ * 5)
        assert busy.poll() is None
    finally:
        busy.kill()
        _, errors = busy.communicate()
    assert errors == ""
    assert [(status, err) for status, _, err in results] == [(0, "")] * len(results)
    assert all("0 wrong" in out for _, out, _ in results if "checked" in out)
    assert cli("verify")[0][0] == 0
