"""Makes sending a tensor of ocl to another process an error that says what to do: device memory cannot be shared."""

import types
from typing import Any


def install(torch: types.ModuleType) -> None:
    """Makes torch.multiprocessing refuse storages of ocl, and say what to do instead. Others are sent as before."""
    reductions = torch.multiprocessing.reductions
    original = reductions.reduce_storage

    def reduce_storage(storage: Any) -> Any:
        if storage.device.type == "ocl":
            raise RuntimeError(
                "A tensor on ocl cannot be sent to another process: OpenCL does not share memory between processes. "
                "Send tensor.cpu(), and move it to the device there."
            )
        return original(storage)

    reductions.reduction.register(torch.UntypedStorage, reduce_storage)
