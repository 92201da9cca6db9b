"""Device memory of torch.ocl: statistics of the caching allocator, in bytes, and its control."""

from typing import Any

from dlbackend import _C
from dlbackend.ocl.device import DeviceLike, _lazy_init, device_index, is_initialized


def empty_cache() -> None:
    """Gives cached memory that no tensor uses back to the driver."""
    if is_initialized():
        _C.empty_cache()


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """The allocator's statistics, with torch.cuda.memory_stats' keys; empty before the first use of a device.

    `{allocated,reserved,active}_bytes.{all,small_pool,large_pool}.{current,peak,allocated,freed}` and counters such as
    `num_alloc_retries` and `num_ooms`.
    """
    if not is_initialized():
        return {}
    return dict(sorted(_C.memory_stats(device_index(device)).items()))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """memory_stats() as dictionaries in each other, one for each part of a key."""
    nested: dict[str, Any] = {}
    for key, value in memory_stats(device).items():
        *parents, last = key.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return nested


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes that tensors use."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes that tensors used since the start or reset_peak_memory_stats()."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes that the allocator holds from the driver, cached ones included."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes that the allocator held since the start or reset_peak_memory_stats()."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Sets the "peak" statistics to the current values."""
    if is_initialized():
        _C.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the "allocated" and "freed" statistics and the counters to zero."""
    if is_initialized():
        _C.reset_accumulated_memory_stats(device_index(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes of the device. OpenCL does not tell what other processes use: free is total less ours."""
    return _C.mem_get_info(device_index(device))


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Lets this process take that part of the device's memory, 0 to 1; more is torch.OutOfMemoryError."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0 to 1")
    _lazy_init()
    _C.limit_memory(device_index(device), fraction)


def _human(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def memory_summary(device: DeviceLike = None) -> str:
    """A table of memory_stats() for people."""
    stats = memory_stats(device)
    columns = ("current", "peak", "allocated", "freed")
    lines = [f"{'ocl memory':<22}" + "".join(f"{column:>13}" for column in columns)]
    for key in sorted({name.rsplit(".", 1)[0] for name in stats if name.count(".") == 2}):
        show = _human if "bytes" in key else str
        lines.append(f"{key:<22}" + "".join(f"{show(stats.get(f'{key}.{c}', 0)):>13}" for c in columns))
    lines += [f"{name:<22}{value:>13}" for name, value in stats.items() if "." not in name]
    return "\n".join(lines)
