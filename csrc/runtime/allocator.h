// Caching device allocator. Each segment is one cl_mem with a reserved, inaccessible range of virtual
// addresses, so a tensor's data pointer is unique, survives ATen's pointer arithmetic, faults cleanly when
// the host touches it, and maps back to (cl_mem, byte offset).
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <memory>

#include "cl/library.h"

namespace dlb {

// Where bytes live on a device.
struct MemRef {
  cl_mem mem = nullptr;
  uint64_t offset = 0;  // bytes from the start of mem
};

// The process's allocator for ocl, as registered with PyTorch. Raises torch.OutOfMemoryError when memory is
// used up after cached segments were released, and for a single block above the device's
// CL_DEVICE_MAX_MEM_ALLOC_SIZE.
c10::DeviceAllocator* allocator();

// Allocates on that device, ordered by its current stream.
c10::DataPtr allocate_bytes(size_t bytes, c10::DeviceIndex device);

// Gives a storage of ours that many bytes, keeping what fits of its contents. Throws c10::Error for one that
// is not resizable.
void resize_storage(const c10::Storage& storage, size_t bytes);

// What goes with the memory that a DataPtr owns when it is freed; made at the first call, from any thread.
// Null when our allocator did not make that memory.
std::shared_ptr<void> attached(const c10::DataPtr& storage_data, std::shared_ptr<void> (*make)());

// Maps a device pointer back. `storage_data` is the DataPtr that owns it; O(1) when our allocator made it.
// Throws c10::Error for a pointer that belongs to no live segment, in PyTorch's words for memory of another
// type of device.
MemRef resolve(const c10::DataPtr& storage_data, const void* pointer);
MemRef resolve(const void* pointer);  // O(log segments)

// Lets this process take that fraction of the device's memory from the driver; more is out of memory. What it
// holds already stays.
void limit_memory(c10::DeviceIndex device, double fraction);

// From now on allocations and frees are reported to PyTorch's profilers, which costs 20 ns for the two.
void start_memory_reports() noexcept;

// The device a live device pointer belongs to. Throws c10::Error when it is not one of ours.
c10::DeviceIndex device_of_pointer(const void* pointer);

}  // namespace dlb
