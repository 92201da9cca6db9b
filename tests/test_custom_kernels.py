"""torch.ocl.compile_kernel() and compile_library(): values, arguments, sizes, streams, threads, errors."""

import struct
import threading

import pytest
import torch
from common import DEVICE
from fresh_process import emulating, forked_python

import dlbackend
from dlbackend.ocl import LocalMemory, compile_kernel, compile_library

ADD = "kernel void add(global const T* a, global const T* b, global T* c) {{ {0} c[i] = a[i] + b[i]; }}"
ADD = ADD.format("const size_t i = get_global_id(0);")
SAXPY = """
kernel void saxpy(const float a, global const float* restrict x, global float* const y) {
  y[get_global_id(0)] += a * x[get_global_id(0)];
}
"""


@pytest.fixture(scope="module")
def saxpy():
    return compile_kernel(SAXPY, "saxpy")


def tensors(count=3, size=100):
    return [torch.randn(size, device=DEVICE) for _ in range(count)]


def wide_type_is_missing(dtype):
    return dtype == torch.float64 and not torch.ocl.get_device_properties().has_fp64


@pytest.mark.parametrize(
    ("name", "dtype"),
    {
        "float": torch.float32, "int": torch.int32, "long": torch.int64, "uchar": torch.uint8, "char": torch.int8,
        "short": torch.int16, "double": torch.float64, "float2": torch.complex64,
    }.items(),
)  # fmt: skip
def test_values_of_every_type(name, dtype):
    if wide_type_is_missing(dtype):
        pytest.skip("the device has no double precision")
    a, b = (torch.randn(1000, dtype=torch.complex64).mul(20).real.to(dtype) for _ in range(2))
    c = torch.empty(1000, dtype=dtype, device=DEVICE)
    compile_kernel(ADD, "add", options=f"-DT={name}")(a.to(DEVICE), b.to(DEVICE), c, global_size=1000)
    assert torch.equal(c.cpu(), a + b)


def test_types_that_are_stored_and_not_computed_in():
    text = """
    kernel void half_to_float(global const half* x, global float* y) {
      y[get_global_id(0)] = vload_half(get_global_id(0), x);
    }
    kernel void bf16_to_float(global const ushort* x, global float* y) {
      y[get_global_id(0)] = as_float((uint)x[get_global_id(0)] << 16);
    }
    kernel void invert(global uchar* x) { x[get_global_id(0)] ^= 1; }
    """
    library = compile_library(text)
    x = torch.randn(50)
    y = torch.empty(50, device=DEVICE)
    library.half_to_float(x.half().to(DEVICE), y, global_size=50)
    assert torch.equal(y.cpu(), x.half().float())
    library.bf16_to_float(x.bfloat16().to(DEVICE), y, global_size=50)
    assert torch.equal(y.cpu(), x.bfloat16().float())
    flags = (x > 0).to(DEVICE)
    library.invert(flags, global_size=50)
    assert torch.equal(flags.cpu(), x <= 0)


@pytest.mark.parametrize("offset", [0, 1, 3, 64, 129])
def test_views_begin_where_they_begin(saxpy, offset):
    x, y, _ = tensors(size=400)
    before = y.cpu()
    saxpy(2, x[offset:], y[5:], global_size=100)
    expected = before.clone()
    expected[5:105] += 2 * x.cpu()[offset : offset + 100]
    torch.testing.assert_close(y.cpu(), expected)
    parts = y[offset : offset + 200].view(2, 100)  # one storage, read and written
    saxpy(1, parts[0], parts[1], global_size=100)
    expected[offset + 100 : offset + 200] += expected[offset : offset + 100]
    torch.testing.assert_close(y.cpu(), expected)


def test_memory_is_seen_as_it_lies():
    text = "kernel void iota(global int* x) { x[get_global_id(0)] = get_global_id(0); }"
    x = torch.zeros(3, 4, dtype=torch.int32, device=DEVICE)
    compile_kernel(text, "iota")(x.t(), global_size=12)
    assert x.flatten().tolist() == list(range(12))


def test_constant_memory_null_pointers_and_empty_tensors():
    text = """kernel void f(constant float* c, global const float* bias, global void* nothing, global float* y) {
      y[get_global_id(0)] = c[get_global_id(0) % 3] + (bias ? bias[0] : 100) + (nothing ? 1000 : 0);
    }"""
    kernel = compile_kernel(text, "f")
    c, bias = torch.arange(8.0, device=DEVICE)[2:], torch.tensor([0.5, 7.0], device=DEVICE)[1:]
    y = torch.empty(6, device=DEVICE)
    kernel(c, bias, torch.empty(0, device=DEVICE), y, global_size=6)
    assert y.tolist() == [9, 10, 11, 9, 10, 11]
    kernel(c, None, None, y, global_size=6)
    assert y.tolist() == [102, 103, 104, 102, 103, 104]


NUMBERS = {
    "char": (-128, 127), "uchar": (0, 255), "short": (-(2**15), 2**15 - 1), "ushort": (0, 2**16 - 1),
    "int": (-(2**31), 2**31 - 1), "uint": (0, 2**32 - 1), "long": (-(2**63), 2**63 - 1), "ulong": (0, 2**64 - 1),
}  # fmt: skip
SET = "kernel void set(T x, global long* y) { y[0] = as_long((ulong)x); }"


@pytest.mark.parametrize("name", NUMBERS)
def test_integers(name):
    kernel = compile_kernel(SET, "set", options=f"-DT={name}")
    y = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    lowest, highest = NUMBERS[name]
    for number in (lowest, highest, 1, True, torch.tensor([9]).numpy()[0]):
        kernel(number, y, global_size=1)
        assert (y.item() - int(number)) % 2**64 == 0
    for number in (lowest - 1, highest + 1, 10**30):
        with pytest.raises(OverflowError, match=rf"set: argument 'x' \({name}\) cannot hold {number}"):
            kernel(number, y, global_size=1)
    for wrong in (1.0, "1", None, 1j, y):
        with pytest.raises(TypeError, match="must be an int, not"):
            kernel(wrong, y, global_size=1)


def test_floats():
    kernel = compile_kernel("kernel void set(float x, global float* y) { y[0] = x; }", "set")
    y = torch.zeros(1, device=DEVICE)
    for number in (0.1, 3, True, float("inf"), -1e-50, torch.tensor(2.5).numpy()):
        kernel(number, y, global_size=1)
        assert y.item() == torch.tensor(number, dtype=torch.float32).item()
    kernel(float("nan"), y, global_size=1)
    assert y.isnan().item()
    for number in (1e39, -(10**400)):
        with pytest.raises(OverflowError, match="cannot hold"):
            kernel(number, y, global_size=1)
    for wrong in ("1", None, 1j, y):
        with pytest.raises(TypeError, match="must be a number, not"):
            kernel(wrong, y, global_size=1)


def test_doubles():
    if wide_type_is_missing(torch.float64):
        pytest.skip("the device has no double precision")
    kernel = compile_kernel("kernel void set(double x, global double* y) { y[0] = x; }", "set")
    y = torch.zeros(1, dtype=torch.float64, device=DEVICE)
    kernel(1e300 / 3, y, global_size=1)
    assert y.item() == 1e300 / 3


def test_vectors_and_pointers_to_structs():
    text = """
    struct Box { int n; float scale; };
    kernel void f(float2 z, int3 v, constant struct Box* box, char bias, global float* y) {
      y[0] = z.x; y[1] = z.y; y[2] = v.x + v.y * 10 + v.z * 100; y[3] = box->n * box->scale; y[4] = bias;
    }"""
    kernel = compile_kernel(text, "f")
    y = torch.zeros(5, device=DEVICE)
    box = torch.frombuffer(bytearray(struct.pack("if", 3, 0.5)), dtype=torch.uint8).to(DEVICE)
    for z in (1.5 - 2j, (1.5, -2), [1.5, -2]):
        kernel(z, (1, 2, 3), box, -4, y, global_size=1)
        assert y.tolist() == [1.5, -2, 321, 1.5, -4]
    with pytest.raises(TypeError, match="takes 2 numbers, not 3"):
        kernel((1, 2, 3), (1, 2, 3), box, 0, y, global_size=1)
    with pytest.raises(TypeError, match="must be a tuple of numbers, not complex"):
        kernel(1j, 1j, box, 0, y, global_size=1)


REVERSE = """
kernel void reverse(global int* x, local int* shared) {
  const size_t l = get_local_id(0);
  shared[l] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  x[get_global_id(0)] = shared[get_local_size(0) - 1 - l];
}
kernel __attribute__((reqd_work_group_size(8, 1, 1))) void reverse8(global int* x) {
  local int shared[8];
  shared[get_local_id(0)] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  x[get_global_id(0)] = shared[7 - get_local_id(0)];
}
kernel void groups(global int* x) {
  x[get_global_id(0) + get_global_size(0) * (get_global_id(1) + get_global_size(1) * get_global_id(2))] =
      get_local_size(0) * 10000 + get_local_size(1) * 100 + get_local_size(2);
}
"""


def test_local_memory():
    x = torch.arange(64, dtype=torch.int32)
    library = compile_library(REVERSE)
    on_device = x.to(DEVICE)
    library.reverse(on_device, LocalMemory(16 * 4), global_size=64, local_size=16)
    assert torch.equal(on_device.cpu(), x.view(4, 16).flip(1).flatten())
    on_device = x.to(DEVICE)
    library.reverse8(on_device, global_size=64)  # the size that the kernel asks for
    assert torch.equal(on_device.cpu(), x.view(8, 8).flip(1).flatten())
    assert library.reverse8.local_memory >= 32
    has = torch.ocl.get_device_properties().local_mem
    for size in (has + 1, has * 100):
        with pytest.raises(ValueError, match=f"{size} bytes of local memory for argument 'shared', but .* has {has}"):
            library.reverse(on_device, LocalMemory(size), global_size=64)
    for wrong in (64, on_device, None, x.numpy()):
        with pytest.raises(TypeError, match=r"must be torch.ocl.LocalMemory\(nbytes\), not"):
            library.reverse(on_device, wrong, global_size=64)
    with pytest.raises(ValueError, match="more than 0 bytes"):
        LocalMemory(0)


def test_sizes():
    library = compile_library(REVERSE)
    x = torch.zeros(6, 4, 8, dtype=torch.int32, device=DEVICE)
    library.groups(x, global_size=(8, 4, 6), local_size=[4, 2, 3])
    assert x.unique().tolist() == [40203]
    library.groups(x, global_size=torch.Size([192]), local_size=64)
    assert x.unique().tolist() == [640101]
    library.groups(x, global_size=(8, 4, 6))  # chosen
    sizes = x.unique().item()
    assert isinstance(sizes, int)
    assert sizes // 10000 == 8
    x.zero_()
    for nothing in (0, (8, 0), (0, 1, 2)):
        library.groups(x, global_size=nothing)
        library.groups(x, global_size=nothing, local_size=(3,) * (len(nothing) if isinstance(nothing, tuple) else 1))
    assert not x.any()


def test_sizes_that_are_refused():
    library = compile_library(REVERSE)
    x = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    most = library.groups.max_work_group_size
    refused = [
        (library.groups, 64, 3, r"the global size \(64,\) is no multiple of the local size \(3"),
        (library.groups, 64, 0, "each size must be above 0"),
        (library.groups, most * 4, most * 4, "takes at most"),
        (library.groups, (most, 2), (most, 2), f"{2 * most} work-items, but this kernel takes at most {most}"),
        (library.groups, 64, (8, 8), "as many dimensions"),
        (library.groups, (1,) * 4, None, "one to three dimensions, not 4"),
        (library.groups, (), None, "one to three dimensions, not 0"),
        (library.groups, -8, None, "must not be negative"),
        (library.reverse8, 64, 16, r"reqd_work_group_size asks for \(8, 1, 1\)"),
        (library.reverse8, 60, None, "no multiple"),
    ]
    for kernel, global_size, local_size, message in refused:
        with pytest.raises(ValueError, match=message):
            kernel(x, global_size=global_size, local_size=local_size)
    for wrong in (8.0, "8", None, (8, 1.0)):
        with pytest.raises(TypeError):
            library.groups(x, global_size=wrong)
    with pytest.raises(OverflowError):
        library.groups(x, global_size=2**70)
    assert not x.any()
    library.groups(x, global_size=64)  # the device goes on
    assert x.all()


def test_wrong_arguments(saxpy):
    x, y, z = tensors()
    with pytest.raises(TypeError, match="saxpy takes 3 arguments, but there are 2"):
        saxpy(x, y, global_size=100)
    with pytest.raises(TypeError, match=r"argument 'x' \(global const float\*\) must be a tensor or None, not float"):
        saxpy(1, 2.0, y, global_size=100)
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Double for argument 'x'"):
        saxpy(1, x.double(), y, global_size=100)
    with pytest.raises(RuntimeError, match=r"same device, but found at least two devices, ocl:0 .* and cpu"):
        saxpy(1, x.cpu(), y, global_size=100)
    with pytest.raises(RuntimeError, match="argument 'x' must be strided and no lazy view"):
        saxpy(1, x.to_sparse(), y, global_size=100)
    with pytest.raises(RuntimeError, match="argument 'x' must be strided and no lazy view"):
        saxpy(1, torch.complex(x, y).conj().imag, y, global_size=100)
    with pytest.raises(TypeError, match="global_size"):
        saxpy(1, x, y)
    with pytest.raises(TypeError, match=r"the stream must be a torch.ocl.Stream, not int"):
        saxpy(1, x, y, global_size=100, stream=3)
    with pytest.raises(ValueError, match="the stream must be of ocl:0"):
        saxpy(1, x, y, global_size=100, stream=torch.Stream("cpu"))
    saxpy(0, x, z, global_size=100)


def test_a_write_counts_as_one_in_place(saxpy):
    x, y, _ = tensors()
    x.requires_grad_()
    versions = x._version, y._version
    product = x * y
    saxpy(1, x.detach(), y, global_size=100)
    assert (x._version, y._version) == (versions[0], versions[1] + 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():
        saxpy(1, torch.ones(4, device=DEVICE), torch.ones(4, device=DEVICE), global_size=4)


def test_sources_that_do_not_compile(saxpy):
    text = SAXPY.replace("+= a", "+= b")
    for _ in range(2):  # the second time from memory
        with pytest.raises(RuntimeError, match="Build log") as error:
            compile_kernel(text, "saxpy")
        assert "   3 |   y[get_global_id(0)] += b * x[get_global_id(0)];\n" in str(error.value)
        assert "dlb_offset" not in str(error.value).partition("numbered source")[2]
    with pytest.raises(RuntimeError, match="Build log"):
        compile_library(text)
    with pytest.raises(ValueError, match="there is no kernel 'axpy' in the source; its kernels: saxpy"):
        compile_kernel(SAXPY, "axpy")
    with pytest.raises(AttributeError, match="there is no kernel 'axpy'"):
        compile_library(SAXPY).axpy  # noqa: B018
    with pytest.raises(ValueError, match="one line"):
        compile_kernel(SAXPY, "saxpy", options="-DA\n")
    with pytest.raises(ValueError, match="Expected an ocl device"):
        compile_kernel(SAXPY, "saxpy", device="cpu")
    with pytest.raises(RuntimeError, match="does not exist"):
        compile_kernel(SAXPY, "saxpy", device=100)
    x, y, _ = tensors()
    saxpy(1, x, y, global_size=100)
    torch.ocl.synchronize()


def test_a_text_that_only_the_compiler_understands_is_refused():
    text = "#if __OPENCL_VERSION__ > 99 && (defined(__clang__) || !defined(MINE))\n"
    text += "kernel void f(int a, int b, global int* x) {}\n#else\nkernel void f(global int* x) {}\n#endif"
    if "Portable" not in torch.ocl.get_device_properties().platform:
        pytest.skip("another compiler")
    with pytest.raises(ValueError, match="the compiler sees other arguments of this kernel"):
        compile_kernel(text, "f", options="-DMINE")


def test_what_a_kernel_shows():
    library = compile_library(SAXPY)
    assert repr(library.saxpy) == "<kernel saxpy(const float a, global const float* x, global float* y) on ocl:0>"
    assert library.saxpy is library.saxpy
    assert "saxpy" in dir(library)
    assert (library.saxpy.name, library.saxpy.device) == ("saxpy", torch.device("ocl:0"))


def test_streams(saxpy):
    x, y = torch.ones(1 << 16, device=DEVICE), torch.zeros(1 << 16, device=DEVICE)
    side = torch.ocl.Stream()
    torch.ocl.synchronize()
    for _ in range(20):
        saxpy(1, x, y, global_size=1 << 16, stream=side)
    torch.ocl.current_stream().wait_stream(side)
    assert torch.equal(y.cpu(), torch.full((1 << 16,), 20.0))
    with torch.ocl.stream(side):
        saxpy(1, x, y, global_size=1 << 16)
    side.synchronize()
    assert y[-1].item() == 21


def test_memory_used_on_another_stream_is_not_given_out_before_that_is_done():
    text = """kernel void slow(global float* x, int turns) {
      float v = x[get_global_id(0)];
      for (int i = 0; i < turns; i++) v = v * 0.5f + 0.5f;
      x[get_global_id(0)] = v;
    }"""
    kernel, side = compile_kernel(text, "slow"), torch.ocl.Stream()
    x = torch.ones(4096, device=DEVICE)
    side.wait_stream(torch.ocl.current_stream())  # x's memory may be what kernels on that stream still read
    kernel(x, 1, global_size=4096, stream=side)  # compiles machine code
    torch.ocl.synchronize()
    address = x.data_ptr()
    kernel(x, 100_000, global_size=4096, stream=side)
    del x
    fresh = [torch.empty(4096, device=DEVICE) for _ in range(4)]
    assert side.query() or address not in [tensor.data_ptr() for tensor in fresh]
    torch.ocl.synchronize()


def test_two_threads(saxpy):
    def work(x, y):
        for _ in range(300):
            saxpy(1, x, y, global_size=100)
        compile_kernel(SAXPY, "saxpy")(1, x, y, global_size=100)

    pairs = [(torch.ones(100, device=DEVICE), torch.zeros(100, device=DEVICE)) for _ in range(4)]
    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(y.unique().tolist() == [301] for _, y in pairs)


def test_launches_are_counted_and_profiled(saxpy, background_at_rest):
    x, y, _ = tensors()
    saxpy(1, x, y, global_size=100)
    before = dlbackend.kernel_stats()
    with torch.profiler.profile() as profile:
        saxpy(1, x, y, global_size=100)
        torch.ocl.synchronize()
    after = dlbackend.kernel_stats()
    assert after["launches"] - before["launches"] == 1
    assert after["compiled"] == before["compiled"]
    assert "saxpy" in {event.name for event in profile.events() or []}


SECOND = f"""
import torch, dlbackend
x, y = torch.arange(4.0).to("ocl"), torch.zeros(5).to("ocl")
torch.ocl.compile_kernel('''{SAXPY}''', "saxpy")(2, x, y[1:], global_size=4)
assert y.tolist() == [0, 0, 2, 4, 6], y
stats = dlbackend.kernel_stats()
print(int(stats["compiled"]), int(stats["loaded"]))
"""


@pytest.mark.parametrize("thread", ["0", "1"])
def test_a_second_process_compiles_nothing(tmp_path, thread):
    variables = {"DLBACKEND_CACHE_DIR": str(tmp_path), "DLBACKEND_PACKS": "", "DLBACKEND_ENQUEUE_THREAD": thread}
    first, second = (forked_python(SECOND, **variables) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    compiled, loaded = map(int, first.stdout.split())
    assert compiled > 0
    assert second.stdout.split() == ["0", str(compiled + loaded)]


EVICTED = """
import torch, dlbackend
text = "kernel void add(global int* x) { x[0] += N; }"
kernels = [torch.ocl.compile_kernel(text, "add", options=f"-DN={n}") for n in range(1, 6)]
x = torch.zeros(1, dtype=torch.int32, device="ocl")
for _ in range(2):
    for kernel in kernels:
        kernel(x, global_size=1)
assert x.item() == 30
assert dlbackend.kernel_stats()["evicted"] > 5
"""


@pytest.mark.parametrize("thread", ["0", "1"])
def test_programs_that_were_evicted_are_loaded_again(thread):
    done = forked_python(EVICTED, DLBACKEND_MAX_PROGRAMS="2", DLBACKEND_ENQUEUE_THREAD=thread)
    assert done.returncode == 0, done.stderr


def test_on_devices_of_the_gpu_class():
    code = SECOND.replace("print(", "(") + "torch.ocl.synchronize()"
    done = forked_python(code, DLBACKEND_ENQUEUE_THREAD="1", **emulating(**{"class": "gpu"}))
    assert done.returncode == 0, done.stderr
