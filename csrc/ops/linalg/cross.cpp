// linalg_cross: the three components in one launch.
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_cross_meta.h>
#include <torch/library.h>

#include "ops/common/pointwise.h"
#include "ops/common/structured.h"

namespace dlb {
namespace {

using at::Tensor;

constexpr codegen::PointwiseOp kCross{
    .name = "linalg_cross",
    .on_float = "y0 = x1 * x5 - x2 * x4; y1 = x2 * x3 - x0 * x5; y2 = x0 * x4 - x1 * x3;",
    .on_int = "y0 = x1 * x5 - x2 * x4; y1 = x2 * x3 - x0 * x5; y2 = x0 * x4 - x1 * x3;",
    .on_complex =
        "y0 = dlb_cmul(x1, x5) - dlb_cmul(x2, x4); y1 = dlb_cmul(x2, x3) - dlb_cmul(x0, x5);"
        " y2 = dlb_cmul(x0, x4) - dlb_cmul(x1, x3);"};
const codegen::RegisterOps kCrossOps(codegen::RowKind::Pointwise, {{kCross, "linalg_cross.out", "fixed"}});

Tensor& cross_out(const Tensor& self, const Tensor& other, int64_t dim, Tensor& out) {
  OutOp<at::meta::structured_linalg_cross> op(out);
  op.meta(self, other, dim);
  dim = at::maybe_wrap_dim(dim, out.dim());
  if (out.numel() == 0) return out;
  // Elements are read before those at the same places are written, but not all components before one is.
  const bool shared = out.is_alias_of(self) || out.is_alias_of(other);
  const Tensor result = shared ? at::empty_like(out) : out;
  const Tensor a = self.expand(out.sizes()), b = other.expand(out.sizes());
  at::TensorIteratorConfig config;
  for (int64_t i = 0; i < 3; ++i) config.add_owned_output(result.select(dim, i));
  for (int64_t i = 0; i < 3; ++i) config.add_owned_const_input(a.select(dim, i));
  for (int64_t i = 0; i < 3; ++i) config.add_owned_const_input(b.select(dim, i));
  auto iter = config.set_check_mem_overlap(false).resize_outputs(false).build();
  run_pointwise(kCross, iter);
  if (shared) out.copy_(result);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("linalg_cross.out", cross_out);
}

}  // namespace dlb
