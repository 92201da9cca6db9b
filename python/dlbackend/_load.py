"""Loads the extension module with errors that say what to do, and registers it in PyTorch's PrivateUse1 slot."""

import importlib
import os
import sys
import types

from dlbackend import distributed, dlpack, printing, sharing

REINSTALL = "Build it for the torch you have, in the source folder: pip install --no-build-isolation --no-deps ."


def extension(torch: types.ModuleType) -> types.ModuleType:
    """Loads dlbackend._C. ImportError that says what to do when it is not built, built for another torch, or lacks a
    library.
    """
    try:
        build = importlib.import_module("dlbackend._build")
    except ImportError as error:
        raise ImportError(f"dlbackend is not built. {REINSTALL}") from error
    # Checked before loading: the library of another minor version may have all symbols, with other meanings.
    if ".".join(torch.__version__.split(".")[:2]) != build.TORCH_MINOR:
        raise ImportError(
            f"dlbackend was built for torch {build.TORCH_MINOR}, but torch {torch.__version__} is installed. "
            f"{REINSTALL} Or install that torch: pip install 'torch=={build.TORCH_MINOR}.*'"
        )
    try:
        c = importlib.import_module("dlbackend._C")
    except ImportError as error:
        raise ImportError(f"dlbackend's extension module does not load: {error}. {REINSTALL}") from error
    c.set_python_prefix(sys.prefix)
    c.set_package_dir(os.path.dirname(__file__))
    return c


def take_slot(torch: types.ModuleType, c: types.ModuleType, ocl: types.ModuleType, backend: types.ModuleType) -> None:
    """Names PrivateUse1 `ocl` and registers hooks, torch.ocl, torch.backends.ocl and Tensor.ocl(). Opens no driver."""
    name = torch._C._get_privateuse1_backend_name()
    if name == "ocl" and hasattr(torch.Tensor, "ocl"):
        return
    if name not in ("privateuseone", "ocl"):
        raise ImportError(
            f"PyTorch has one slot for out-of-tree devices, and '{name}' holds it in this process. Turn that "
            "extension's autoloading off (TORCH_DEVICE_BACKEND_AUTOLOAD=0) and import dlbackend instead of it."
        )
    c.set_python_prefix(sys.prefix)
    c.register_hooks()
    torch.utils.rename_privateuse1_backend("ocl")
    torch.__dict__.pop("ocl", None)  # autoload's stand-in
    torch._register_device_module("ocl", ocl)
    for part in ("memory", "random", "streams"):
        sys.modules[f"torch.ocl.{part}"] = getattr(ocl, part)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    printing.install(torch, ocl)
    dlpack.install(torch)
    sharing.install(torch)
    distributed.install(torch, c)
    torch.backends.ocl = sys.modules["torch.backends.ocl"] = backend
