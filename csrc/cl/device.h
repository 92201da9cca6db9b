// OpenCL devices of this process: discovery, order, capabilities and quirks. A device's context is made on
// first use.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>

#include "cl/feature.h"
#include "cl/library.h"

namespace dlb::cl {

// Most kernels are written twice: as long vector loops without barriers for CPUs, and with many work-items
// for all other devices. DLBACKEND_EMULATE=class=gpu gives every device one class, so that the kernels of
// GPUs can be tested, slowly, on the driver of a CPU.
enum class DeviceClass : uint8_t { kCpu, kGpu };

// Instructions of x86-64 for bfloat16: none, AVX512_BF16 on vectors, AMX on tiles.
enum class Bf16 : uint8_t { kNone, kVectors, kTiles };

// Instructions of x86-64 for sums of products of 8 bits: pairs in 16 bits, which all devices have in some
// way, AVX512_VNNI on vectors, AMX on tiles.
enum class Int8 : uint8_t { kPairs, kVectors, kTiles };

// Matrix instructions that the work-items of a GPU execute together: none, mma of NVIDIA's PTX, or the same
// computed in plain OpenCL C. DLBACKEND_EMULATE=tensor_cores=emulated gives the last to devices without the
// instructions, to test the kernels that need them, and tensor_cores=none takes the instructions
// away.
enum class TensorCores : uint8_t { kNone, kMma, kEmulated };

struct Device {
  int index = -1;  // position in this process, the N of "ocl:N"
  cl_platform_id platform = nullptr;
  cl_device_id id = nullptr;
  cl_device_type type = CL_DEVICE_TYPE_DEFAULT;
  DeviceClass cls = DeviceClass::kGpu;

  std::string name, vendor, platform_name, driver_version, version;
  uint64_t global_mem = 0;  // bytes
  uint64_t max_alloc = 0;   // bytes, of one buffer
  uint64_t local_mem = 0;   // bytes, per work-group
  uint64_t cache = 0;       // bytes, of the cache in front of global memory; the largest number if unknown
  uint32_t compute_units = 1;
  size_t max_work_group = 1;   // work-items
  uint32_t base_align = 128;   // bytes, of a buffer
  uint32_t vector_floats = 1;  // of the widest vector that one instruction computes

  // Tested as booleans. Half needs no feature as a storage type: this one is arithmetic in it.
  Feature fp64{*this, "cl_khr_fp64", "kernel void probe(global double* x) { x[0] += 0.5; }"};
  Feature fp16{*this, "cl_khr_fp16", "kernel void probe(global half* x) { x[0] += x[1]; }"};
  Feature int64_atomics{*this, "cl_khr_int64_base_atomics",
                        "kernel void probe(volatile global long* x) { atom_cmpxchg(x, 0L, 1L); }"};
  // NVIDIA's compiler takes PTX, whose additions to float32 and float64 in memory OpenCL C lacks.
  Feature ptx_atomics{
      *this, "cl_nv_pragma_unroll",
      "kernel void probe(global float* x, global double* y) {\n"
      "  asm volatile(\"red.global.add.f32 [%0], %1;\" : : \"l\"(x), \"f\"(1.0f) : \"memory\");\n"
      "  asm volatile(\"red.global.add.f64 [%0], %1;\" : : \"l\"(y), \"d\"(1.0) : \"memory\");\n"
      "}"};
  // The instructions that warpgroups of NVIDIA's Hopper GPUs multiply matrices with, and its copy engine.
  // Looked for on compute capability 9.0 only, since no other device has them.
  Feature wgmma{
      *this, "cl_nv_pragma_unroll",
      "kernel void probe(global uint* x) {\n"
      "  local uint map[32] __attribute__((aligned(128)));\n"
      "  asm volatile(\"//@tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], 2;\\n\"\n"
      "               \"//@wgmma.fence.sync.aligned;\\n\" : : \"r\"((uint)(ulong)map) : \"memory\");\n"
      "  x[0] = map[0];\n"
      "}"};

  // Quirks are what a platform's driver does that others do not. They are found by the platform's name, which
  // no file outside of this folder looks at.
  bool host_memory = false;    // the device computes in host memory, so a copy is a memcpy
  bool flush_needed = true;    // the driver may not start enqueued work before clFlush
  bool late_code = false;      // a kernel's first launch with a work-group size compiles its machine code
  bool builds_all = false;     // the driver is known to build all kernels of this library
  bool clang_on_host = false;  // clang compiles the kernels for the CPU that this process runs on
  // A work-group may wait for one that began before it: once begun, all go on, whatever the others do. OpenCL
  // does not promise this. A CPU's work-groups run on threads; NVIDIA promises it for GPUs from Volta on.
  bool groups_advance = false;
  bool keeps_targets = true;  // else clang drops what a function asks of its target, and LLVM aborts
  TensorCores tensor_cores = TensorCores::kNone;

  std::string build_options;  // passed to every build
  std::string cache_tag;      // identifies device, driver and platform in disk caches

  // The instructions for bfloat16 that kernels may use: those of the host's CPU where the driver's compiler
  // is known to be clang. Tiles need Linux's permission to keep their state, which the first call asks for.
  // Thread-safe.
  Bf16 bf16() const;
  Int8 int8() const;  // the same for integers of 8 bits

  // The context, created on first call. Thread-safe. Throws Error.
  cl_context context();

 private:
  std::once_flag context_once_;
  cl_context context_ = nullptr;
};

// PyTorch keeps both the number of devices and their indices in a signed byte. Devices beyond these are left
// out.
constexpr size_t kMostDevices = 127;
constexpr size_t kDeviceIndices = kMostDevices + 1;  // the length of tables that a device's index indexes

// The number of devices, 0 when there is no OpenCL. A device whose properties cannot be read is left out,
// with a line on stderr. GPUs come first, then accelerators, then CPUs, each in the platforms' order.
// DLBACKEND_DEVICES selects and reorders: it names indices of that order or parts of names, by comma, as
// "1,0", "nvidia" or "cpu".
int device_count() noexcept;

// The device of that index. Throws Error with no_device() for one out of range.
Device& device(int index);

// Why there is no device of that index, and what to do.
std::string no_device(int index);

}  // namespace dlb::cl
