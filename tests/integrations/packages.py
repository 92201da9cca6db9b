"""For tests of other packages: importing those that import torchvision, and when a test has nothing to check."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from dlbackend_autoload import other_accelerator

# They import torchvision where there is one, also one whose compiled part does not fit this torch. As text, because
# processes that tests start need it too.
NETS = Path(__file__).parent.parent / "nets"
SHIM = f"import sys; sys.path.insert(0, {str(NETS)!r}); import tv_shim\n" if find_spec("torchvision") else ""
exec(SHIM)

# Where packages choose a device themselves, ocl comes after other accelerators: what they choose is not ocl then.
ocl_is_chosen = pytest.mark.skipif(
    bool(other_accelerator(torch)),
    reason=f"another accelerator ({other_accelerator(torch)}) is available, which is preferred",
)
