// Copies of operands to lines of contiguous elements, for solvers whose kernels read no other layout
// (common/pack_lines.cl).
#pragma once
#include <c10/core/ScalarType.h>

#include <string>

#include "cl/buffer.h"
#include "kernels/common/pack_lines.h"
#include "runtime/allocator.h"
#include "runtime/stream.h"

namespace dlb::solver {

struct LinesCopy {
  params::PackLines arguments{};  // but for the offsets
  int64_t bytes = 0, groups = 0;  // of the copy; of work-items
  bool always = false;            // else where the operand's address is no multiple of kWgmmaUnit bytes
};

// The work-groups of a copy of so many outer matrices of elements of so many bytes.
int64_t packing_groups(const params::PackLines& arguments, int64_t outer, int64_t bytes);

// Copies operands of one storage type on one device. Thread-safe.
class LinePacker {
 public:
  LinePacker(cl::Device& device, int index, c10::ScalarType dtype);

  // Has the kernel built, where it is known before a run that it is needed.
  void fetch() const { kernel(); }

  // Copies an operand to a place, and says where that is in elements.
  Buffer pack(Stream& stream, const LinesCopy& copy, const Buffer& from, MemRef to) const;

  // Brings an operand to where kernels can read it: to `place` where that is always needed, to memory of its
  // own where only its address is odd. That memory is returned; freed after the launches that read it, it is
  // used again behind them.
  c10::DataPtr bring(Stream& stream, const LinesCopy& copy, Buffer& operand, MemRef place) const;

 private:
  cl::Kernel& kernel() const;

  cl::Device& device_;
  const c10::DeviceIndex index_;
  const int64_t element_;  // bytes
  const std::string options_;
};

}  // namespace dlb::solver
