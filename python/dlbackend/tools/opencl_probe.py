"""Asks the OpenCL libraries of this machine for their platforms and devices, without torch and without the extension.

Runs as a program, because a broken driver can take the process down and because the set-up script needs it before
anything is built: `python opencl_probe.py` prints JSON and exits with 1 where there is no device.
"""

import ctypes
import json
import os
import sys
from typing import Any

PLATFORM_NAME, DEVICE_NAME, ALL_DEVICES = 0x0902, 0x102B, 0xFFFFFFFF


def candidates() -> list[str]:
    """Library names in the order in which the extension tries them."""
    chosen = os.environ.get("DLBACKEND_OPENCL_LIBRARY")
    if chosen:
        return [chosen]
    prefix = f"{sys.prefix}/lib"
    return ["libOpenCL.so.1", "libOpenCL.so", f"{prefix}/libOpenCL.so.1", f"{prefix}/libintelocl.so", "libintelocl.so"]


def _ids(query: Any, *head: object) -> list[ctypes.c_void_p]:
    """All ids of a clGetPlatformIDs-like query; none on any error, which includes "there are none"."""
    count = ctypes.c_uint(0)
    if query(*head, 0, None, ctypes.byref(count)) != 0 or count.value == 0:
        return []
    ids = (ctypes.c_void_p * count.value)()
    query(*head, count, ids, None)
    return [ctypes.c_void_p(value) for value in ids]


def _text(query: Any, handle: ctypes.c_void_p, what: int) -> str:
    buffer = ctypes.create_string_buffer(1024)
    query(handle, ctypes.c_uint(what), ctypes.c_size_t(len(buffer)), buffer, None)
    return buffer.value.decode(errors="replace").strip()


def probe(name: str) -> dict[str, Any]:
    """{"library", "error" or "platforms": [{"name", "devices": [names]}]} of one library."""
    try:
        library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        platforms = [
            {
                "name": _text(library.clGetPlatformInfo, platform, PLATFORM_NAME),
                "devices": [
                    _text(library.clGetDeviceInfo, device, DEVICE_NAME)
                    for device in _ids(library.clGetDeviceIDs, platform, ctypes.c_uint64(ALL_DEVICES))
                ],
            }
            for platform in _ids(library.clGetPlatformIDs)
        ]
    except (OSError, AttributeError) as error:
        return {"library": name, "error": str(error)}
    return {"library": name, "platforms": platforms}


def main() -> int:
    # Intel's runtime from pip has no search path of its own: its helpers must be in the process before it.
    if os.path.exists(f"{sys.prefix}/lib/libintelocl.so"):
        for helper in ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so"):
            try:
                ctypes.CDLL(f"{sys.prefix}/lib/{helper}", mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                print(f"{helper}: {error}", file=sys.stderr)
    found = []
    for name in candidates():
        found.append(probe(name))
        if found[-1].get("platforms"):  # the extension stops at the first library with a platform
            break
    json.dump(found, sys.stdout)
    return 0 if any(platform["devices"] for platform in found[-1].get("platforms", [])) else 1


if __name__ == "__main__":
    sys.exit(main())
