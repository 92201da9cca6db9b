// OpenCL devices of this process: discovery, order, capabilities and quirks. A device's context is made on
// first use.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>

#include "cl/library.h"

namespace dlb::cl {

// Kernel families come in two shapes: long vector loops without barriers for CPUs, many work-items for the
// rest. DLBACKEND_DEVICE_CLASS=gpu (or cpu) gives every device that class, to test the kernels of GPUs on a
// CPU driver; they are slow there.
enum class DeviceClass : uint8_t { kCpu, kGpu };

// Instructions of x86-64 for bfloat16: none, AVX512_BF16 on vectors, AMX on tiles.
enum class Bf16 : uint8_t { kNone, kVectors, kTiles };

// Matrix instructions of a GPU's work-items together: none, NVIDIA's mma of PTX, or the same computed in
// plain OpenCL C, which DLBACKEND_TENSOR_CORES=emulated gives other devices to test the kernels that need
// them. DLBACKEND_TENSOR_CORES=none takes them away.
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
  bool fp64 = false;           // cl_khr_fp64
  bool fp16 = false;           // cl_khr_fp16 is listed; half is a storage type everywhere
  bool int64_atomics = false;

  // Quirks, by platform: what the driver does that others do not.
  bool host_memory = false;    // the device computes in host memory, so copies are memcpy
  bool flush_needed = true;    // enqueued work may sit in the driver until clFlush
  bool late_code = false;      // kernels get machine code per work-group size at their first launch
  bool clang_on_host = false;  // kernels are compiled by clang for the CPU that this process runs on
  TensorCores tensor_cores = TensorCores::kNone;

  std::string build_options;  // passed to every build
  std::string cache_tag;      // identifies device, driver and platform in disk caches

  // The instructions for bfloat16 that kernels may use: those of the host's CPU where the driver's compiler
  // is known to be clang, tiles where Linux lets this process have their state, which the first call asks
  // for. Thread-safe.
  Bf16 bf16() const;

  // The context, created on first call. Thread-safe. Throws Error.
  cl_context context();

 private:
  std::once_flag context_once_;
  cl_context context_ = nullptr;
};

// PyTorch keeps both the number of devices and their indices in eight bits with a sign. What a machine has
// beyond that is left out.
constexpr size_t kMostDevices = 127;
constexpr size_t kDeviceIndices = kMostDevices + 1;  // from 0, also of devices that are not there

// Number of devices; 0 when there is no OpenCL. Never throws. One that does not tell what it is, is left out
// with a line on stderr. Ordered GPUs first, then accelerators, then
// CPUs, in the platforms' order; DLBACKEND_DEVICES ("1,0", "nvidia", "cpu": indices of that order or parts of
// names, by comma) selects and reorders.
int device_count() noexcept;

// The device of that index. Throws Error with no_device() for one out of range.
Device& device(int index);

// Why there is no device of that index, and what to do.
std::string no_device(int index);

}  // namespace dlb::cl
