// Matrix products: mm, addmm, bmm, baddbmm, addbmm, addmv, addr, dot, vdot. Everything else (matmul, linear,
// einsum, mv) reaches these.
#include <ATen/core/op_registration/adaption.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/addbmm_native.h>
#include <ATen/ops/addmm_meta.h>
#include <ATen/ops/addmv_meta.h>
#include <ATen/ops/addr_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/baddbmm_meta.h>
#include <ATen/ops/bmm_meta.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm_meta.h>
#include <ATen/ops/relu.h>
#include <torch/library.h>

#include "ops/common/structured.h"
#include "ops/common/then.h"
#include "ops/matmul/product.h"
#include "ops/pointwise/rows.h"

namespace dlb {
namespace {

using at::Scalar;
using at::Tensor;

void check_operands(const char* op, std::initializer_list<std::reference_wrapper<const Tensor>> tensors) {
  std::optional<c10::Device> device;
  const auto type = tensors.begin()->get().scalar_type();
  for (const Tensor& tensor : tensors) {
    c10::impl::check_and_update_common_device(device, tensor, op, "operand");
    TORCH_CHECK(tensor.scalar_type() == type, op,
                ": expected operands and result to have the same dtype, but got: ", type,
                " != ", tensor.scalar_type());
  }
}

// Products read what they add while they write; the CPU copies it to the result first, which refuses the
// same.
void check_addend(const Tensor& out, const Tensor& self, const Scalar& beta) {
  if (self.sizes() == out.sizes() && beta.toComplexDouble() != 0.) at::assert_no_partial_overlap(out, self);
}

// As on the CPU, whose matrix products take them in the type that they compute in.
void check_factors(const Tensor& out, const Scalar& beta, const Scalar& alpha) {
  check_scalar_fits_compute(beta, out.scalar_type());
  check_scalar_fits_compute(alpha, out.scalar_type());
}

Tensor& mm_out(const Tensor& self, const Tensor& mat2, Tensor& out) {
  check_operands("mm", {out, self, mat2});
  OutOp<at::meta::structured_mm>(out).meta(self, mat2);
  product_into("mm", out, self, mat2, Tensor(), 0, 1);
  return out;
}

Tensor mm(const Tensor& self, const Tensor& mat2) {
  NewOp<at::meta::structured_mm> op;
  op.meta(self, mat2);
  check_operands("mm", {self, mat2});
  product_into("mm", op[0], self, mat2, Tensor(), 0, 1);
  return std::move(op[0]);
}

Tensor& addmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  check_operands("addmm", {out, self, mat1, mat2});
  OutOp<at::meta::structured_addmm>(out).meta(self, mat1, mat2, beta, alpha);
  check_addend(out, self, beta);
  check_factors(out, beta, alpha);
  product_into("addmm", out, mat1, mat2, self, beta, alpha);
  return out;
}

Tensor addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
             const Scalar& alpha) {
  NewOp<at::meta::structured_addmm> op;
  op.meta(self, mat1, mat2, beta, alpha);
  check_operands("addmm", {self, mat1, mat2});
  check_factors(op[0], beta, alpha);
  product_into("addmm", op[0], mat1, mat2, self, beta, alpha);
  return std::move(op[0]);
}

// addmm, then relu or gelu: what the fused encoder layer's first product is.
Tensor& addmm_activation_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                             const Scalar& alpha, bool use_gelu, Tensor& out) {
  check_operands("_addmm_activation", {out, self, mat1, mat2});
  OutOp<at::meta::structured_addmm>(out).meta(self, mat1, mat2, beta, alpha);
  check_addend(out, self, beta);
  check_factors(out, beta, alpha);
  if (!at::isFloatingType(out.scalar_type())) {
    product_into("_addmm_activation", out, mat1, mat2, self, beta, alpha);
    return use_gelu ? at::gelu_(out) : at::relu_(out);
  }
  static const FusedRows kGelu("y0 = gelu.T(x0)"), kRelu("y0 = relu.T(x0)");
  const Then then((use_gelu ? kGelu : kRelu).of(out.scalar_type()), {}, out, 1, 0);
  product_into("_addmm_activation", out, mat1, mat2, self, beta, alpha, &then);
  return out;
}

bool is_narrow(c10::ScalarType type) {
  return type == at::kChar || type == at::kByte || type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2;
}

// The rows of `text` behind alpha * a @ b + beta * add: of addmm() for matrices, of baddbmm() for batches.
std::vector<Tensor> product_rows(std::string text, const Tensor& a, const Tensor& b,
                                 const std::optional<Tensor>& add, const Scalar& beta, const Scalar& alpha,
                                 at::TensorList extras) {
  const Tensor addend = add.value_or(Tensor());
  TORCH_CHECK((a.dim() == 2 || a.dim() == 3) && b.dim() == a.dim() && a.size(-1) == b.size(-2) &&
                  (a.dim() == 2 || a.size(0) == b.size(0)),
              "product_rows: expected matrices or batches of them that can be multiplied, but got ",
              a.sizes(), " and ", b.sizes());
  // Of operands of 8 bits the other says what is computed in; of two of them int32 or, of float8, float32.
  const bool narrow_a = is_narrow(a.scalar_type()), narrow_b = is_narrow(b.scalar_type());
  TORCH_CHECK(a.scalar_type() == b.scalar_type() || narrow_a || narrow_b,
              "product_rows: expected operands of one dtype, or one of int8 or uint8, but got ",
              a.scalar_type(), " and ", b.scalar_type());
  const Tensor& like = narrow_a ? b : a;
  const c10::ScalarType computes = !narrow_a || !narrow_b                          ? like.scalar_type()
                                   : at::isIntegralType(like.scalar_type(), false) ? at::kInt
                                                                                   : at::kFloat;
  TORCH_CHECK(at::isFloatingType(computes) ||
                  !(at::isFloatingType(a.scalar_type()) || at::isFloatingType(b.scalar_type())),
              "product_rows: float8 is multiplied with floating point, but got ", a.scalar_type(), " and ",
              b.scalar_type());
  std::optional<c10::Device> device = like.device();
  for (const Tensor* tensor : {&a, &b, &addend})
    if (tensor->defined())
      c10::impl::check_and_update_common_device(device, *tensor, "product_rows", "operand");
  TORCH_CHECK(!addend.defined() || addend.scalar_type() == computes,
              "product_rows: expected what is added to be of ", computes, ", but it is of ",
              addend.scalar_type());
  at::DimVector sizes(a.sizes().begin(), a.sizes().end() - 1);
  sizes.push_back(b.size(-1));
  const FusedOp& op = fused_op_of(text);
  const Tensor out = at::empty(sizes, like.options().dtype(first_dtype(op, computes, extras)));
  check_scalar_fits_compute(beta, computes), check_scalar_fits_compute(alpha, computes);
  const Then then(op, extras, out, out.dim() - 1, out.dim() - 2, computes);
  if (!out.is_meta()) product_into("product_rows", out, a, b, addend, beta, alpha, &then);
  return then.with(out);
}

Tensor& bmm_out(const Tensor& self, const Tensor& mat2, Tensor& out) {
  check_operands("bmm", {out, self, mat2});
  OutOp<at::meta::structured_bmm>(out).meta(self, mat2);
  product_into("bmm", out, self, mat2, Tensor(), 0, 1);
  return out;
}

Tensor bmm(const Tensor& self, const Tensor& mat2) {
  NewOp<at::meta::structured_bmm> op;
  op.meta(self, mat2);
  check_operands("bmm", {self, mat2});
  product_into("bmm", op[0], self, mat2, Tensor(), 0, 1);
  return std::move(op[0]);
}

Tensor& baddbmm_out(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta,
                    const Scalar& alpha, Tensor& out) {
  check_operands("baddbmm", {out, self, batch1, batch2});
  OutOp<at::meta::structured_baddbmm>(out).meta(self, batch1, batch2, beta, alpha);
  check_addend(out, self, beta);
  check_factors(out, beta, alpha);
  product_into("baddbmm", out, batch1, batch2, self, beta, alpha);
  return out;
}

Tensor baddbmm(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta,
               const Scalar& alpha) {
  NewOp<at::meta::structured_baddbmm> op;
  op.meta(self, batch1, batch2, beta, alpha);
  check_operands("baddbmm", {self, batch1, batch2});
  check_factors(op[0], beta, alpha);
  product_into("baddbmm", op[0], batch1, batch2, self, beta, alpha);
  return std::move(op[0]);
}

Tensor& addmv_out(const Tensor& self, const Tensor& mat, const Tensor& vec, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  check_operands("addmv", {out, self, mat, vec});
  OutOp<at::meta::structured_addmv>(out).meta(self, mat, vec, beta, alpha);
  check_addend(out, self, beta);
  check_scalar_fits(beta, out.scalar_type());
  check_scalar_fits(alpha, out.scalar_type());
  const Tensor column = out.unsqueeze(1);
  const Tensor add = self.is_same(out) ? column : self.dim() == 1 ? self.unsqueeze(1) : self;
  product_into("addmv", column, mat, vec.unsqueeze(1), add, beta, alpha);
  return out;
}

Tensor dot_product(const char* op, const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1, "1D tensors expected, but got ", self.dim(), "D and ",
              other.dim(), "D tensors");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(),
              "dot : expected both vectors to have same dtype, but found ", self.scalar_type(), " and ",
              other.scalar_type());
  check_operands(op, {self, other});
  TORCH_CHECK(self.numel() == other.numel(), "inconsistent tensor size, expected tensor [", self.numel(),
              "] and src [", other.numel(), "] to have the same number of elements, but got ", self.numel(),
              " and ", other.numel(), " elements respectively");
  // PyTorch lets these two have zeros without memory, which forward-mode derivatives make.
  if (self._is_zerotensor() || other._is_zerotensor()) return at::_efficientzerotensor({}, self.options());
  const Tensor out = at::empty({}, self.options());
  product_into(op, out.view({1, 1}), self.unsqueeze(0), other.unsqueeze(1), Tensor(), 0, 1);
  return out;
}
Tensor dot(const Tensor& self, const Tensor& other) {
  return dot_product("dot", self, other);
}
Tensor vdot(const Tensor& self, const Tensor& other) {
  return dot_product("vdot", self.is_complex() ? self.conj() : self, other);
}

// Refuses the factors of addr that the CPU refuses; the rest is PyTorch's composition of elementwise ops.
void check_addr_factor(const Scalar& factor, c10::ScalarType dtype, const char* name) {
  TORCH_CHECK(!factor.isBoolean() || dtype == c10::ScalarType::Bool, "Boolean ", name,
              " only supported for Boolean results.");
  TORCH_CHECK(!c10::isIntegralType(dtype, /*includeBool=*/true) || factor.isIntegral(/*includeBool=*/true),
              "For integral input tensors, argument ", name, " must not be a floating point number.");
  check_scalar_fits(factor, dtype);
}

void check_addr(const Tensor& self, const Tensor& vec1, const Tensor& vec2, const Scalar& beta,
                const Scalar& alpha) {
  const c10::ScalarType dtype =
      c10::promoteTypes(self.scalar_type(), c10::promoteTypes(vec1.scalar_type(), vec2.scalar_type()));
  check_addr_factor(beta, dtype, "beta");
  check_addr_factor(alpha, dtype, "alpha");
}

Tensor addr(const Tensor& self, const Tensor& vec1, const Tensor& vec2, const Scalar& beta,
            const Scalar& alpha) {
  check_addr(self, vec1, vec2, beta, alpha);
  return at::compositeexplicitautograd::addr(self, vec1, vec2, beta, alpha);
}

Tensor& addr_out(const Tensor& self, const Tensor& vec1, const Tensor& vec2, const Scalar& beta,
                 const Scalar& alpha, Tensor& out) {
  check_addr(self, vec1, vec2, beta, alpha);
  if (out.is_same(self)) {  // the composite would resize it
    TORCH_CHECK(self.dim() == 2, "2D tensor expected, got ", self.dim(), "D tensor for input");
    TORCH_CHECK(self.size(0) == vec1.numel() && self.size(1) == vec2.numel(),
                "size mismatch, input: ", self.sizes(), ", v1: ", vec1.sizes(), ", v2: ", vec2.sizes());
  }
  return at::compositeexplicitautograd::addr_outf(self, vec1, vec2, beta, alpha, out);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mm", mm);
  m.impl("mm.out", mm_out);
  m.impl("addmm", addmm);
  m.impl("addmm.out", addmm_out);
  m.impl("_addmm_activation.out", addmm_activation_out);
  m.impl("bmm", bmm);
  m.impl("bmm.out", bmm_out);
  m.impl("baddbmm", baddbmm);
  m.impl("baddbmm.out", baddbmm_out);
  m.impl("addmv.out", addmv_out);
  m.impl("addr", addr);
  m.impl("addr.out", addr_out);
  m.impl("dot", dot);
  m.impl("vdot", vdot);
  m.impl("addbmm", at::native::addbmm);
  m.impl("addbmm_", at::native::addbmm_);
  m.impl("addbmm.out", at::native::addbmm_out);
}

TORCH_LIBRARY_FRAGMENT(dlbackend, m) {
  m.def(
      "product_rows(str rows, Tensor a, Tensor b, Tensor? add, Scalar beta, Scalar alpha, Tensor[] extras) "
      "-> "
      "Tensor[]",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(dlbackend, PrivateUse1, m) {
  m.impl("product_rows", product_rows);
}
TORCH_LIBRARY_IMPL(dlbackend, Meta, m) {
  m.impl("product_rows", product_rows);
}

}  // namespace dlb
