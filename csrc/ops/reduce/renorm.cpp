// renorm: slices along a dimension whose norm is greater than a limit are scaled down to it.
#include <ATen/AccumulateType.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/renorm_meta.h>

#include "ops/common/pointwise.h"
#include "ops/common/structured.h"

namespace dlb {
namespace {

constexpr codegen::PointwiseOp kFactor{
    .name = "renorm_factor", .on_float = "x0 > s0 ? s0 / (x0 + C(1e-7)) : C(1.0)", .scalars = 1};
const codegen::RegisterOps kRenormOps(codegen::RowKind::Pointwise, {{kFactor, "renorm.out", "fixed"}});

at::Tensor& renorm_out(const at::Tensor& self, const c10::Scalar& p, int64_t dim, const c10::Scalar& limit,
                       at::Tensor& out) {
  OutOp<at::meta::structured_renorm> op(out);
  op.meta(self, p, dim, limit);
  const c10::DeviceGuard guard(self.device());
  dim = at::maybe_wrap_dim(dim, self.dim());
  at::DimVector dims;
  for (int64_t d = 0; d < self.dim(); ++d)
    if (d != dim) dims.push_back(d);
  // Norms of 16-bit numbers are float.
  const bool narrow = at::isReducedFloatingType(self.scalar_type());
  const at::Tensor norm =
      at::linalg_vector_norm(self, p.toDouble(), at::IntArrayRef(dims), /*keepdim=*/true,
                             narrow ? std::optional<at::ScalarType>(at::kFloat) : std::nullopt);
  const at::ScalarType real = c10::toRealValueType(self.scalar_type());
  at::Tensor factor = at::empty(norm.sizes(), norm.options().dtype(real));
  auto iter = at::TensorIteratorConfig()
                  .add_output(factor)
                  .add_const_input(norm)
                  .check_all_same_dtype(false)
                  .resize_outputs(false)
                  .build();
  run_pointwise(kFactor, iter, norm.scalar_type(), c10::Scalar(limit.toDouble()));
  return at::mul_out(out, self, factor);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("renorm.out", renorm_out);
}

}  // namespace dlb
