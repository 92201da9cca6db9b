"""torch.backends.ocl: what this build of the device can do."""

from dlbackend import ocl


def is_built() -> bool:
    """True: this module exists only with the extension loaded."""
    return True


def is_available() -> bool:
    """Whether a device can be used; the same as torch.ocl.is_available()."""
    return ocl.is_available()
