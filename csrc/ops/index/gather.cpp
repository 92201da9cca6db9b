// Reading through indices: gather, index_select, take, index.
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/gather_meta.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/zeros.h>

#include "cl/recording.h"
#include "ops/common/structured.h"
#include "ops/index/access.h"
#include "ops/index/advanced.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

at::Tensor& gather_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, bool sparse_grad,
                       at::Tensor& out) {
  OutOp<at::meta::structured_gather> op(out);
  op.meta(self, dim, index, sparse_grad);
  if (index.numel() == 0) return op.finish(), out;
  check_same_device(self, index, "gather");
  const c10::DeviceGuard guard(self.device());
  static const int32_t site = index_error_site("gather", false);
  const at::Tensor in = at_least_1d(self.resolve_conj().resolve_neg()), at = at_least_1d(index),
                   to = at_least_1d(op.result());
  const auto d = static_cast<size_t>(at::maybe_wrap_dim(dim, in.dim()));
  run_index_access(access_elements(to, in, at, d, site));
  op.finish();
  return out;
}

at::Tensor& index_select_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, at::Tensor& out) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK_INDEX(index.dim() <= 1,
                    "index_select(): Index is supposed to be a vector, but got dim: ", index.dim(),
                    " with type: ", index.scalar_type(), " and size: ", index.sizes());
  TORCH_CHECK(!(self.dim() == 0 && index.numel() != 1),
              "index_select(): Index to scalar can have only 1 value, got ", index.numel(), " value(s)");
  TORCH_CHECK(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
              "index_select(): Expected dtype int32 or int64 for index but got: ", index.scalar_type());
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "index_select(): self and result must have the same scalar type");
  check_same_device(self, index, "index_select");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, index);
  const c10::DeviceGuard guard(self.device());
  auto sizes = self.sizes().vec();
  if (self.dim() > 0) sizes[static_cast<size_t>(dim)] = index.numel();
  at::native::resize_output(out, sizes);
  if (out.numel() == 0) return out;
  TORCH_CHECK_INDEX(self.numel() > 0, "index_select(): index out of range: dimension ", dim,
                    " has no elements");
  static const int32_t site = index_error_site("index_select");
  const at::Tensor in = at_least_1d(self.resolve_conj().resolve_neg()), at = at_least_1d(index),
                   to = at_least_1d(out);
  run_index_access(access_slices(to, in, at, static_cast<size_t>(dim), site));
  return out;
}

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  const c10::DeviceGuard guard(self.device());
  at::Tensor out = at::empty({0}, self.options());
  index_select_out(self, dim, index, out);
  return out;
}

at::Tensor& take_out(const at::Tensor& self, const at::Tensor& index, at::Tensor& out) {
  TORCH_CHECK(index.scalar_type() == at::kLong, "take(): Expected a long tensor for index, but got ",
              index.scalar_type());
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "take(): self and out expected to have the same dtype, but got "
              "self.dtype = ",
              self.scalar_type(), " and out.dtype = ", out.scalar_type());
  check_same_device(self, index, "take");
  TORCH_CHECK_INDEX(!(self.numel() == 0 && index.numel() != 0), "take(): tried to take from an empty tensor");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, index);
  at::assert_no_overlap(out, self);
  const c10::DeviceGuard guard(self.device());
  at::native::resize_output(out, index.sizes());
  if (out.numel() == 0) return out;
  static const int32_t site = index_error_site("take");
  IndexAccess access;
  access.plain = out;
  access.indexed = self.resolve_conj().resolve_neg().contiguous();
  access.index = index;
  access.sizes = index.sizes();
  access.plain_strides = out.strides();
  access.indexed_strides = at::DimVector(index.sizes().size(), 0);
  access.index_strides = index.strides();
  access.bound = self.numel();
  access.step = 1;
  access.wraps = true;
  access.site = site;
  run_index_access(access);
  return out;
}

at::Tensor take(const at::Tensor& self, const at::Tensor& index) {
  const c10::DeviceGuard guard(self.device());
  at::Tensor out = at::empty(index.sizes(), self.options());
  take_out(self, index, out);
  return out;
}

void read_advanced(const AdvancedIndexing& plan, const at::Tensor& out) {
  IndexAccess access = plan.access();
  access.plain = out;
  access.plain_strides = out.strides();
  run_index_access(access);
}

at::Tensor index(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices) {
  const c10::DeviceGuard guard(self.device());
  const AdvancedIndexing plan(self.resolve_conj().resolve_neg(), indices, "index");
  at::Tensor out = at::empty_strided(plan.sizes(), plan.result_strides(), self.options());
  if (out.numel() > 0) read_advanced(plan, out);
  return out;
}

at::Tensor& index_out(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
                      at::Tensor& out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(), "index_out: self (", self.scalar_type(),
              ") and result (", out.scalar_type(), ") must have the same scalar type");
  check_same_device(self, out, "index");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  const c10::DeviceGuard guard(self.device());
  const AdvancedIndexing plan(self.resolve_conj().resolve_neg(), indices, "index");
  if (at::native::resize_output(out, plan.sizes())) out.as_strided_(plan.sizes(), plan.result_strides());
  if (out.numel() > 0) read_advanced(plan, out);
  return out;
}

// There are no sparse tensors on the device: the gradient that sparse_grad=True asks for is dense.
at::Tensor gather_sparse_backward(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                                  const at::Tensor& grad) {
  return at::zeros(self.sizes(), grad.options().memory_format(std::nullopt)).scatter_add(dim, index, grad);
}

}  // namespace

// PyTorch's own kernel for all devices knows sparse ones alone. It is replaced above autograd too, so that
// the gradient has one.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_gather_sparse_backward", gather_sparse_backward);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_gather_sparse_backward", gather_sparse_backward);
  m.impl("gather.out", gather_out);
  m.impl("index_select", index_select);
  m.impl("index_select.out", index_select_out);
  m.impl("take", take);
  m.impl("take.out", take_out);
  m.impl("index.Tensor", index);
  m.impl("index.Tensor_out", index_out);
}

}  // namespace dlb
