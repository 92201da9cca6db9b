"""The one place where the Python package reads environment variables; docs/environment.md has the table of all.

Two modules read their own, because they run where the package cannot be imported: dlbackend_autoload.py and
tools/opencl_probe.py.
"""

import os


def tuning() -> str | None:
    """The file that DLBACKEND_TUNING names; None where it is not set or empty."""
    return os.environ.get("DLBACKEND_TUNING") or None


def devices() -> str | None:
    """DLBACKEND_DEVICES; None where it is not set."""
    return os.environ.get("DLBACKEND_DEVICES")


def autoload_turned_off() -> str | None:
    """The name of a variable that keeps `import torch` from bringing the device, or None."""
    names = ("DLBACKEND_AUTOLOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD")
    return next((name for name in names if os.environ.get(name) == "0"), None)


def integrations_turned_off() -> bool:
    """Whether DLBACKEND_INTEGRATIONS=0 keeps other packages as they are."""
    return os.environ.get("DLBACKEND_INTEGRATIONS") == "0"


def may_hide_drivers() -> bool:
    """Whether OpenCL's loader was told which drivers there are."""
    return bool(os.environ.get("OCL_ICD_VENDORS") or os.environ.get("OCL_ICD_FILENAMES"))


def gloo_interfaces() -> list[str]:
    """GLOO_SOCKET_IFNAME, gloo's own: the network interfaces to use, by comma; empty where gloo finds one."""
    return [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]


def of_measuring_processes() -> dict[str, str]:
    """The variables that processes which measure are started with: this one's. PyTorch's profiler is silent unless
    KINETO_LOG_LEVEL is set, because its notes would stand between the rows of a table.
    """
    return {"KINETO_LOG_LEVEL": "99", **os.environ}
