// Finds the buffer that a device pointer belongs to. Each segment is one cl_mem with a reserved, inaccessible
// range of virtual addresses of its size, so that pointers into it are unique in the process and fault when
// the host follows them.
#pragma once
#include <c10/core/Device.h>

#include <cstddef>

#include "cl/library.h"

namespace dlb {

struct Segment {
  cl_mem mem = nullptr;
  char* base = nullptr;  // of the reserved addresses
  size_t size = 0;       // bytes
  c10::DeviceIndex device = 0;
};

// Reserves addresses for a buffer of so many bytes and makes them known. Takes over `mem`; null, with `mem`
// released, where the process has no addresses left. Thread-safe.
Segment* map_segment(cl_mem mem, size_t bytes, c10::DeviceIndex device);

// Forgets the segment and releases its buffer, which OpenCL keeps until the commands that use it are done,
// and its addresses. Thread-safe.
void unmap_segment(Segment* segment);

// The live segment, of any device, that holds this address; null where there is none. O(log segments).
// Thread-safe.
const Segment* find_segment(const void* pointer);

}  // namespace dlb
