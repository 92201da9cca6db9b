// A place in device memory, as kernels take it: a buffer and an offset into it.
#pragma once
#include <cstdint>

#include "cl/library.h"

namespace dlb {

// OpenCL's buffers are opaque and sub-buffers must be aligned, so kernels get the buffer and an offset in
// elements of the operand's type. A null `mem` stands for an operand that is absent.
struct Buffer {
  cl_mem mem = nullptr;
  int64_t offset = 0;  // elements
};

}  // namespace dlb
