// Pointwise ops of three operands, and the choosing ones: where, masked_fill, clamp, lerp, addcmul, addcdiv.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ScalarOps.h>
#include <ATen/ops/addcdiv_meta.h>
#include <ATen/ops/addcmul_meta.h>
#include <ATen/ops/clamp_max_meta.h>
#include <ATen/ops/clamp_meta.h>
#include <ATen/ops/clamp_min_meta.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lerp_meta.h>
#include <ATen/ops/result_type.h>

#include "ops/common/overlap.h"
#include "ops/pointwise/rows.h"
#include "ops/pointwise/structured.h"

namespace dlb {
namespace {

constexpr codegen::PointwiseOp kWhere = {.name = "where",
                                         .on_float = "x0 != 0 ? x1 : x2",
                                         .on_int = "x0 != 0 ? x1 : x2",
                                         .on_bool = "x0 != 0 ? x1 : x2",
                                         .on_complex = "x0.x != 0 ? x1 : x2",
                                         .takes_float8 = true};

// Operands of other dtypes and CPU numbers are converted by the kernel.
at::Tensor& where_out(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other,
                      at::Tensor& out) {
  const c10::ScalarType type = at::result_type(self, other);
  TORCH_CHECK(out.scalar_type() == type, "Expected out type to be ", type, " but got ", out.scalar_type());
  TORCH_CHECK(condition.scalar_type() == at::kBool || condition.scalar_type() == at::kByte,
              "where expected condition to be a boolean tensor, but got a tensor with dtype ",
              condition.scalar_type());
  TORCH_CHECK(condition.dim() == 0 || condition.device() == out.device(),
              "Expected condition, x and y to be on the same device, but condition is on ",
              condition.device(), " and x and y are on ", self.device(), " and ", other.device(),
              " respectively");
  const at::Tensor mask = condition.to(out.device());
  // Kernels take one number of the CPU.
  const bool both_here = self.device().is_cpu() && other.device().is_cpu();
  const at::Tensor first = both_here && self.dim() == 0 ? self.to(out.device()) : self;
  auto iter = at::TensorIteratorConfig()
                  .check_all_same_dtype(false)
                  .allow_cpu_scalars(true)
                  .add_output(out)
                  .add_const_input(mask)
                  .add_const_input(first)
                  .add_const_input(other)
                  .build();
  run_pointwise(kWhere, iter, type);
  return out;
}
at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const at::Tensor& placed = !condition.device().is_cpu() ? condition
                             : !self.device().is_cpu()    ? self
                                                          : other;
  at::Tensor out = at::empty({0}, placed.options().dtype(at::result_type(self, other)));
  return where_out(condition, self, other, out);
}

constexpr codegen::PointwiseOp kMaskedFill = {.name = "masked_fill",
                                              .on_float = "x1 != 0 ? x2 : x0",
                                              .on_int = "x1 != 0 ? x2 : x0",
                                              .on_bool = "x1 != 0 ? x2 : x0",
                                              .on_complex = "x1.x != 0 ? x2 : x0",
                                              .takes_float8 = true};

at::Tensor& masked_fill_tensor(at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0,
              "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ", value.dim(),
              " dimension(s).");
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "masked_fill_ only supports boolean masks, but got mask with dtype ", mask.scalar_type());
  TORCH_CHECK(mask.device() == self.device(),
              "expected self and mask to be on the same device, but got mask on ", mask.device(),
              " and self on ", self.device());
  // A value on the device is waited for only where its dtype has numbers that self's lacks.
  if (value.device().is_cpu() ||
      c10::promoteTypes(value.scalar_type(), self.scalar_type()) != self.scalar_type())
    check_scalar_fits(value.item(), self.scalar_type());
  warn_of_expanded(self, "masked_fill_", "tensor[mask] = scalar");
  at::assert_no_overlap(self, mask);
  const auto expanded = at::expand_inplace(self, mask, "masked_fill_");
  auto iter = at::TensorIteratorConfig()
                  .set_check_mem_overlap(false)
                  .check_all_same_dtype(false)
                  .resize_outputs(false)
                  .allow_cpu_scalars(true)
                  .add_output(self)
                  .add_const_input(self)
                  .add_const_input(*expanded)
                  .add_const_input(value)
                  .build();
  run_pointwise(kMaskedFill, iter, self.scalar_type());
  return self;
}
at::Tensor& masked_fill_scalar(at::Tensor& self, const at::Tensor& mask, const c10::Scalar& value) {
  return masked_fill_tensor(self, mask, at::native::wrapped_scalar_tensor(value));
}

#define DLB_CLAMP_MIN(y, x, s) y " = " x " < " s " || " s " != " s " ? " s " : " x ";"
#define DLB_CLAMP_MAX(y, x, s) y " = " x " > " s " || " s " != " s " ? " s " : " x ";"

// A NaN in any operand gives NaN, and max wins where min > max.
constexpr codegen::PointwiseOp kClamp =
    real_op("clamp", DLB_CLAMP_MIN("const T t", "x0", "s0") DLB_CLAMP_MAX("y0", "t", "s1"), 2);
constexpr codegen::PointwiseOp kClampMin = real_op("clamp_min", DLB_CLAMP_MIN("y0", "x0", "s0"), 1);
constexpr codegen::PointwiseOp kClampMax = real_op("clamp_max", DLB_CLAMP_MAX("y0", "x0", "s0"), 1);
constexpr codegen::PointwiseOp kClampTensor = real_op(
    "clamp_tensor",
    "T t = x0 < x1 || x1 != x1 ? x1 : x0; t = t > x2 || x2 != x2 ? x2 : t; y0 = x0 != x0 ? x0 : x1 != x1 "
    "? x1 : t;");
constexpr codegen::PointwiseOp kMaximum = {.name = "clamp_min_tensor",
                                           .on_float = "x0 > x1 || x0 != x0 ? x0 : x1",
                                           .on_int = "max(x0, x1)",
                                           .on_bool = "x0 | x1"};
constexpr codegen::PointwiseOp kMinimum = {.name = "clamp_max_tensor",
                                           .on_float = "x0 < x1 || x0 != x0 ? x0 : x1",
                                           .on_int = "min(x0, x1)",
                                           .on_bool = "x0 & x1"};

void run_or_refuse(const codegen::PointwiseOp& op, at::TensorIteratorBase& iter, Scalars scalars = {},
                   Check check = check_scalars_fit) {
  const c10::ScalarType type = iter.common_dtype();
  TORCH_CHECK_NOT_IMPLEMENTED(has_body(op, type), "\"", op.name, "\" not implemented for '", type, "'");
  check({}, scalars, type);
  run_pointwise(op, iter, scalars);
}

using MaybeScalar = const std::optional<c10::Scalar>&;
using MaybeTensor = const std::optional<at::Tensor>&;

at::OptionalScalarRef ref(MaybeScalar value) {
  return value ? at::OptionalScalarRef(*value) : at::OptionalScalarRef();
}
at::OptionalTensorRef ref(MaybeTensor value) {
  return value && value->defined() ? at::OptionalTensorRef(*value) : at::OptionalTensorRef();
}

at::Tensor& clamp_out(const at::Tensor& self, MaybeScalar min, MaybeScalar max, at::Tensor& out) {
  Structured<at::meta::structured_clamp> op(out);
  op.meta(self, ref(min), ref(max));
  // The iterator of the meta function computes in the dtype of the result.
  if (min && max)
    run_or_refuse(kClamp, op, {*min, *max});
  else
    run_or_refuse(min ? kClampMin : kClampMax, op, min ? *min : *max);
  return out;
}
at::Tensor& clamp_min_out(const at::Tensor& self, const c10::Scalar& min, at::Tensor& out) {
  Structured<at::meta::structured_clamp_min> op(out);
  op.meta(self, min);
  run_or_refuse(kClampMin, op, min);
  return out;
}
at::Tensor& clamp_max_out(const at::Tensor& self, const c10::Scalar& max, at::Tensor& out) {
  Structured<at::meta::structured_clamp_max> op(out);
  op.meta(self, max);
  run_or_refuse(kClampMax, op, max);
  return out;
}
at::Tensor& clamp_tensor_out(const at::Tensor& self, MaybeTensor min, MaybeTensor max, at::Tensor& out) {
  Structured<at::meta::structured_clamp_Tensor> op(out);
  op.meta(self, ref(min), ref(max));
  run_or_refuse(min && max ? kClampTensor : min ? kMaximum : kMinimum, op);
  return out;
}
at::Tensor& clamp_min_tensor_out(const at::Tensor& self, const at::Tensor& min, at::Tensor& out) {
  Structured<at::meta::structured_clamp_min_Tensor> op(out);
  op.meta(self, min);
  run_or_refuse(kMaximum, op);
  return out;
}
at::Tensor& clamp_max_tensor_out(const at::Tensor& self, const at::Tensor& max, at::Tensor& out) {
  Structured<at::meta::structured_clamp_max_Tensor> op(out);
  op.meta(self, max);
  run_or_refuse(kMinimum, op);
  return out;
}

// The result is reckoned from the nearer end, so that both ends are met exactly.
constexpr codegen::PointwiseOp kLerpScalar = {
    .name = "lerp_scalar",
    .on_float = "fabs(s0) < C(0.5) ? x0 + s0 * (x1 - x0) : x1 - (x1 - x0) * (C(1.0) - s0)",
    .on_complex =
        "const T d = x1 - x0; y0 = dlb_cabs(s0) < (REAL)0.5 ? x0 + dlb_cmul(s0, d) : x1 - dlb_cmul(d, "
        "(T)(1, 0) - s0);",
    .scalars = 1};
constexpr codegen::PointwiseOp kLerpTensor = {
    .name = "lerp_tensor",
    .on_float = "fabs(x2) < C(0.5) ? x0 + x2 * (x1 - x0) : x1 - (x1 - x0) * (C(1.0) - x2)",
    .on_complex =
        "const T d = x1 - x0; y0 = dlb_cabs(x2) < (REAL)0.5 ? x0 + dlb_cmul(x2, d) : x1 - dlb_cmul(d, "
        "(T)(1, 0) - x2);"};

at::Tensor& lerp_scalar_out(const at::Tensor& self, const at::Tensor& end, const c10::Scalar& weight,
                            at::Tensor& out) {
  Structured<at::meta::structured_lerp_Scalar> op(out);
  op.meta(self, end, weight);
  const c10::ScalarType type = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(has_body(kLerpScalar, type), "\"lerp_kernel_scalar\" not implemented for '",
                              type, "'");
  check_scalar_fits_compute(weight, type);
  run_pointwise(kLerpScalar, op, type, weight, /*common=*/true);
  return out;
}
at::Tensor& lerp_tensor_out(const at::Tensor& self, const at::Tensor& end, const at::Tensor& weight,
                            at::Tensor& out) {
  Structured<at::meta::structured_lerp_Tensor> op(out);
  op.meta(self, end, weight);
  const c10::ScalarType type = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(has_body(kLerpTensor, type), "\"lerp_kernel_tensor\" not implemented for '",
                              type, "'");
  run_pointwise(kLerpTensor, op, type, {}, /*common=*/true);
  return out;
}

constexpr codegen::PointwiseOp kAddcmul = {.name = "addcmul",
                                           .on_float = "x0 + s0 * x1 * x2",
                                           .on_int = "x0 + s0 * x1 * x2",
                                           .on_complex = "x0 + dlb_cmul(dlb_cmul(s0, x1), x2)",
                                           .scalars = 1};
constexpr codegen::PointwiseOp kAddcdiv = {.name = "addcdiv",
                                           .on_float = "x0 + s0 * x1 / x2",
                                           .on_complex = "x0 + dlb_cdiv(dlb_cmul(s0, x1), x2)",
                                           .scalars = 1};

at::Tensor& addcmul_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                        const c10::Scalar& value, at::Tensor& out) {
  Structured<at::meta::structured_addcmul> op(out);
  op.meta(self, a, b, value);
  run_or_refuse(kAddcmul, op, value, check_scalars_fit_compute);
  return out;
}
at::Tensor& addcdiv_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                        const c10::Scalar& value, at::Tensor& out) {
  Structured<at::meta::structured_addcdiv> op(out);
  op.meta(self, a, b, value);
  run_or_refuse(kAddcdiv, op, value, check_scalars_fit_compute);
  return out;
}

const codegen::RegisterOps kTernaryOps(codegen::RowKind::Pointwise,
                                       {{kWhere, "where.self where.self_out", "choice"},
                                        {kMaskedFill, "masked_fill_.Scalar masked_fill_.Tensor", "first"},
                                        {kClamp, "clamp.out", "common"},
                                        {kClampMin, "clamp.out clamp_min.out", "common"},
                                        {kClampMax, "clamp.out clamp_max.out", "common"},
                                        {kClampTensor, "clamp.Tensor_out", "common"},
                                        {kMaximum, "clamp.Tensor_out clamp_min.Tensor_out", "common"},
                                        {kMinimum, "clamp.Tensor_out clamp_max.Tensor_out", "common"},
                                        {kLerpScalar, "lerp.Scalar_out", "first"},
                                        {kLerpTensor, "lerp.Tensor_out", "first"},
                                        {kAddcmul, "addcmul.out", "common"},
                                        {kAddcdiv, "addcdiv.out", "common"}});

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("where.self", where);
  m.impl("where.self_out", where_out);
  m.impl("masked_fill_.Scalar", masked_fill_scalar);
  m.impl("masked_fill_.Tensor", masked_fill_tensor);
  m.impl("clamp.out", clamp_out);
  m.impl("clamp_min.out", clamp_min_out);
  m.impl("clamp_max.out", clamp_max_out);
  m.impl("clamp.Tensor_out", clamp_tensor_out);
  m.impl("clamp_min.Tensor_out", clamp_min_tensor_out);
  m.impl("clamp_max.Tensor_out", clamp_max_tensor_out);
  m.impl("lerp.Scalar_out", lerp_scalar_out);
  m.impl("lerp.Tensor_out", lerp_tensor_out);
  m.impl("addcmul.out", addcmul_out);
  m.impl("addcdiv.out", addcdiv_out);
}

}  // namespace dlb
