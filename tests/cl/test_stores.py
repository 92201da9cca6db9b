"""The implementation of both stores, with every fault that a disk, a folder, a clock or another process can bring."""

import os
import shutil
import time

import pytest
from fresh_process import forked_python
from stores import HEADER, contents, full_disk, store_in, without_root

DAY = 86400


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "programs"


def only_file(folder):
    (file,) = folder.iterdir()
    return file


def test_round_trip_of_every_size(folder):
    store = store_in(folder)
    cases = {b"": b"", b"key": b"", b"\0\xff\n" * 5: bytes(range(256)), b"k" * 40000: os.urandom(3 << 20)}
    for key, payload in cases.items():
        assert store.load(key) is None
        assert store.store(key, payload)
        assert store.load(key) == payload
    assert contents(folder) == cases
    assert store.store(b"key", b"new")  # replaces
    assert store.load(b"key") == b"new"
    assert len(store.files()) == len(cases)
    assert folder.stat().st_mode & 0o077 == 0
    assert all(f.stat().st_mode & 0o077 == 0 for f in folder.iterdir())


def test_kinds_do_not_mix(folder):
    """An entry of the other store under the right name is a miss."""
    assert store_in(folder, "find").store(b"key", b"result")
    assert store_in(folder, "program").load(b"key") is None
    assert not list(folder.iterdir())


def test_find_records_of_others_are_seen_a_little_later(folder):
    """The folder is listed now and then, not asked for every key; a program's is asked."""
    store, begin = store_in(folder, "find"), time.monotonic()
    assert store.load(b"absent") is None
    assert store_in(folder, "find").store(b"key", b"result")
    found = store.load(b"key")
    if time.monotonic() - begin < 1:
        assert found is None
    while store.load(b"key") != b"result":
        assert time.monotonic() - begin < 60
        time.sleep(0.05)
    assert store.store(b"own", b"1")
    assert store.load(b"own") == b"1"
    shutil.rmtree(folder)
    assert store.load(b"key") is None
    assert store.load(b"own") is None
    program = store_in(folder)
    assert program.load(b"key") is None
    assert store_in(folder).store(b"key", b"binary")
    assert program.load(b"key") == b"binary"


@pytest.mark.parametrize("size", range(HEADER + 3 + 8))
def test_truncated_anywhere(folder, size):
    store = store_in(folder)
    store.store(b"key", b"8 bytes.")
    file = only_file(folder)
    os.truncate(file, size)
    assert store.read(file.name)[0] == "ends early"
    assert store.load(b"key") is None
    assert not file.exists()
    assert store.store(b"key", b"8 bytes.")
    assert store.load(b"key") == b"8 bytes."


def test_any_byte_garbled(folder):
    store = store_in(folder)
    key, payload = b"a key", b"a payload"
    store.store(key, payload)
    file = only_file(folder)
    sound = file.read_bytes()
    assert len(sound) == HEADER + len(key) + len(payload)
    for at in range(len(sound)):
        for flip in (0x01, 0x80, 0xFF):
            garbled = bytearray(sound)
            garbled[at] ^= flip
            file.write_bytes(garbled)
            assert store.read(file.name)[0], f"byte {at}"
            assert store.load(key) is None, f"byte {at}"
            assert not file.exists()
    file.write_bytes(sound + b"x")  # longer than it says
    assert store.load(key) is None
    store.store(key, payload)
    assert file.read_bytes() == sound


def test_damage_is_said_once_and_foreign_versions_are_not(folder):
    code = f"""
import dlbackend, pathlib
store = dlbackend._C.DiskCache("program", {str(folder)!r}, 1 << 40, 1 << 40)
for round in range(3):
    store.store(b"1", b"payload"), store.store(b"2", b"payload")
    for n, f in enumerate(sorted(pathlib.Path({str(folder)!r}).iterdir())):
        data = bytearray(f.read_bytes())
        data[FIRST:FIRST + 2] = b"99"
        f.write_bytes(data)
    assert store.load(b"1") is None and store.load(b"2") is None
    assert not list(pathlib.Path({str(folder)!r}).iterdir())
"""
    foreign = forked_python(code.replace("FIRST", "6"))  # the version in the magic
    assert (foreign.returncode, foreign.stderr) == (0, "")
    damaged = forked_python(code.replace("FIRST", "64"))
    assert damaged.returncode == 0, damaged.stderr
    assert damaged.stderr.count("\n") == 1
    assert "damaged" in damaged.stderr


def test_an_entry_under_another_name_is_a_miss(folder):
    store = store_in(folder)
    store.store(b"first", b"1")
    first = only_file(folder)
    content = first.read_bytes()
    store.store(b"second", b"2")
    (second,) = (f for f in folder.iterdir() if f != first)
    second.write_bytes(content)
    assert store.load(b"second") is None
    assert store.load(b"first") == b"1"


def test_what_is_no_entry_stays_alone(folder):
    """Foreign files are neither read nor counted nor removed; a pipe by an entry's name does not block."""
    store = store_in(folder, max_entries=1)
    store.store(b"key", b"x")
    file = only_file(folder)
    file.unlink()
    os.mkfifo(file)
    assert store.load(b"key") is None
    (folder / "README").write_text("foreign")
    (folder / "subfolder").mkdir()
    os.utime(folder / "README", (1, 1))
    assert store.store(b"key", b"y")
    store.prune()
    assert store.load(b"key") == b"y"
    assert sorted(f.name for f in folder.iterdir()) == sorted([file.name, "README", "subfolder"])


def test_folder_deleted_under_a_running_process(tmp_path, folder):
    store = store_in(folder)
    for _ in range(2):
        assert store.store(b"key", b"x")
        shutil.rmtree(tmp_path / "cache")
        assert store.load(b"key") is None
        assert store.files() == []
        store.prune()
    assert store.store(b"key", b"x")
    assert store.load(b"key") == b"x"


def aged(folder, store, ages):
    """Stores one entry per age in seconds and returns their files in that order."""
    files = []
    for number, age in enumerate(ages):
        before = set(folder.iterdir()) if folder.exists() else set()
        store.store(b"%d" % number, b"x" * 1000)
        (file,) = set(folder.iterdir()) - before
        os.utime(file, (time.time() - age,) * 2)
        files.append(file)
    return files


def test_least_recently_used_go_first(folder):
    unlimited = store_in(folder)
    files = aged(folder, unlimited, [5 * DAY, 9 * DAY, 2 * DAY, 7 * DAY])
    unlimited.prune()
    assert all(f.exists() for f in files)
    assert unlimited.load(b"1") is not None  # the oldest is used now
    store_in(folder, max_entries=3).prune()
    assert [f.exists() for f in files] == [True, True, True, False]
    store_in(folder, max_bytes=2 * files[0].stat().st_size).prune()
    assert [f.exists() for f in files] == [False, True, True, False]
    store_in(folder, max_bytes=0).prune()
    assert not list(folder.iterdir())


def test_storing_alone_keeps_the_folder_bounded(folder):
    store = store_in(folder, max_entries=100)
    for number in range(400):
        store.store(b"%d" % number, b"x")
    assert 36 < len(store.files()) <= 100 + 64
    assert store.load(b"399") == b"x"


def test_clocks_that_are_wrong(folder):
    """A time far ahead neither keeps an entry for ever nor makes what was just stored go; using it repairs it."""
    store = store_in(folder)
    files = aged(folder, store, [-400 * DAY, 3 * DAY, -900 * DAY, DAY / 24])
    os.utime(files[1], (0, 0))  # stored while the clock stood at 1970
    assert store.load(b"2") is not None
    assert abs(files[2].stat().st_mtime - time.time()) < 60
    for left in (3, 2, 1):
        store_in(folder, max_entries=left).prune()
        assert sum(f.exists() for f in files) == left
        assert files[2].exists()
        assert files[0].exists() is False  # the first to go
        assert files[3].exists() is (left > 1)


def test_stale_temporaries_go_and_fresh_ones_stay(folder):
    store = store_in(folder)
    store.store(b"key", b"x")
    ages = {"tmp.old": 2 * DAY, "tmp.1.0": 10 * DAY, "tmp.ahead": -9 * DAY, "tmp.now": 60}
    for name, age in ages.items():
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (time.time() - age,) * 2)
    store.prune()
    assert sorted(f.name for f in folder.iterdir() if f.name.startswith("tmp.")) == ["tmp.now"]


# Processes that load and store at random, checking what they get; forked, so that they start at once.
WRITERS = """
import os, random, signal, time, dlbackend
def writer(seed, keys, rounds):
    store = dlbackend._C.DiskCache("program", FOLDER, 1 << 40, MOST)
    choose = random.Random(seed)
    for _ in range(rounds):
        key = b"%d" % choose.randrange(keys)
        got = store.load(key)
        assert got is None or got == key * 20000, len(got)
        assert store.store(key, key * 20000)
        if MOST < 1000:
            store.prune()

def start(*args):
    pid = os.fork()
    if pid == 0:
        try:
            writer(*args)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return pid
"""


def run_writers(folder, code, most=1 << 40):
    result = forked_python(f"FOLDER, MOST = {str(folder)!r}, {most}\n{WRITERS}\n{code}")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_killed_at_random_moments(folder):
    """kill -9 leaves sound entries and temporaries, and the next process goes on."""
    run_writers(
        folder,
        """
chance = random.Random(7)
for seed in range(1000):  # until some were hit while they wrote, which a busy machine makes rarer
    pid = start(seed, 30, 10**9)
    time.sleep(chance.uniform(0.001, 0.05))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    kinds = {name.startswith("tmp.") for name in os.listdir(FOLDER)} if os.path.isdir(FOLDER) else set()
    if seed >= 40 and kinds == {True, False}:
        break
""",
    )
    found = contents(folder)
    assert found
    assert all(payload == key * 20000 for key, payload in found.items())
    leftover = list(folder.glob("tmp.*"))
    assert leftover, "nobody was killed while writing"
    for f in leftover:
        os.utime(f, (1, 1))
    run_writers(folder, "writer(99, 30, 40)")
    assert not list(folder.glob("tmp.*"))


@pytest.mark.parametrize(("processes", "keys"), [(2, 1), (2, 500), (8, 1), (8, 20)])
def test_processes_at_once(folder, processes, keys):
    """Readers see whole entries only, whoever writes; no temporary is left."""
    run_writers(
        folder,
        f"""
children = [start(seed, {keys}, 150) for seed in range({processes})]
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
""",
    )
    found = contents(folder)
    assert 1 <= len(found) <= keys
    assert all(payload == key * 20000 for key, payload in found.items())
    assert not list(folder.glob("tmp.*"))


def test_processes_that_prune_each_others_entries(folder):
    run_writers(
        folder,
        """
children = [start(seed, 40, 100) for seed in range(3)]
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
""",
        most=5,
    )
    assert 1 <= len(contents(folder)) <= 5 + 3


def test_no_room_at_any_byte(tmp_path, folder):
    """However little room a disk has, a store that fails leaves nothing, says so once, and disturbs no other entry."""
    store_in(folder).store(b"key", b"old payload")
    whole = HEADER + 3 + 100
    code = f"""
import os, dlbackend
folder = {str(folder)!r}
store = dlbackend._C.DiskCache("program", folder, 1 << 40, 1 << 40)
for room in range({whole} + 2):
    os.environ["ROOM"] = str(room)
    stored = store.store(b"key", b"x" * 100)
    assert stored == (room >= {whole}), room
    assert store.load(b"key") == (b"x" * 100 if stored else b"old payload"), room
    assert len(os.listdir(folder)) == 1, room
"""
    result = forked_python(code, **full_disk(tmp_path, folder, -1))
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("No space left on device") == 1
    assert result.stderr.count("\n") == 1


def test_read_only_folder(folder):
    store_in(folder).store(b"key", b"x")
    os.utime(only_file(folder), (1, 1))  # to be touched by a reader
    folder.chmod(0o500)
    code = f"""
import dlbackend
store = dlbackend._C.DiskCache("program", {str(folder)!r}, 0, 0)
assert store.load(b"key") == b"x"
assert not store.store(b"other", b"y") and not store.store(b"third", b"y")
store.prune()
assert store.load(b"key") == b"x" and store.load(b"other") is None
"""
    try:
        result = without_root(code)
    finally:
        folder.chmod(0o700)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("Permission denied") == 1
    assert len(list(folder.iterdir())) == 1


def test_unreadable_entry_is_a_miss_and_stays(folder):
    store_in(folder).store(b"key", b"x")
    only_file(folder).chmod(0)
    code = f"""
import dlbackend
store = dlbackend._C.DiskCache("program", {str(folder)!r}, 1 << 40, 1 << 40)
assert store.load(b"key") is None
assert store.store(b"key", b"y") and store.load(b"key") == b"y"
"""
    result = without_root(code)
    assert (result.returncode, result.stderr) == (0, "")
