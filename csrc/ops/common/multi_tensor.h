// Runs one op over lists of tensors in one launch (per group of up to codegen::kMaxSegments allocator
// segments).
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <mutex>
#include <vector>

#include "cl/kernel.h"
#include "codegen/multi_tensor.h"
#include "runtime/tensor.h"

namespace dlb {

// Lists of tensors that a kernel walks in step. Lists have equal lengths and their tensors the same sizes and
// dense layout at each index, except Single ones, which have one element.
struct TensorLists {
  struct List {
    at::TensorList tensors;  // one tensor for all where its size is 1 and there are more
    bool single = false;
    bool written = false;
  };
  c10::SmallVector<List, codegen::kMaxMultiOperands> lists;
};

// The arguments that a launch needs beside its own; valid within the call that gets it.
struct TableLaunch {
  std::array<cl_mem, codegen::kMaxSegments> segments{};  // all set
  cl_mem ring = nullptr;                                 // with the table and the values
  codegen::MultiTensorParams params{};
  const std::vector<uint64_t>* start =
      nullptr;  // where each tensor's work begins, in the units of params.total
  void add_to(cl::Kernel::Arguments& arguments) const {
    for (cl_mem segment : segments) arguments.add(segment);
    arguments.add(ring);
    arguments.add(params);
  }
};

// Calls `launch` for each group of tensors that share a launch, in order, with table and per-tensor values
// uploaded (a table that the device still holds is not sent again). `values_of(i)`, if given, appends the
// per-tensor values of tensor i (bytes of `value_bytes` each, one per value list). Tensors without elements
// are left out. Returns false, and calls nothing, when memory that is written overlaps other memory of the
// lists in a way that makes the order matter.
bool for_each_table(const TensorLists& lists, Stream& stream, const std::vector<ScalarArg>& values,
                    size_t value_lists, const std::function<void(TableLaunch&)>& launch);

// CPU: elements per work-item, and how many work-items, for a total.
uint64_t multi_tensor_share(const cl::Device& device, uint64_t total);

// One pointwise op over lists. Operands are added outputs first, inputs in the op's order.
class MultiTensor {
 public:
  // `setup`, `after`: see codegen::MultiTensorKey. `compute` is the dtype whose compute type the op runs in.
  // All strings must live as long as the process.
  MultiTensor(const codegen::PointwiseOp& op, c10::ScalarType compute, const char* setup = nullptr,
              const char* after = nullptr);

  MultiTensor& output(at::TensorList list);
  MultiTensor& input(at::TensorList list);
  MultiTensor& input_in_place(uint8_t output);        // the same list as that output
  MultiTensor& single(at::TensorList list);           // one element per tensor, or one for all
  MultiTensor& single_or_value(const at::Tensor& t);  // one element for all, on the device or on the CPU
  // A number for all, and one for each tensor, rounded to `type` where that is given.
  MultiTensor& value(const c10::Scalar& value, c10::ScalarType type = c10::ScalarType::Undefined);
  MultiTensor& values(c10::ArrayRef<c10::Scalar> list, c10::ScalarType type = c10::ScalarType::Undefined);
  MultiTensor& scalar(const c10::Scalar& value);  // s0, s1, ... after all operands
  MultiTensor& scalars(c10::ArrayRef<c10::Scalar> list);

  // Enqueues on the current stream of the lists' device. False, with nothing done, when lists overlap (see
  // above).
  bool run();

 private:
  void operand(codegen::DType type, codegen::Source source, uint8_t alias = codegen::kNoAlias);
  void add_list(at::TensorList list, codegen::Source source, bool written);
  void add_values(c10::ArrayRef<c10::Scalar> list, c10::ScalarType type);

  codegen::MultiTensorKey key_;
  TensorLists lists_;
  c10::SmallVector<ScalarArg, codegen::kMaxMultiScalars> arguments_;
  std::vector<ScalarArg> values_;  // list after list
  size_t value_lists_ = 0;
  uint8_t scalars_ = 0;
};

}  // namespace dlb
