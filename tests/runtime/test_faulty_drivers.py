"""Drivers that fail, or lack double precision: simulated by an OpenCL layer (faulty_layer.c) between loader and
driver."""

import json
import re
from pathlib import Path

import pytest
from faulty_solvers import with_faulty_solvers
from fresh_process import forked_python, run_python
from layers import build_layer

SOURCE = Path(__file__).parents[1] / "faulty_layer.c"
PRELUDE = """
import json, os, torch, dlbackend
x = torch.arange(100, dtype=torch.float32).to("ocl")
torch.ocl.synchronize()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The layer, compiled."""
    return build_layer(SOURCE, tmp_path_factory.mktemp("layer"))


@pytest.fixture(scope="module")
def layer(library):
    """Runs code, with environment variables, in a process whose OpenCL calls pass the layer."""

    def run(code: str, **variables: str):
        done = forked_python(PRELUDE + code, OPENCL_LAYERS=library, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    if run("print(json.dumps(torch.ocl.get_device_properties(0).has_fp64))", FAULTY_NO_FP64="1"):
        pytest.skip("this OpenCL loader takes no layers")
    return run


# Each action runs while a call fails; the rest must still be right afterwards.
FAILS = """
def attempt(fault, action):
    os.environ["FAULTY_CALL"] = fault
    try:
        action()
        raised = ["", ""]
    except BaseException as error:
        raised = [type(error).__name__, str(error)]
    del os.environ["FAULTY_CALL"]
    for _ in range(3):
        assert ((x * 2 + 1).cpu() == torch.arange(100) * 2 + 1).all()
    assert (x.view(10, 10) @ x.view(10, 10)).cpu()[0, 0] == sum(k * 10 * k for k in range(10))
    torch.ocl.synchronize()
    return raised
"""


def test_an_error_that_comes_late_names_the_last_kernels(layer):
    code = """
def work():
    y = (x + 1).exp()
    torch.ocl.synchronize()
print(json.dumps([attempt("clFinish:1:-5", work), attempt("clEnqueueReadBuffer:1:-5", lambda: (x + 1).exp().cpu())]))
"""
    for name, message in layer(FAILS + code):
        assert name == "RuntimeError"
        assert "CL_OUT_OF_RESOURCES (-5)" in message
        assert re.search(r"reported late.*pointwise_add\w*, pointwise_exp", message)
        assert "free tensors" in message


def test_a_launch_that_fails_names_its_kernel(layer):
    code = 'print(json.dumps(attempt("clEnqueueNDRangeKernel:1:-5", lambda: x.exp())))'
    name, message = layer(FAILS + code)
    assert name == "RuntimeError"
    assert re.search(
        r"clEnqueueNDRangeKernel failed with CL_OUT_OF_RESOURCES \(-5\) for kernel pointwise_exp on", message
    )


@pytest.mark.parametrize("thread", ["0", "1"])
def test_a_users_kernel_that_fails_names_itself(layer, thread):
    code = """
text = "kernel void mine(global float* x) { x[get_global_id(0)] += 0; }"
kernel = torch.ocl.compile_kernel(text, "mine")
def work():
    kernel(x, global_size=100)
    torch.ocl.synchronize()
work()
print(json.dumps(attempt("clEnqueueNDRangeKernel:1:-5", work)))
"""
    name, message = layer(FAILS + code, DLBACKEND_ENQUEUE_THREAD=thread)
    assert name == "RuntimeError"
    assert "CL_OUT_OF_RESOURCES (-5) for kernel mine on" in message


def test_memory_is_asked_for_again_before_it_is_an_error(layer):
    """Once what is cached has gone back to the driver; then OutOfMemoryError, and the device goes on."""
    code = """
def allocate(): torch.empty(1 << 26, device="ocl")
once = attempt("clCreateBuffer:1:-4", allocate)
retries = torch.ocl.memory_stats()["num_alloc_retries"]
torch.ocl.empty_cache()
print(json.dumps([once, retries, attempt("clCreateBuffer:0:-4", allocate)]))
"""
    once, retries, always = layer(FAILS + code)
    assert once == ["", ""]
    assert retries == 1
    assert always[0] == "OutOfMemoryError"
    assert "0.25 GiB" in always[1]


def test_memory_that_a_driver_lacks_for_a_command(layer):
    """It is want of memory whichever call reports it."""
    code = """
def work():
    (x + 1).exp()
    torch.ocl.synchronize()
def read(): (x + 1).cpu()
cases = [(work, "clFinish"), (work, "clEnqueueNDRangeKernel"), (read, "clEnqueueReadBuffer")]
print(json.dumps([attempt(f"{call}:1:{code}", action) for action, call in cases for code in (-4, -6)]))
"""
    for name, message in layer(FAILS + code):
        assert name == "OutOfMemoryError", message
        assert re.search(r"_FAILURE \(-4\)|HOST_MEMORY \(-6\)", message)
        assert "free tensors" in message


def test_memory_is_asked_for_again_once_the_queues_are_finished(layer):
    """Until then the driver keeps buffers that were given back."""
    code = """
def allocate(): torch.empty(1 << 26, device="ocl")
def pin(): torch.empty(1 << 20).pin_memory()
print(json.dumps([attempt("clCreateBuffer:-1:-4", allocate), attempt("clCreateBuffer:-1:-4", pin),
                  attempt("clCreateBuffer:0:-4", lambda: torch.empty(1 << 22).pin_memory())]))
"""
    device, pinned, never = layer(FAILS + code)
    assert device == pinned == ["", ""]
    assert never[0] == "OutOfMemoryError"
    assert "page-locked" in never[1]


def test_a_broken_device_does_not_hide_the_others(layer, library):
    two = {"POCL_DEVICES": "pthread pthread", "OPENCL_LAYERS": library}
    code = "import torch, dlbackend; print(torch.ocl.device_count())"
    every = int(forked_python(code, **two).stdout)
    if every < 2:
        pytest.skip("one device, and no PoCL to show it twice")
    broken = forked_python(code, **two, FAULTY_CALL="clGetDeviceInfo:1:-33")
    assert broken.stdout == f"{every - 1}\n"
    lines = [line for line in broken.stderr.splitlines() if line.startswith("dlbackend: ")]
    assert len(lines) == 1
    assert re.search(r"device 0 of OpenCL platform .+ is left out: .*CL_INVALID_DEVICE", lines[0])


def test_doctor_fails_where_every_device_is_broken(layer, library):
    done = run_python("-m", "dlbackend", "doctor", OPENCL_LAYERS=library, FAULTY_CALL="clGetDeviceInfo:0:-33")
    assert done.returncode == 1
    assert "[FAIL] no device can be used" in done.stdout
    assert "is left out" in done.stderr


def test_a_program_that_does_not_build_is_named_and_built_again_later(layer):
    code = """
failed = attempt("clBuildProgram:1:-6", lambda: torch.logaddexp(x, x))
again = torch.logaddexp(x, x).cpu()
assert torch.allclose(again, torch.logaddexp(x.cpu(), x.cpu()))
print(json.dumps(failed))
"""
    cache = {"DLBACKEND_CACHE_DIR": "", "DLBACKEND_PACKS": ""}
    name, message = layer(FAILS + code, **cache)
    assert name == "RuntimeError"
    assert "CL_OUT_OF_HOST_MEMORY (-6)" in message


def test_without_double_precision(layer):
    """Everything up to float32 and complex64 works; float64 is kept, converted, copied and printed. Computing
    in float64 is refused, except by most elementwise ops, which fall back to the CPU."""
    code = """
refused = {}
d = torch.randn(3, 4, dtype=torch.float64)
z = torch.randn(3, 4, dtype=torch.complex128)
dd, zz = d.to("ocl"), z.to("ocl")
def same(a, b): assert torch.equal(a.cpu(), b), (a, b)
same(dd.t(), d.t()); same(dd[:, 1:3], d[:, 1:3]); same(dd.clone(), d)
same(dd.expand(2, 3, 4).contiguous(), d.expand(2, 3, 4))
same(d.to("ocl", torch.float32), d.float()); same(dd.float(), d.float()); same(dd.float().double(), d.float().double())
wide, here = torch.zeros(4, 6, dtype=torch.float64).to("ocl"), torch.zeros(4, 6, dtype=torch.float64)
wide[:, ::2] = dd.float().t(); here[:, ::2] = d.float().t(); same(wide, here)
same(zz.conj(), z.conj()); same(zz.mT.contiguous(), z.mT.contiguous())
same(zz.conj().imag.float(), z.conj().imag.float())
zz.conj().copy_(z); same(zz, z.conj())
model = torch.nn.Linear(4, 2).double()
narrow = torch.nn.Linear(4, 2).to("ocl")
narrow.load_state_dict(model.state_dict())
same(narrow.weight.detach(), model.weight.detach().float())
texts = [repr(t) for t in (x[:3], x[:3].half(), x[:3].to(torch.complex64), dd, x)]
torch.nn.functional.cross_entropy(narrow(dd.float()), torch.tensor([0, 1, 1], device="ocl")).backward()
torch.optim.Adam(narrow.parameters()).step()
assert torch.isfinite(x.std() + x.softmax(0).sum() + torch.linspace(0, 1, 5, device="ocl").sum()).item()
for name, action in {"mm": lambda: dd @ dd.mT, "sum": lambda: dd.sum(), "randn":
        lambda: torch.randn(3, dtype=torch.float64, device="ocl"), "abs": lambda: zz.abs(),
        "sum to float64": lambda: x.sum(dtype=torch.float64), "conv":
        lambda: torch.nn.functional.conv1d(dd[None], torch.ones(2, 3, 1, dtype=torch.float64).to("ocl"))}.items():
    try: refused[name] = ["", str(action())]
    except Exception as error: refused[name] = [type(error).__name__, str(error)]
print(json.dumps([texts, refused]))
"""
    texts, refused = layer(code, FAULTY_NO_FP64="1", DLBACKEND_FALLBACK="error")
    assert texts[0] == "tensor([0., 1., 2.], device='ocl:0')"
    assert all(text.startswith("tensor(") and "device='ocl:0'" in text for text in texts)
    for name, (kind, message) in refused.items():
        assert kind == "NotImplementedError", (name, kind, message)
        assert "double precision" in message
        assert "float32" in message or "float64" in message


def test_double_precision_that_is_listed_and_does_not_build(layer):
    """Drivers may list what their compiler refuses: then the device counts as one without double precision."""
    code = """
has, listed = torch.ocl.get_device_properties(0).has_fp64, torch.ocl.get_device_capability()["has_fp64"]
d = torch.ones(2, 2, dtype=torch.float64).to("ocl")
try: message = str(d @ d)
except NotImplementedError as error: message = str(error)
print(json.dumps([has, listed, message, (x[:3] + 1).tolist(), (d + 1).tolist()]))
"""
    fresh = {"DLBACKEND_CACHE_DIR": "", "DLBACKEND_PACKS": ""}  # what was built with another compiler must not count
    found = layer(code, FAULTY_FP64_BUILD="1", DLBACKEND_FALLBACK="silent", **fresh)
    assert found[:2] == [False, False]
    assert "double precision" in found[2]
    assert found[3:] == [[1, 2, 3], [[2, 2], [2, 2]]]


def test_elementwise_float64_without_double_precision(layer):
    """Runs on the CPU and is counted; so does the one such step of training with a gradient scaler."""
    code = """
d = torch.rand(3, 4, dtype=torch.float64) + 0.5
z = torch.randn(3, 4, dtype=torch.complex128)
dd, zz = d.to("ocl"), z.to("ocl")
def same(a, b): assert a.device.type == "ocl" and torch.equal(a.cpu(), b), (a, b)
same(dd + 1, d + 1); same(dd.t() * dd[0, 0], d.t() * d[0, 0]); same(dd.float() + dd, d.float() + d)
same(zz * zz, z * z); same(dd > 1, d > 1); same(dd / 3, d / 3); same(dd ** 2, d ** 2); same(dd ** dd, d ** d)
same(dd // 0.3, d // 0.3); same(dd.exp(), d.exp())
dd.mul_(2); d.mul_(2); same(dd, d)
torch.add(dd, dd, out=dd); torch.add(d, d, out=d); same(dd, d)
counted = dlbackend.fallback_report()
dlbackend.reset_fallback_report()
net = torch.nn.Linear(8, 4).to("ocl")
before = net.weight.detach().cpu()
optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("ocl", init_scale=1024.0)
with torch.autocast("ocl", torch.float16): loss = net(torch.ones(2, 8, device="ocl")).float().square().mean()
scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
assert scaler.get_scale() == 1024 and not torch.equal(net.weight.detach().cpu(), before)
print(json.dumps([counted, dlbackend.fallback_report()]))
"""
    counted, of_scaler = layer(code, FAULTY_NO_FP64="1", DLBACKEND_FALLBACK="silent")
    assert {"aten::add.Tensor", "aten::exp.out", "aten::div.Tensor", "aten::mul_.Tensor"} <= set(counted)
    assert of_scaler == {"aten::reciprocal.out": 1}


@pytest.mark.parametrize("late", ["0", "int(2e9 * run)", "500_000_000"], ids=["not", "some", "much"])
def test_a_measurement_that_is_held_up(layer, tmp_path, late):
    """On a GPU, by another process: what one run says that took twice or a hundred times what it should does not
    decide. The only solver is slow unless compiled for the problem, and that program's first run ends late.
    """
    code = f"""
import os, time
a, b = torch.randn(96, 80).to("ocl"), torch.randn(80, 72).to("ocl")
def products(times):
    for _ in range(times): a @ b
    torch.ocl.synchronize()
products(1)
start = time.perf_counter()
products(10)
run = (time.perf_counter() - start) / 10
os.environ["FAULTY_CALL"] = f"clGetEventProfilingInfo:2:{{{late}}}"
for _ in range(100):
    products(20)
    dlbackend.solvers.wait()
problem, = dlbackend.solvers.problems()
print(json.dumps([[s.specialised, s.taken] for s in dlbackend.solvers.solutions(problem)]))
"""
    solutions = layer(
        with_faulty_solvers("test_slow", code),
        DLBACKEND_SOLVER="gemm:test_slow",
        DLBACKEND_CACHE_DIR=str(tmp_path),
        DLBACKEND_EMULATE="class=gpu",
        DLBACKEND_FIND_SHARE="1",
    )
    assert sorted(solutions) == [[False, False], [True, True]]


SMALL_STEP = """
from torch import nn
def step(device):
    torch.manual_seed(0)
    conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    net = nn.Sequential(conv, nn.Flatten(), nn.Linear(392, 5))
    x, y = torch.randn(4, 3, 16, 16), torch.randint(5, (4,))
    net, x, y = net.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    wide = x.flatten()
    results = [loss.detach(), *[p.grad for p in net.parameters()], wide.sort()[0], wide.cumsum(0), wide.argmax(),
               torch.linalg.solve(x[0, 0] + 9 * torch.eye(16, device=x.device), x[0, 1]), x.softmax(1),
               (wide > 1).nonzero()]
    return [r.cpu() for r in results]
for mine, theirs in zip(step("ocl"), step("cpu")): torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
facts = torch.ocl.get_device_properties(0)
print(json.dumps([facts.type, facts.kernel_class, facts.max_work_group_size, facts.local_mem]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kernels", "work_group", "local_memory"), [("cpu", 64, 16384), ("gpu", 256, 32768)])
def test_a_gpu_with_little(layer, kernels, work_group, local_memory):
    """Without float16 and atomics of 64 bits, with launches that take long; the layer refuses what is too large. The
    smaller GPU runs the kernels of CPUs, since those of GPUs take 256 work-items and 32 KiB.
    """
    limits = {"FAULTY_WORK_GROUP": str(work_group), "FAULTY_LOCAL_MEMORY": str(local_memory)}
    found = layer(
        SMALL_STEP, FAULTY_GPU="1", FAULTY_NO_FP16="1", FAULTY_NO_ATOMICS="1", FAULTY_LAUNCH_US="20",
        DLBACKEND_EMULATE="groups_advance=0", **limits,
    )  # fmt: skip
    assert found == ["gpu", kernels, work_group, local_memory]
