// Caching device allocator. Each segment is one cl_mem with a reserved, inaccessible range of virtual
// addresses, so a tensor's data pointer is unique, survives ATen's pointer arithmetic, faults cleanly when
// the host touches it, and maps back to (cl_mem, byte offset).
#pragma once
#include <c10/core/Allocator.h>

#include <memory>

#include "cl/library.h"

// Their headers take a second of every file that includes this one.
namespace c10 {
struct DeviceAllocator;
struct Storage;
struct StorageImpl;
}  // namespace c10
namespace c10::impl::cow {
C10_API void cow_deleter(void* context);
}

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

// Allocates on that device, ordered by its current stream; in the pool of the graph that the stream is
// captured into, if any.
c10::DataPtr allocate_bytes(size_t bytes, c10::DeviceIndex device);

// As allocate_bytes(), but never in the pool of a graph that is captured: for what outlives it.
c10::DataPtr allocate_beside_graph(size_t bytes, c10::DeviceIndex device);

// The memory of a graph's pool is kept on the device until it was given up as often.
void keep_pool(c10::DeviceIndex device, uint64_t pool);
void give_up_pool(c10::DeviceIndex device, uint64_t pool);

// Resizes a storage of ours to so many bytes, and keeps what fits of its contents. Throws c10::Error for a
// storage that is not resizable.
void resize_storage(const c10::Storage& storage, size_t bytes);

// Readies a storage of ours for c10::impl::cow::lazy_clone_storage(), which takes only memory that is freed
// by its address alone.
void make_lazily_clonable(c10::StorageImpl& storage);

// Whether memory is shared with lazy clones, until one of them is written.
inline bool is_shared(const c10::DataPtr& data) {
  return data.get_deleter() == &c10::impl::cow::cow_deleter;
}

// Gives a storage that shares its memory with lazy clones memory of its own, on its device. Thread-safe.
void unshare(c10::StorageImpl& storage);

// An object that lives as long as the memory that a DataPtr owns. The first call, from any thread, makes it.
// Null when our allocator did not make that memory.
std::shared_ptr<void> attached(const c10::DataPtr& storage_data, std::shared_ptr<void> (*make)());

// The buffer and offset of a device pointer. `storage_data` is the DataPtr that owns it, which makes this
// O(1) for memory of our allocator. Throws c10::Error for a pointer into no live segment; for memory of
// another type of device the message is PyTorch's own.
MemRef resolve(const c10::DataPtr& storage_data, const void* pointer);
MemRef resolve(const void* pointer);  // O(log segments)

// Lets this process take at most that fraction of the device's memory from the driver; taking more raises
// OutOfMemoryError. Memory that it holds already stays.
void limit_memory(c10::DeviceIndex device, double fraction);

// From now on allocations and frees are reported to PyTorch's profilers, which costs 20 ns for the two.
void start_memory_reports() noexcept;

// The device of a live device pointer. Throws c10::Error for a pointer that is not ours.
c10::DeviceIndex device_of_pointer(const void* pointer);

}  // namespace dlb
