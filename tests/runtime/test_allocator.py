"""The caching allocator: reuse, split and merge, statistics, what streams may reuse, and running out of memory."""

import gc
import itertools
from collections.abc import Iterator

import pytest
import torch

import dlbackend  # noqa: F401

DEVICE = "ocl:0"
MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture(autouse=True)
def _clean(background_at_rest):
    gc.collect()
    torch.ocl.synchronize()
    torch.ocl.empty_cache()


def empty(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)


def current(name):
    return torch.ocl.memory_stats()[f"{name}.all.current"]


def test_reuses_freed_memory():
    a = empty(3 * MIB)
    where, reserved = a.data_ptr(), torch.ocl.memory_reserved()
    del a
    b = empty(3 * MIB)
    assert b.data_ptr() == where
    assert torch.ocl.memory_reserved() == reserved


def test_splits_and_merges():
    # On a stream of its own: a hole between tensors of earlier tests, little larger than a part, would be taken whole.
    with torch.ocl.stream(torch.ocl.Stream()):
        before = torch.ocl.memory_allocated()
        parts = [empty(2 * MIB) for _ in range(6)]  # out of one segment
        assert torch.ocl.memory_allocated() - before == 12 * MIB
        parts.sort(key=lambda t: t.data_ptr())
        assert {b.data_ptr() - a.data_ptr() for a, b in itertools.pairwise(parts)} == {2 * MIB}
        segments, first = current("segment"), parts[1].data_ptr()
        # free the neighbours 1, 3, 2: one hole of 6 MiB must come of it
        for i in (1, 3, 2):
            parts[i] = None
        big = empty(6 * MIB)
        assert big.data_ptr() == first
        assert current("segment") == segments
        del big, parts
        assert torch.ocl.memory_allocated() == before
        reserved = torch.ocl.memory_reserved()
        torch.ocl.empty_cache()
        assert torch.ocl.memory_reserved() <= reserved - 12 * MIB


def test_contents_do_not_mix():
    tensors = [torch.full((n,), float(n), device=DEVICE) for n in (1, 7, 128, 129, 4096, 300_000)]
    for t in tensors[::2]:
        t.add_(1)
    for i, t in enumerate(tensors):
        assert torch.all(t.cpu() == t.numel() + (i % 2 == 0))


def test_statistics():
    torch.ocl.reset_peak_memory_stats()
    torch.ocl.reset_accumulated_memory_stats()
    before = torch.ocl.memory_allocated()
    a = torch.empty(1000, device=DEVICE)
    stats = torch.ocl.memory_stats()
    assert stats["allocation.all.allocated"] == 1
    assert torch.ocl.memory_allocated() - before == 4096  # whole blocks of 512 bytes
    assert stats["requested_bytes.all.allocated"] == 4000
    b = torch.empty(5 * MIB, device=DEVICE)
    del a, b
    stats = torch.ocl.memory_stats()
    assert torch.ocl.memory_allocated() == before
    assert torch.ocl.max_memory_allocated() >= before + 20 * MIB
    assert stats["allocation.all.freed"] == 2
    assert stats["allocation.small_pool.freed"] == stats["allocation.large_pool.freed"] == 1
    torch.ocl.reset_peak_memory_stats()
    assert torch.ocl.max_memory_allocated() == before
    free, total = torch.ocl.mem_get_info()
    assert 0 < free <= total == torch.ocl.get_device_properties(0).total_memory
    assert torch.accelerator.memory_allocated() == before
    assert "allocated_bytes" in torch.ocl.memory_summary()


def test_empty_cache_keeps_live_tensors():
    a = torch.arange(1000, device=DEVICE)
    torch.ocl.empty_cache()
    assert a.sum().item() == 499500
    assert current("segment") >= 1


def test_pointers_are_unique_and_fault_free_arithmetic():
    a = torch.arange(64, dtype=torch.float32, device=DEVICE)
    view = a[10:]
    assert view.data_ptr() == a.data_ptr() + 40
    assert view[0].item() == 10
    assert torch.empty(0, device=DEVICE).data_ptr() == 0
    others = [torch.empty(10, device=DEVICE) for _ in range(50)]
    assert len({t.data_ptr() for t in others}) == 50


@pytest.fixture
def room() -> Iterator[int]:
    """The bytes that this process may still take from the driver. Tests of the memory's end take a share of it only:
    other processes, which compute on the same device, would fail while it is full. That the driver itself refuses is
    in test_faulty_drivers.py."""
    properties = torch.ocl.get_device_properties(0)
    total = properties.total_memory
    bytes_left = min(GIB, total // 2, 4 * (properties.max_alloc - MIB))
    torch.ocl.set_per_process_memory_fraction((torch.ocl.memory_reserved() + bytes_left) / total)
    yield bytes_left
    torch.ocl.set_per_process_memory_fraction(1.0)
    torch.ocl.empty_cache()


def test_out_of_memory_raises_and_the_device_goes_on(room: int) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"at most .* split the tensor"):
        empty(torch.ocl.get_device_properties(0).max_alloc + 1)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        empty(1 << 50)
    ooms = torch.ocl.memory_stats()["num_ooms"]
    held = [empty(room // 4 - MIB) for _ in range(4)]
    with pytest.raises(torch.OutOfMemoryError, match="ocl out of memory"):
        empty(room // 4 - MIB)
    assert torch.ocl.memory_stats()["num_ooms"] == ooms + 1
    held.clear()
    a = torch.ones(1000, device=DEVICE)
    assert (a + a).sum().item() == 2000


PROPERTIES = torch.ocl.get_device_properties(0)


@pytest.mark.skipif(PROPERTIES.type == "gpu", reason="other processes that compute on the GPU would fail meanwhile")
@pytest.mark.skipif(PROPERTIES.platform == "rusticl", reason="the driver writes to all memory, and fills the machine's")
def test_the_end_of_the_devices_own_memory() -> None:
    """Never touched, so that no memory of the machine is really used."""
    ooms, size = torch.ocl.memory_stats()["num_ooms"], PROPERTIES.max_alloc // 2 + 1
    held: list[torch.Tensor] = []
    with pytest.raises(torch.OutOfMemoryError, match="ocl out of memory"):
        held.extend(empty(size) for _ in range(1 + PROPERTIES.total_memory // (PROPERTIES.max_alloc // 2)))
    assert torch.ocl.memory_stats()["num_ooms"] == ooms + 1
    held.clear()
    a = torch.ones(1000, device=DEVICE)
    assert (a + a).sum().item() == 2000
    torch.ocl.empty_cache()


def test_out_of_memory_gives_back_what_is_cached(room: int) -> None:
    reserved = torch.ocl.memory_reserved()
    held = [empty(room // 8 - MIB) for _ in range(8)]
    held.clear()  # all cached: a segment of another size needs some of them released
    retries = torch.ocl.memory_stats()["num_alloc_retries"]
    assert empty(room // 4 - MIB).numel() == room // 4 - MIB
    assert torch.ocl.memory_stats()["num_alloc_retries"] == retries + 1
    assert torch.ocl.memory_reserved() <= reserved + room


def test_streams_do_not_share_freed_blocks():
    side = torch.ocl.Stream()
    a = empty(3 * MIB)
    where = a.data_ptr()
    del a
    with torch.ocl.stream(side):
        b = empty(3 * MIB)
    assert b.data_ptr() != where


def test_record_stream_delays_reuse():
    side = torch.ocl.Stream()
    a = torch.ones(2 * MIB, device=DEVICE)
    where = a.data_ptr()
    side.wait_stream(torch.ocl.current_stream())
    with torch.ocl.stream(side):
        total = torch.zeros(2 * MIB, device=DEVICE)
        for _ in range(20):
            total += a
    a.record_stream(side)
    used = side.record_event()
    del a
    b = torch.full((2 * MIB,), 7.0, device=DEVICE)  # must not land in a's memory before side is done
    if not used.query():  # so it was not done before either
        assert b.data_ptr() != where
    side.synchronize()
    assert total.cpu().eq(20).all()
    del b
    torch.ocl.synchronize()
    c = [torch.empty(2 * MIB, device=DEVICE) for _ in range(3)]
    assert where in {t.data_ptr() for t in c}  # and comes back later


def test_storage_resize():
    a = torch.arange(100, dtype=torch.float32, device=DEVICE)
    a.untyped_storage().resize_(800)
    assert a.cpu().equal(torch.arange(100, dtype=torch.float32))
    a.untyped_storage().resize_(40)
    a.untyped_storage().resize_(0)
    assert a.untyped_storage().nbytes() == 0
    b = torch.arange(6.0, device=DEVICE).resize_(2, 5)
    assert b.flatten()[:6].tolist() == [0, 1, 2, 3, 4, 5]
    b.resize_(3)
    assert b.tolist() == [0, 1, 2]


def test_many_sizes_do_not_grow_without_bound():
    for n in range(200):
        empty(MIB + n * 20_000)
    assert torch.ocl.memory_reserved() <= 256 * MIB


def test_fraction_of_the_memory_for_this_process() -> None:
    """Memory reserved before may pass the limit; memory taken from the driver afterwards may not."""
    total = torch.ocl.get_device_properties().total_memory
    torch.ocl.empty_cache()
    room = torch.ocl.memory_reserved() + (100 << 20)
    try:
        torch.ocl.set_per_process_memory_fraction(room / total)
        small = torch.empty(40 << 20, dtype=torch.uint8, device="ocl")
        with pytest.raises(torch.OutOfMemoryError, match="This process may take"):
            torch.empty(200 << 20, dtype=torch.uint8, device="ocl")
        assert torch.ocl.memory_reserved() <= room
        del small
    finally:
        torch.ocl.set_per_process_memory_fraction(1.0)
    torch.empty(200 << 20, dtype=torch.uint8, device="ocl")
    with pytest.raises(ValueError, match="0 to 1"):
        torch.ocl.set_per_process_memory_fraction(1.5)


FILLED = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int64, torch.uint8,
          torch.int8, torch.int16, torch.int32, torch.bool, torch.uint16, torch.uint64]  # fmt: skip


@pytest.mark.parametrize("dtype", FILLED, ids=str)
def test_deterministic_algorithms_fill_new_memory(dtype: torch.dtype) -> None:
    def made(device: str) -> list[torch.Tensor]:
        grown = torch.ones(5, dtype=dtype, device=device)
        return [
            torch.empty(3, 4, dtype=dtype, device=device),
            torch.empty_strided((3, 4), (1, 3), dtype=dtype, device=device),
            torch.empty(0, dtype=dtype, device=device),
            grown.resize_(2000),
        ]

    torch.use_deterministic_algorithms(True)
    try:
        for expected, actual in zip(made("cpu"), made("ocl"), strict=True):
            torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)
        assert torch.empty(3, dtype=torch.float8_e4m3fn, device="ocl").resize_(9).numel() == 9
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.empty(3, dtype=dtype, device="ocl")
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)
