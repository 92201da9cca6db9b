"""Helpers for tests of stores and packs: small stores without a device, and a disk that is full."""

import os
import subprocess
import sys
from pathlib import Path

from fresh_process import fresh_python

from dlbackend import _C

MANY = 1 << 40
HEADER = 64  # bytes of a record's header; docs/stores.md
PACK_HEADER = 32


def store_in(folder, kind="program", max_bytes=MANY, max_entries=MANY):
    return _C.DiskCache(kind, str(folder), max_bytes, max_entries)


def cache_with_programs(folder: Path) -> str:
    """Makes a cache folder whose find store is empty and whose programs are those of the whole run of the tests, so
    that a process compiles only what none did before. For tests that do not count what is compiled.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("programs", "pocl"):
        shared = Path(os.environ["DLBACKEND_CACHE_DIR"], name)
        shared.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / name).symlink_to(shared)
    return str(folder)


def contents(folder, kind="program"):
    """{key: payload} of the sound entries; fails for any that is not sound."""
    store = store_in(folder, kind)
    found = {}
    for name, size, _ in store.files():
        read = store.read(name)
        if read is None:  # another process pruned it
            continue
        fault, _, key, payload = read
        assert not fault, f"{name} ({size} bytes): {fault}"
        found[key] = payload
    return found


def write_pack(path, entries):
    """Entries: (kind, key, payload)."""
    writer = _C.PackWriter(str(path))
    for entry in entries:
        writer.add(*entry)
    writer.finish()
    return path


FULL_DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
ssize_t write(int fd, const void* data, size_t size) {
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  readlink(link, path, sizeof path - 1);
  const char* full = getenv("FULL_DISK");
  if (full && !strncmp(path, full, strlen(full))) {
    static long room;
    static char said[32];
    if (strcmp(said, getenv("ROOM"))) room = atol(strcpy(said, getenv("ROOM")));
    if (!room) { errno = ENOSPC; return -1; }
    if (size > (size_t)room) size = room;
    room -= size;
  }
  return ((ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write"))(fd, data, size);
}
"""


def full_disk(tmp_path: Path, folder: Path, room: int) -> dict[str, str]:
    """Environment variables with which a process can write only `room` more bytes to files under the folder. Setting
    ROOM anew in the process, to another number, gives it so much again."""
    source, library = tmp_path / "full_disk.c", tmp_path / "full_disk.so"
    if not library.exists():
        source.write_text(FULL_DISK)
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "FULL_DISK": str(folder), "ROOM": str(room)}


def without_root(code, **variables):
    """fresh_python without root's right to write where the file's mode forbids it."""
    if subprocess.run(["id", "-u"], check=True, capture_output=True, text=True).stdout.strip() != "0":
        return fresh_python(code, **variables)
    launcher = f"""
import subprocess, sys
drop = "--bounding-set=-dac_override,-dac_read_search,-fowner"
sys.exit(subprocess.run(["setpriv", drop, {sys.executable!r}, "-c", {code!r}]).returncode)
"""
    return fresh_python(launcher, **variables)
