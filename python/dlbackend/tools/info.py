"""python -m dlbackend info: what there is to compute with, as a table for people and for bug reports."""

import platform

import torch

from dlbackend import _C, __version__, ocl

GIB = 1 << 30


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _rates(index: int) -> str:
    """The rates by which solvers are estimated. They are in units per microsecond."""
    rates = _C.device_rates(index)
    matrix = f", {rates['matrix16'] / 1e6:.3g} in matrices of 16 bits" if rates["matrix16"] > rates["float32"] else ""
    source = "measured" if rates["measured"] else "derived from what the driver tells"
    return (
        f"{rates['float32'] / 1e6:.3g} TFLOP/s in float32{matrix}, {rates['bytes'] / 1e3:.3g} GB/s, "
        f"{rates['launch_us']:.2g} us for a launch ({source})"
    )


def device_rows(index: int) -> list[tuple[str, str]]:
    """The properties of device `index`, in the order in which they are shown."""
    p = ocl.get_device_properties(index)
    return [
        (f"ocl:{index}", p.name),
        ("type", p.type),
        ("vendor", p.vendor),
        ("platform", p.platform),
        ("driver", p.driver_version),
        ("OpenCL", p.version),
        ("memory", f"{p.total_memory / GIB:.1f} GiB, {p.max_alloc / GIB:.1f} GiB in one tensor"),
        ("local memory", f"{p.local_mem // 1024} KiB"),
        ("compute units", str(p.compute_units)),
        ("work-group", f"up to {p.max_work_group_size} work-items"),
        ("float64", _yes(p.has_fp64)),
        ("float16", "native arithmetic" if p.has_fp16 else "storage, computed in float32"),
        ("tensor cores", _yes(p.has_tensor_cores)),
        ("rates", _rates(index)),
    ]


def _table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<14} {value}" for name, value in rows)


def main() -> int:
    """Prints the tables; 1 where there is no device."""
    count = ocl.device_count()
    print(
        _table(
            [
                ("dlbackend", f"{__version__}, built for torch {_C.torch_minor()}"),
                ("torch", torch.__version__),
                ("Python", f"{platform.python_version()} on {platform.platform()}"),
                ("OpenCL", _C.opencl_library() or "no library found"),
                ("cache folder", _C.cache_dir() or "none that can be written"),
                ("devices", str(count)),
            ]
        )
    )
    for index in range(count):
        print("\n" + _table(device_rows(index)))
    if count == 0:
        print("\nNo device. `python -m dlbackend doctor` says what is missing.")
    return 0 if count else 1
