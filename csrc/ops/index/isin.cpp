// isin: by comparing where the test elements are few, else by a search in them, sorted.
#include <ATen/TensorOperators.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/isin_meta.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sort.h>

#include "ops/common/structured.h"
#include "ops/index/access.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

// Up to here comparing with all is faster than sorting and searching.
constexpr int64_t kFewTests = 24;

void find_in(const at::Tensor& elements, const at::Tensor& tests, bool invert, const at::Tensor& out) {
  if (out.numel() == 0) return;
  if (tests.numel() == 0) {
    out.fill_(invert);
    return;
  }
  TORCH_CHECK(tests.numel() < (int64_t{1} << 31), "isin with 2^31 or more test elements is not supported");
  const at::ScalarType common = at::result_type(elements, tests);
  const auto type = dtype_of(common, "isin");
  const at::Tensor from = elements.to(common).contiguous();
  at::Tensor sought = tests.to(common).contiguous().view({-1});
  const bool few = sought.numel() <= kFewTests;
  if (!few) sought = std::get<0>(at::sort(sought, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  Stream& stream = current_stream(out.device().index());
  check_device_supports(stream.device(), type, "isin");
  const auto count = static_cast<uint64_t>(from.numel());
  const Split split = split_work(stream.device(), count, few ? 8192 : 1024);
  const Buffer in = buffer_of(from), test = buffer_of(sought), to = buffer_of(out);
  fetch_kernel(stream.device(), "index/isin.cl", few ? "dlb_isin_compared" : "dlb_isin_sorted",
               codegen::compute_type(type), {type})
      .launch(stream.queue(), split.range, in.mem, in.offset, test.mem, test.offset, to.mem, to.offset, count,
              split.per_item, static_cast<uint32_t>(sought.numel()), static_cast<int32_t>(invert));
}

at::Tensor& isin_tensor_tensor(const at::Tensor& elements, const at::Tensor& tests, bool assume_unique,
                               bool invert, at::Tensor& out) {
  OutOp<at::meta::structured_isin_Tensor_Tensor> op(out);
  op.meta(elements, tests, assume_unique, invert);
  check_same_device(elements, out, "isin");
  if (tests.dim() > 0) check_same_device(elements, tests, "isin");
  const c10::DeviceGuard guard(out.device());
  find_in(elements, tests.to(elements.device()), invert, op.result());
  op.finish();
  return out;
}

at::Tensor& isin_tensor_scalar(const at::Tensor& elements, const c10::Scalar& test, bool assume_unique,
                               bool invert, at::Tensor& out) {
  OutOp<at::meta::structured_isin_Tensor_Scalar> op(out);
  op.meta(elements, test, assume_unique, invert);
  const c10::DeviceGuard guard(elements.device());
  return invert ? at::ne_out(out, elements, test) : at::eq_out(out, elements, test);
}

at::Tensor& isin_scalar_tensor(const c10::Scalar& element, const at::Tensor& tests, bool assume_unique,
                               bool invert, at::Tensor& out) {
  OutOp<at::meta::structured_isin_Scalar_Tensor> op(out);
  op.meta(element, tests, assume_unique, invert);
  at::native::resize_output(out, {});  // meta leaves the shape to the kernel
  const c10::DeviceGuard guard(tests.device());
  at::Tensor wrapped = at::scalar_tensor(element, tests.options().dtype(element.type()));
  wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
  find_in(wrapped, tests, invert, out);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("isin.Tensor_Tensor_out", isin_tensor_tensor);
  m.impl("isin.Tensor_Scalar_out", isin_tensor_scalar);
  m.impl("isin.Scalar_Tensor_out", isin_scalar_tensor);
}

}  // namespace dlb
