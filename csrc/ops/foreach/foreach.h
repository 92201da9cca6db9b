// How _foreach ops run: all tensors in one launch where PyTorch's rules for the fast route allow it, else
// tensor by tensor through PyTorch's own composite kernels.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/native/ForeachUtils.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

#include "codegen/registry.h"
#include "ops/common/multi_tensor.h"

namespace dlb {

using at::TensorList;
using Tensors = std::vector<at::Tensor>;
using Scalars = c10::ArrayRef<c10::Scalar>;

// `op` when it has a body for the lists' dtype and the lists may take the fast route, else null.
// `float_result`: the op turns integers into floats, which the fast route does not.
inline const codegen::PointwiseOp* fast_op(const codegen::PointwiseOp* op, bool float_result,
                                           at::ArrayRef<TensorList> lists, Scalars scalars = {}) {
  if (!op || op->error || lists[0][0].device().type() != kDeviceType || lists[0][0].layout() != c10::kStrided)
    return nullptr;
  const c10::ScalarType type = lists[0][0].scalar_type();
  if (type == c10::ScalarType::ComplexHalf || isFloat8Type(type) || isQIntType(type)) return nullptr;
  const codegen::DType compute = codegen::compute_type(dtype_of(type, op->name));
  if (!op->body(codegen::class_of(compute)) || codegen::result_type(*op, compute) != compute) return nullptr;
  return at::native::can_use_fast_route(lists, scalars, float_result) ? op : nullptr;
}

// PyTorch does not count in-place changes of lists itself.
inline void bump_versions(TensorList list) {
  for (const at::Tensor& t : list) t.unsafeGetTensorImpl()->bump_version();
}

// New tensors like those of `self` with op(self, ...) in them; `fill` adds the operands after the first.
template <class Fill, class Slow>
Tensors foreach_functional(const codegen::PointwiseOp* op, TensorList self, Fill&& fill, Slow&& slow) {
  if (!op) return slow();
  const c10::DeviceGuard guard(self[0].device());
  Tensors result;
  result.reserve(self.size());
  for (const at::Tensor& t : self) result.push_back(at::empty_like(t));
  MultiTensor call(*op, self[0].scalar_type());
  call.output(result).input(self);
  fill(call);
  call.run();
  return result;
}

// Runs the functional form's kernel, so that there is one less to build. An element is read before it is
// written, so it may be the same memory.
template <class Fill, class Slow>
void foreach_in_place(const codegen::PointwiseOp* op, TensorList self, Fill&& fill, Slow&& slow) {
  if (!op) return slow();
  const c10::DeviceGuard guard(self[0].device());
  MultiTensor call(*op, self[0].scalar_type());
  call.output(self).input(self);
  fill(call);
  if (!call.run()) return slow();
  bump_versions(self);
}

// Registers a kernel for an op that this version of torch may not have.
template <class Function>
void impl_if_known(torch::Library& m, const std::string& name, const char* overload, Function* function) {
  if (c10::Dispatcher::singleton().findSchema({"aten::" + name, overload}))
    m.impl((*overload ? name + "." + overload : name).c_str(), function);
}

}  // namespace dlb
