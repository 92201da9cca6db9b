"""python -m dlbackend cache: what is kept on disk between processes, and packs of it for other machines.

Two stores lie under the cache folder: programs (compiled kernels) and find (results of measuring solvers). Under them
lie packs, read-only files with entries of both; beside them lies PoCL's own cache, which `info`, `clear` and `verify`
cover. Everything here may run beside processes that use the stores: an entry that they remove meanwhile is left out,
and processes that need one which was removed here make it again.
"""

import argparse
import datetime
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

from dlbackend import _C, ocl, outputs
from dlbackend.progress import progress

MIB = 1 << 20
GONE = ("removed meanwhile", "", b"", b"")


@dataclass
class Entry:
    """One sound entry of a store or a pack. `used` is in seconds since 1970; a pack's entries have none."""

    kind: str  # "program" or "find"
    place: str  # the entry's file, or the pack
    device: str
    size: int  # bytes
    used: float | None
    what: str  # the kernels of a program, the problem of a find entry
    text: str  # the payload of a find entry

    @classmethod
    def of(cls, kind: str, place: str, key: bytes, payload: bytes, size: int, used: float | None) -> "Entry":
        tag, _, subject = key.decode(errors="replace").partition("\n")
        if kind == "program":
            names = re.findall(r"\bkernel\s+(?:__attribute__\s*\(\(.*?\)\)\s*)*void\s+(\w+)", subject)
            names = names or [name.decode() for name in re.findall(rb"\.entry\s+(\w+)", payload)]  # PTX
            return cls(kind, place, tag, size, used, ", ".join(names), "")
        return cls(kind, place, tag, size, used, subject, payload.decode(errors="replace"))

    @property
    def device_name(self) -> str:
        """The device's own name, out of the tag: platform|platform version|name|device version|driver version."""
        parts = self.device.split("|")
        return parts[2] if len(parts) > 2 else self.device


def stores(args: argparse.Namespace) -> list[_C.DiskCache]:
    """The user's stores that the options ask for."""
    both = args.programs == args.find
    return [
        store for store, wanted in ((_C.program_cache(), args.programs), (_C.find_cache(), args.find)) if both or wanted
    ]


def kept(args: argparse.Namespace) -> list[_C.DiskCache | _C.DriverCache]:
    """The stores that the options ask for and, with the programs, what PoCL keeps of them in the same folder."""
    driver = _C.driver_cache()
    wanted = args.programs or not args.find
    return [*stores(args), *([driver] if wanted and driver.folder else [])]


def packs(named: Iterable[str]) -> list[_C.Pack]:
    """The packs that processes here look into, and the named ones."""
    return _C.system_packs() + [_C.Pack(path) for path in named]


def _size(size: float) -> str:
    return f"{size / MIB:.1f} MiB" if size >= MIB / 10 else f"{size / 1024:.1f} KiB"


def _time(used: float | None) -> str:
    if used is None:
        return "-"
    try:
        return datetime.datetime.fromtimestamp(used).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return "?"


def info(args: argparse.Namespace) -> int:
    """Folder, entries, sizes, limits and packs."""
    rows = [("cache folder", _C.cache_dir() or "none: nothing is stored")]
    for store in kept(args):
        files = store.files()
        if isinstance(store, _C.DriverCache):
            limits = f"at most {_size(store.max_bytes)}"
        else:
            limits = f"at most {store.max_entries} entries, {_size(store.max_bytes)}"
        used = f", last used {_time(max(file[2] for file in files))}" if files else ""
        size = _size(sum(file[1] for file in files))
        rows.append((f"{store.kind} store", f"{len(files)} entries, {size} ({limits}){used}"))
    for pack in packs(args.packs):
        items = pack.items()
        counts = ", ".join(f"{sum(kind == k for k, _ in items)} {kind}" for kind in ("program", "find"))
        faults = f"; {len(pack.faults())} faults: see `cache verify`" if pack.faults() else ""
        rows.append(("pack", f"{pack.path}: {counts}, {_size(sum(size for _, size in items))}{faults}"))
    print("\n".join(f"{name:<14} {value}" for name, value in rows))
    return 0


def entries(args: argparse.Namespace) -> Iterator[Entry]:
    """The sound entries of the user's stores, or of the packs that are named."""
    wanted = {store.kind for store in stores(args)}
    for pack in (_C.Pack(path) for path in args.packs):
        for index, (_, size) in enumerate(pack.items()):
            fault, kind, key, payload = pack.read(index)
            if not fault and kind in wanted:
                yield Entry.of(kind, pack.path, key, payload, size, None)
    if args.packs:
        return
    for store in stores(args):
        for name, size, used in sorted(store.files(), key=lambda file: -file[2]):
            fault, kind, key, payload = store.read(name) or GONE
            if not fault:
                yield Entry.of(kind, os.path.join(store.folder, name), key, payload, size, used)


def list_entries(args: argparse.Namespace) -> int:
    """One line per entry, the last used first; with --json an array. 1 if a named pack has nothing that can be read."""
    unreadable = [pack for pack in (_C.Pack(path) for path in args.packs) if pack.faults() and not pack.items()]
    for pack in unreadable:
        print(f"{pack.path}: {'; '.join(pack.faults())}", file=sys.stderr)
    if args.json:
        print(json.dumps([{**asdict(entry), "device_name": entry.device_name} for entry in entries(args)], indent=1))
        return 1 if unreadable else 0
    for entry in entries(args):
        head = f"{entry.kind:<8} {_size(entry.size):>10}  {_time(entry.used):<16}  {entry.device_name}"
        print(f"{head}  {entry.what}")
        if entry.text:
            print("    " + entry.text.rstrip("\n").replace("\n", "\n    "))
    return 1 if unreadable else 0


def clear(args: argparse.Namespace) -> int:
    """Removes the user's entries, or those not used for some days."""
    before = time.time() - args.older_than * 86400 if args.older_than is not None else float("inf")
    for store in kept(args):
        doomed = [(name, size) for name, size, used in store.files() if used < before]
        removed = [size for name, size in progress(doomed, f"clear {store.kind}") if store.remove(name)]
        store.prune()  # temporaries of killed processes
        print(f"{store.kind} store: {len(removed)} entries removed, {_size(sum(removed))}")
        if len(removed) < len(doomed) and not os.access(store.folder, os.W_OK):
            print(f"{store.folder} cannot be written", file=sys.stderr)
            return 1
    return 0


def _complete(device: int | None, key: bytes, stored: bytes) -> bytes:
    """A program with the machine code that its driver has made since it was stored, where drivers add some later."""
    if device is None or not _C.device_properties(device).late_code:
        return stored
    try:
        return _C.complete_binary(device, key)
    except RuntimeError:  # the driver builds it no longer: what was stored may still load
        return stored


def _device_of(key: bytes) -> int | None:
    """The device here that a key belongs to: its first line is the device's tag, found results add "|" and more."""
    place = key.partition(b"\n")[0] + b"|"
    for index in range(ocl.device_count()):
        if place.startswith(_C.device_properties(index).cache_tag.encode() + b"|"):
            return index
    return None


def _for_any_driver(key: bytes, record: bytes) -> tuple[bytes, bytes]:
    """A find record under the key that holds for every version of its device's driver; the version goes into it.

    The place, a key's first line: platform|platform version|device|device version|driver version|units|class.
    """
    place, _, problem = key.partition(b"\n")
    parts = place.split(b"|")
    if len(parts) != 7 or not record.startswith(b"dlbackend-find "):
        return key, record
    head, newline, rest = record.partition(b"\n")
    driver = parts[4].replace(b" ", b"_")
    for version in (1, 3, 4):
        parts[version] = b"*"
    return b"|".join(parts) + b"\n" + problem, head + b"@" + driver + newline + rest


def export(args: argparse.Namespace) -> int:
    """Writes a pack with the user's entries of this machine's devices, or with --all of every device."""
    if ocl.device_count() == 0 and not args.all:
        print("No device here whose entries could be told from others'. --all exports all.", file=sys.stderr)
        return 1
    writer = _C.PackWriter(str(args.file))
    counts = {"program": 0, "find": 0}
    try:
        for store in stores(args):
            for name, *_ in progress(sorted(store.files()), f"export {store.kind}"):
                fault, kind, key, payload = store.read(name) or GONE
                device = _device_of(key)
                if fault or (device is None and not args.all):
                    continue
                if kind == "program" and not args.as_stored:
                    payload = _complete(device, key, payload)
                if kind == "program" and _C.is_note(payload):
                    continue
                if kind == "program" and args.any_driver and device is not None:
                    key, payload = _C.portable_program(device, key, payload) or (key, payload)
                if kind == "find" and args.any_driver:
                    if not payload.startswith(b"dlbackend-find "):
                        continue  # a device's rates, which hold for its driver
                    key, payload = _for_any_driver(key, payload)
                writer.add(kind, key, payload)
                counts[kind] += 1
        writer.finish()
    finally:
        writer.discard()
    print(f"{args.file}: {counts['program']} program, {counts['find']} find, {_size(args.file.stat().st_size)}")
    return 0


def import_pack(args: argparse.Namespace) -> int:
    """Puts a pack's sound entries into the user's stores. Those that are there already stay as they are."""
    if not _C.cache_dir():
        print("There is no cache folder: DLBACKEND_CACHE_DIR is empty.", file=sys.stderr)
        return 1
    pack = _C.Pack(args.file)
    if not pack.items():
        print(f"{args.file}: {'; '.join(pack.faults()) or 'no entries'}", file=sys.stderr)
        return 1
    counts = dict.fromkeys(("new", "there already", "damaged"), 0)
    # The stores are opened without the packs under them: imported entries must be there without packs.
    by_kind = {
        store.kind: _C.DiskCache(store.kind, store.folder, store.max_bytes, store.max_entries)
        for store in (_C.program_cache(), _C.find_cache())
    }
    for index in progress(range(len(pack.items())), "import"):
        fault, kind, key, payload = pack.read(index)
        if fault:
            counts["damaged"] += 1
        elif by_kind[kind].load(key) is not None:
            counts["there already"] += 1
        elif by_kind[kind].store(key, payload):
            counts["new"] += 1
        else:
            return 1  # it said why
    for store in by_kind.values():
        store.prune()
    damaged = counts["damaged"] + len(pack.faults())
    print(f"{args.file}: {counts['new']} entries new, {counts['there already']} there already, {damaged} faults")
    return 0


def verify(args: argparse.Namespace) -> int:
    """Checks every entry and pack, prints what is wrong; 1 if anything is, unless --repair removed it."""
    wrong = left = count = 0
    for store in kept(args):
        for name, *_ in progress(store.files(), f"verify {store.kind}"):
            count += 1
            found = store.read(name)
            fault = found[0] if found else ""
            if not fault:
                continue
            wrong += 1
            removed = args.repair and store.remove(name)
            left += not removed
            print(f"{os.path.join(store.folder, name)}: {fault}{'; removed' if removed else ''}")
    for pack in packs(args.packs):
        faults = pack.faults()
        for index in progress(range(len(pack.items())), "verify pack"):
            count += 1
            fault, *_ = pack.read(index)
            if fault:
                faults.append(f"entry {index}: {fault}")
        wrong += len(faults)
        left += len(faults)  # packs are never changed: they belong to others
        for fault in faults:
            print(f"{pack.path}: {fault}")
    print(f"{count} entries checked, {wrong} wrong" + (f", {wrong - left} removed" if args.repair else ""))
    return 1 if left else 0


def _reporting(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """`run` with failures of the system as a line on stderr and status 1."""

    def reported(args: argparse.Namespace) -> int:
        try:
            return run(args)
        except (OSError, RuntimeError) as error:
            print(f"dlbackend cache: {error}", file=sys.stderr)
            return 1

    return reported


def _days(text: str) -> float:
    days = float(text)
    if not days >= 0:
        raise argparse.ArgumentTypeError("a number of days, 0 or more")
    return days


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands. Each sets `run`, which takes the parsed arguments and returns the exit status."""
    commands = parser.add_subparsers(required=True, metavar="action")
    kinds = argparse.ArgumentParser(add_help=False)
    kinds.add_argument("--programs", action="store_true", help="only compiled kernels")
    kinds.add_argument("--find", action="store_true", help="only results of measuring solvers")
    some = argparse.ArgumentParser(add_help=False)
    some.add_argument("packs", nargs="*", metavar="PACK", help="also this pack")
    these = argparse.ArgumentParser(add_help=False)
    these.add_argument("packs", nargs="*", metavar="PACK", help="what is in this pack, instead of in the cache folder")
    for name, run, parents, about in (
        ("info", info, (kinds, some), "folder, number and size of entries, limits, packs"),
        ("list", list_entries, (kinds, these), "every entry: kind, size, last use, device, what it is for"),
        ("clear", clear, (kinds,), "remove entries"),
        ("export", export, (kinds,), "write the entries of this machine's devices into a pack"),
        ("import", import_pack, (), "put a pack's sound entries into the cache folder"),
        ("verify", verify, (kinds, some), "check every entry and pack; exit status 1 if any is wrong"),
    ):
        command = commands.add_parser(name, help=about, description=about, parents=list(parents))
        command.set_defaults(run=_reporting(run))
        _add_options(name, command)


def _add_options(name: str, command: argparse.ArgumentParser) -> None:
    if name == "list":
        command.add_argument("--json", action="store_true", help="as a JSON array, with full device tags")
    elif name == "clear":
        command.add_argument("--older-than", type=_days, metavar="DAYS", help="only those not used for so long")
    elif name == "export":
        command.add_argument("file", type=outputs.file, metavar="FILE")
        command.add_argument("--all", action="store_true", help="entries of every device")
        about = "only what the store holds: do not ask the driver for what it made later (PoCL: most code)"
        command.add_argument("--as-stored", action="store_true", help=about)
        about = "what measuring found, and programs in PTX, shall hold for other versions of the driver too"
        command.add_argument("--any-driver", action="store_true", help=about)
    elif name == "import":
        command.add_argument("file", metavar="FILE")
    elif name == "verify":
        command.add_argument("--repair", action="store_true", help="remove wrong entries; packs stay as they are")
