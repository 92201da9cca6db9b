"""torch.ocl: devices, streams, events, memory statistics, random state, and PyTorch's generic APIs on them."""

from multiprocessing.reduction import ForkingPickler

import numpy
import pytest
import torch
from fresh_process import forked_python
from torch.utils.checkpoint import checkpoint

import dlbackend  # noqa: F401

ocl = torch.ocl


def test_accelerator_api_is_ocl() -> None:
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator
    assert accelerator.type == "ocl"
    assert torch.accelerator.device_count() == ocl.device_count() > 0
    assert torch.get_device_module("ocl") is ocl
    assert torch.backends.ocl.is_available()
    assert torch.backends.ocl.is_built()


def test_generated_methods() -> None:
    x = torch.ones(3).ocl()
    assert x.is_ocl
    assert x.device == torch.device("ocl:0")
    assert torch.nn.Linear(2, 2).ocl().weight.is_ocl  # type: ignore[operator]
    assert x.untyped_storage().is_ocl


def test_properties() -> None:
    properties = ocl.get_device_properties("ocl:0")
    assert properties.type in ("cpu", "gpu", "accelerator")
    assert 0 < properties.max_alloc <= properties.total_memory
    assert properties.compute_units > 0
    assert ocl.get_device_name(0) == properties.name
    assert ocl.get_device_capability()["has_fp64"] == properties.has_fp64


def test_accelerator_capability() -> None:
    supported = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64} <= supported
    assert (torch.float64 in supported) == ocl.get_device_properties().has_fp64
    assert torch.quint8 not in supported


def test_what_other_devices_modules_have() -> None:
    assert ocl._is_compiled()
    assert not ocl.is_current_stream_capturing()
    assert ocl.is_tf32_supported() == ocl.get_device_properties().has_tensor_cores
    assert not ocl.can_device_access_peer(0, "ocl:0")
    with pytest.raises(RuntimeError, match="does not exist"):
        ocl.can_device_access_peer(0, ocl.device_count())
    for exchange in (ocl._exchange_device, ocl._maybe_exchange_device):
        assert exchange(0) == exchange(-1) == 0


@pytest.mark.parametrize("device", [None, -1, 0, "ocl", "ocl:0", torch.device("ocl", 0)])
def test_device_context_takes_every_form(device) -> None:
    with ocl.device(device):
        assert ocl.current_device() == 0
    with ocl.device_of(torch.ones(2)):
        assert ocl.current_device() == 0


def test_wrong_devices_are_errors() -> None:
    with pytest.raises(ValueError, match="Expected an ocl device, but got: cpu"):
        ocl.set_device("cpu")
    beyond = ocl.device_count()
    state = ocl.get_rng_state()
    uses = (
        ocl.set_device,
        ocl.get_device_properties,
        lambda i: torch.ones(1, device=f"ocl:{i}"),
        ocl.get_rng_state,
        lambda i: ocl.set_rng_state(state, i),
        lambda i: ocl.set_rng_state_all([state] * (i + 1)),
    )
    for use in uses:
        with pytest.raises(RuntimeError, match=rf"\b{beyond}\b"):
            use(beyond)
    assert torch.ones(1, device="ocl").item() == 1  # and the device goes on working


def test_streams() -> None:
    default, side = ocl.current_stream(), ocl.Stream()
    assert default == ocl.default_stream()
    assert side != default
    with ocl.stream(side):
        assert ocl.current_stream() == side
        x = torch.full((1000,), 2.0, device="ocl") * 3
    assert ocl.current_stream() == default
    default.wait_stream(side)
    assert (x + 1).sum().item() == 7000
    side.synchronize()
    assert side.query()
    with ocl.stream(None):
        assert ocl.current_stream() == default
    ocl.set_stream(side)
    assert ocl.current_stream() == side
    ocl.set_stream(default)


def test_stream_context_is_left_by_an_exception() -> None:
    before = ocl.current_stream()
    with pytest.raises(KeyError), ocl.stream(ocl.Stream()):
        raise KeyError
    assert ocl.current_stream() == before


def test_events_time_and_order() -> None:
    start, end = ocl.Event(enable_timing=True), ocl.Event(enable_timing=True)
    assert isinstance(start, ocl.Event)
    assert not isinstance(torch.Event("cpu"), ocl.Event)
    start.record()
    x = torch.ones(1 << 20, device="ocl")
    for _ in range(20):
        x = x + 1
    end.record()
    end.synchronize()
    assert end.query()
    assert 0 < start.elapsed_time(end) < 60_000
    other = ocl.Stream()
    end.wait(other)
    other.wait_event(start)
    other.synchronize()


def test_memory_statistics_follow_tensors(background_at_rest: None) -> None:
    ocl.empty_cache()
    before = ocl.memory_allocated()
    ocl.reset_peak_memory_stats()
    x = torch.empty(1 << 20, device="ocl")
    assert ocl.memory_allocated() - before >= 4 << 20
    assert ocl.memory_reserved() >= ocl.memory_allocated()
    del x
    assert ocl.memory_allocated() == before
    assert ocl.max_memory_allocated() - before >= 4 << 20
    ocl.reset_peak_memory_stats()
    assert ocl.max_memory_allocated() == before
    assert "allocated_bytes.all" in ocl.memory_summary()
    nested, flat = ocl.memory_stats_as_nested_dict(), ocl.memory_stats()
    assert nested["allocated_bytes"]["all"]["peak"] == flat["allocated_bytes.all.peak"]
    assert nested["num_ooms"] == flat["num_ooms"]
    free, total = ocl.mem_get_info()
    assert 0 < free <= total == ocl.get_device_properties().total_memory
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.memory_stats().keys() == flat.keys()


def test_random_state_repeats() -> None:
    torch.manual_seed(5)
    first = torch.rand(100, device="ocl").cpu()
    state = ocl.get_rng_state()
    second = torch.rand(100, device="ocl").cpu()
    assert not first.equal(second)
    ocl.set_rng_state(state)
    assert torch.rand(100, device="ocl").cpu().equal(second)
    ocl.manual_seed(5)
    assert ocl.initial_seed() == 5
    assert torch.rand(100, device="ocl").cpu().equal(first)
    ocl.seed_all()
    assert not torch.rand(100, device="ocl").cpu().equal(second)
    with torch.random.fork_rng(devices=[0], device_type="ocl"):
        inside = torch.rand(10, device="ocl").cpu()
    assert torch.rand(10, device="ocl").cpu().equal(inside)
    ocl.set_rng_state_all([state] * ocl.device_count())
    assert all(each.equal(state) for each in ocl.get_rng_state_all())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_recomputes_with_the_same_random_numbers(use_reentrant: bool) -> None:
    masks = []

    def block(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.dropout(x, 0.5)
        masks.append(y.detach() != 0)
        return y * x

    x = torch.rand(1000, device="ocl").add_(1).requires_grad_()
    y = checkpoint(block, x, use_reentrant=use_reentrant)
    after = torch.rand(10, device="ocl")
    state = ocl.get_rng_state()
    y.sum().backward()
    forward, recomputed = masks
    assert torch.equal(forward, recomputed)
    assert 300 < forward.sum().item() < 700
    torch.testing.assert_close(x.grad, 4 * x.detach() * forward)  # of 2 * mask * x * x
    assert torch.equal(ocl.get_rng_state(), state)  # and the recomputation leaves no trace
    assert not torch.equal(torch.rand(10, device="ocl"), after)


def test_initialized_is_told_as_the_device_is_used() -> None:
    code = "import torch, dlbackend; print(torch.ocl._initialized, end=' '); torch.ones(1, device='ocl'); "
    assert forked_python(code + "print(torch.ocl._initialized)").stdout == "False True\n"
    assert not hasattr(ocl, "no_such_name")


def test_seed_before_first_use_counts() -> None:
    code = "import torch, dlbackend; torch.manual_seed({}); {} print(torch.rand(3, device='ocl').tolist())"
    early = forked_python(code.format(11, "assert not torch.ocl.is_initialized();"))
    late = forked_python(code.format(4, "torch.ocl.init(); torch.manual_seed(11);"))
    assert early.stdout == late.stdout != "", early.stderr + late.stderr


def test_pinned_memory() -> None:
    x = torch.arange(1000.0).pin_memory()
    assert x.is_pinned()
    assert x.to("ocl", non_blocking=True).cpu().equal(torch.arange(1000.0))


def test_tensors_for_other_processes() -> None:
    for value in (torch.ones(3, device="ocl"), torch.nn.Parameter(torch.ones(3, device="ocl"))):
        with pytest.raises(RuntimeError, match=r"Send tensor\.cpu\(\)"):
            ForkingPickler.dumps(value)
    assert len(ForkingPickler.dumps(torch.ones(3))) > 0


def test_dlpack() -> None:
    x = torch.arange(6.0, device="ocl").view(2, 3)
    shared = torch.from_dlpack(x[:, 1:])
    shared[0, 0] = 9
    assert x[0, 1] == 9
    assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
    assert numpy.from_dlpack(x, device="cpu").tolist() == [[0, 9, 2], [3, 4, 5]]  # type: ignore[arg-type]
    assert torch.from_dlpack(numpy.ones(3), device="ocl").device.type == "ocl"  # type: ignore[arg-type]
    with pytest.raises((RuntimeError, BufferError), match=r"[Uu]nsupported device"):  # by the version of NumPy
        numpy.from_dlpack(x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without copying"):
        torch.from_dlpack(x, device="cpu", copy=False)
    assert torch.ones(2).__dlpack_device__() == (1, 0)


def test_inductor_finds_its_code_generators() -> None:
    assert torch.ocl.Scheduling.__name__ == "OpenCLScheduling"
    assert torch.ocl.CppWrapperCodegen.__name__ == "OpenCLCppWrapper"
