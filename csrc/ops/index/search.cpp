// searchsorted and bucketize.
#include <ATen/native/BucketizationUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>

#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using Side = std::optional<std::string_view>;

void search(const at::Tensor& boundaries, const at::Tensor& values, const at::Tensor& sorter, bool right,
            const at::Tensor& out) {
  const auto type = dtype_of(values.scalar_type(), "searchsorted");
  Stream& stream = current_stream(values.device().index());
  check_device_supports(stream.device(), type, "searchsorted");
  const auto count = static_cast<uint64_t>(values.numel());
  const Split split = split_work(stream.device(), count, 512);
  const Buffer in = buffer_of(values), to = buffer_of(out),
               bounds = boundaries.numel() ? buffer_of(boundaries) : in,
               order = sorter.defined() && sorter.numel() ? buffer_of(sorter) : in;
  const int64_t length = boundaries.size(-1);
  fetch_kernel(stream.device(), "index/search.cl", "dlb_search", codegen::compute_type(type), {type})
      .launch(stream.queue(), split.range, bounds.mem, bounds.offset, in.mem, in.offset, order.mem,
              order.offset, to.mem, to.offset, count, split.per_item,
              static_cast<uint64_t>(values.dim() ? std::max<int64_t>(1, values.size(-1)) : 1), length,
              static_cast<int32_t>(boundaries.dim() == 1), static_cast<int32_t>(sorter.defined()),
              static_cast<int32_t>(right), static_cast<int32_t>(out.scalar_type() == at::kLong));
}

at::Tensor& searchsorted_out(const at::Tensor& boundaries, const at::Tensor& self, bool out_int32, bool right,
                             Side side, const std::optional<at::Tensor>& given_sorter, at::Tensor& out) {
  const at::Tensor sorter = given_sorter.value_or(at::Tensor());
  at::native::searchsorted_pre_check(boundaries, self, out, out_int32, right, side, sorter);
  const c10::DeviceGuard guard(self.device());
  at::native::resize_output(out, self.sizes());
  if (self.numel() == 0) return out;
  const bool is_right = (side && *side == "right") || right;
  at::Tensor values, bounds, order;
  at::native::searchsorted_maybe_trim_input_tensors(values, bounds, order, self, boundaries, sorter);
  const at::Tensor& v = values.defined() ? values : self;
  const at::Tensor& b = bounds.defined() ? bounds : boundaries;
  const at::Tensor dense = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
  search(b, v, order.defined() ? order : sorter, is_right, dense);
  if (!dense.is_same(out)) out.copy_(dense);
  return out;
}

at::Tensor searchsorted_tensor(const at::Tensor& boundaries, const at::Tensor& self, bool out_int32,
                               bool right, Side side, const std::optional<at::Tensor>& sorter) {
  at::Tensor out = at::empty({0}, self.options().dtype(out_int32 ? at::kInt : at::kLong));
  searchsorted_out(boundaries, self, out_int32, right, side, sorter, out);
  return out;
}

at::Tensor scalar_value(const c10::Scalar& value, const at::Tensor& boundaries) {
  return at::native::searchsorted_scalar_tensor(value, boundaries.device());
}
at::Tensor searchsorted_scalar(const at::Tensor& boundaries, const c10::Scalar& self, bool out_int32,
                               bool right, Side side, const std::optional<at::Tensor>& sorter) {
  return searchsorted_tensor(boundaries, scalar_value(self, boundaries), out_int32, right, side, sorter);
}
at::Tensor& searchsorted_scalar_out(const at::Tensor& boundaries, const c10::Scalar& self, bool out_int32,
                                    bool right, Side side, const std::optional<at::Tensor>& sorter,
                                    at::Tensor& out) {
  return searchsorted_out(boundaries, scalar_value(self, boundaries), out_int32, right, side, sorter, out);
}

at::Tensor& bucketize_out(const at::Tensor& self, const at::Tensor& boundaries, bool out_int32, bool right,
                          at::Tensor& out) {
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(),
              ")");
  return searchsorted_out(boundaries, self, out_int32, right, std::nullopt, std::nullopt, out);
}
at::Tensor bucketize_tensor(const at::Tensor& self, const at::Tensor& boundaries, bool out_int32,
                            bool right) {
  at::Tensor out = at::empty({0}, self.options().dtype(out_int32 ? at::kInt : at::kLong));
  bucketize_out(self, boundaries, out_int32, right, out);
  return out;
}
at::Tensor bucketize_scalar(const c10::Scalar& self, const at::Tensor& boundaries, bool out_int32,
                            bool right) {
  return bucketize_tensor(scalar_value(self, boundaries), boundaries, out_int32, right);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("searchsorted.Tensor", searchsorted_tensor);
  m.impl("searchsorted.Tensor_out", searchsorted_out);
  m.impl("searchsorted.Scalar", searchsorted_scalar);
  m.impl("searchsorted.Scalar_out", searchsorted_scalar_out);
  m.impl("bucketize.Tensor", bucketize_tensor);
  m.impl("bucketize.Tensor_out", bucketize_out);
  m.impl("bucketize.Scalar", bucketize_scalar);
}

}  // namespace dlb
