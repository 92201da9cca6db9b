"""The environment of processes that find nothing of what others compiled or measured."""

from __future__ import annotations

import os


def fresh_caches(folder: str) -> dict[str, str]:
    """Variables of a process without packs, whose caches, the drivers' too, are in this folder."""
    drivers = {"POCL_CACHE_DIR": folder + "/pocl", "CUDA_CACHE_PATH": folder + "/nvidia"}
    for path in drivers.values():
        os.makedirs(path, exist_ok=True)
    return {"DLBACKEND_CACHE_DIR": folder, "DLBACKEND_PACKS": "", **drivers}
