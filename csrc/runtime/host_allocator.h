// Page-locked host memory: buffers that the driver allocated on the host and mapped once, cached by PyTorch's
// own caching host allocator.
#pragma once
#include <ATen/core/CachingHostAllocator.h>

namespace dlb {

// PyTorch's HostAllocator for ocl; what pin_memory() uses.
at::HostAllocator* host_allocator();

// True when the pointer lies in page-locked memory of ours.
bool is_pinned(const void* pointer);

}  // namespace dlb
