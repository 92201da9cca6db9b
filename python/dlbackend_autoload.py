"""Runs inside every `import torch` (entry point `torch.backends`): makes the device `ocl` known, if it may.

A module of its own, so that a later explicit `import dlbackend` is still told apart from this one. Whatever happens
here, `import torch` goes on: opens no driver, raises nothing. DLBACKEND_AUTOLOAD=0 turns it off.
"""

from __future__ import annotations

import glob
import os
import sys
import types
import warnings


def _visible(variables: tuple[str, ...]) -> bool:
    """False where the user hid that vendor's devices, as in CUDA_VISIBLE_DEVICES=""."""
    return all(os.environ.get(name, "0").strip() not in ("", "-1") for name in variables)


def other_accelerator(torch: types.ModuleType) -> str | None:
    """The name of another accelerator that this torch can use on this machine, or None.

    Looks at how torch was built and at device nodes only: asking a vendor's library would open its driver, which costs
    time and breaks fork. In doubt says yes, because taking PyTorch's accelerator slot from CUDA breaks its backward.
    """
    if torch.version.cuda and _visible(("CUDA_VISIBLE_DEVICES",)):
        nodes = ("/dev/nvidia[0-9]*", "/proc/driver/nvidia/gpus/*", "/dev/nvgpu*", "/dev/nvhost-gpu", "/dev/dxg")
        if any(map(glob.glob, nodes)):
            return "cuda"
    hip_variables = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    if torch.version.hip and _visible(hip_variables) and os.path.exists("/dev/kfd"):
        return "cuda"
    if torch._C._has_xpu and glob.glob("/dev/dri/renderD*"):
        return "xpu"
    if torch.backends.mps.is_built() and torch.backends.mps.is_available():
        return "mps"
    name: str = torch._C._get_privateuse1_backend_name()
    return None if name in ("privateuseone", "ocl") else name


class _TakesSlotOnUse(types.ModuleType):
    """Stands in for torch.ocl beside another accelerator: its first use imports dlbackend, which takes the slot."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # asked by inspection and copying, not by a user of the device
            raise AttributeError(name)
        import dlbackend

        return getattr(dlbackend.ocl, name)


def _warn(message: str) -> None:
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:  # warnings are errors here; `import torch` must work all the same
        print(f"RuntimeWarning: {message}", file=sys.stderr)


def autoload() -> None:
    """Entry point. Imports dlbackend, unless it is being imported, was turned off, or would displace another device."""
    if "dlbackend" in sys.modules or os.environ.get("DLBACKEND_AUTOLOAD", "1") == "0":
        return
    try:
        torch = sys.modules["torch"]
        if other_accelerator(torch):
            stand_in = _TakesSlotOnUse("torch.ocl", "Not in use; see dlbackend's README on other accelerators.")
            torch.ocl = sys.modules["torch.ocl"] = stand_in  # type: ignore[attr-defined]
        else:
            import dlbackend  # noqa: F401
    except Exception as error:
        _warn(f"The device ocl is missing: {error}\n(torch works without it; DLBACKEND_AUTOLOAD=0 silences this.)")
