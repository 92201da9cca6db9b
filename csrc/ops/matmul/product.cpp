// Tensors to a GEMM problem: sizes and strides as they are, so that nothing is made contiguous on the way.
#include "ops/matmul/product.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstdlib>

#include "ops/common/then.h"
#include "primitives/common/factor.h"
#include "primitives/gemm/problem.h"
#include "runtime/element.h"
#include "runtime/tensor.h"
#include "solver/execute.h"

namespace dlb {
namespace {

solver::Factor factor_of(const c10::Scalar& value, c10::ScalarType type) {
  solver::Factor factor;
  if (c10::isIntegralType(type, false)) {
    factor.integer = value.toLong();
  } else if (c10::isComplexType(type)) {
    const auto complex = value.toComplexDouble();
    factor.re = complex.real(), factor.im = complex.imag();
  } else {
    factor.re = value.toDouble();
  }
  return factor;
}

void set_strides(int64_t (&to)[3], at::IntArrayRef strides) {
  const bool batched = strides.size() == 3;
  to[0] = batched ? strides[0] : 0;
  to[1] = strides[batched], to[2] = strides[batched + 1];
}

// A matrix as [slow, fast] by its strides, and how many of them there are.
struct Window {
  int64_t fast, slow, fast_size, slow_size, batch, batch_stride;
  explicit Window(const at::Tensor& t) {
    const bool turned = t.stride(-1) > t.stride(-2);
    fast = t.stride(turned ? -2 : -1), fast_size = t.size(turned ? -2 : -1);
    slow = t.stride(turned ? -1 : -2), slow_size = t.size(turned ? -1 : -2);
    batch = t.dim() == 3 ? t.size(0) : 1, batch_stride = t.dim() == 3 ? t.stride(0) : 0;
  }
  int64_t extent() const { return fast * (fast_size - 1) + slow * (slow_size - 1) + 1; }
};

// Whether two windows of one larger matrix, or of matrices of one batch, share no element. False where that
// is not clear.
bool are_apart(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return true;
  const Window x(a), y(b);
  if (x.fast != y.fast || x.slow != y.slow || x.fast < 1 || x.slow % x.fast != 0) return false;
  const int64_t distance = b.storage_offset() - a.storage_offset();
  if (distance % x.fast != 0) return false;
  if (x.batch > 1 || y.batch > 1) {
    const bool within = x.batch_stride >= std::abs(distance) + std::max(x.extent(), y.extent());
    if (x.batch != y.batch || x.batch_stride != y.batch_stride || !within) return false;
  }
  // Elements (i, j) of a and (k, l) of b are one where i - k + (j - l) * pitch is the distance.
  const int64_t pitch = x.slow / x.fast, places = distance / x.fast;
  const int64_t least = 1 - y.fast_size;  // of i - k, which is below x.fast_size
  for (int64_t across = least + ((places - least) % pitch + pitch) % pitch; across < x.fast_size;
       across += pitch) {
    const int64_t along = (places - across) / pitch;
    if (along > -y.slow_size && along < x.slow_size) return false;
  }
  return true;
}

// Whether writing `out` would change an operand that is still to be read.
bool clobbers(const at::Tensor& out, const at::Tensor& operand) {
  return out.is_alias_of(operand) && at::get_overlap_status(out, operand) != at::MemOverlapStatus::No &&
         !are_apart(out, operand);
}

bool is_zero(const c10::Scalar& value) {
  return value.isComplex() ? value.toComplexDouble() == c10::complex<double>(0) : value.toDouble() == 0;
}

// Runs a product, with the rows behind it in the same launch where a solver does that.
void run_product(const solver::GemmProblem& p, solver::GemmOperands& o, const at::Tensor& out,
                 const Then* then) {
  Stream& stream = current_stream(out.device().index());
  if (!then) return solver::run(p, o, stream);
  solver::GemmProblem fused = p;
  fused.epilogue = then->epilogue();
  then->set_operands(o);
  const auto bytes = [&] { return then->bytes(out); };
  then->run(
      out, [&] { return solver::run_with_rows(fused, p, bytes, o, stream); },
      [&](const at::Tensor& product) {
        const bool d_is_c = o.d.mem == o.c.mem && o.d.offset == o.c.offset;
        o.c = buffer_of(product);
        if (d_is_c) o.d = o.c;
        solver::run(p, o, stream);
      });
}

}  // namespace

void product_into(const char* op, const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                  const at::Tensor& add, const c10::Scalar& beta, const c10::Scalar& alpha,
                  const Then* then) {
  const auto type = then ? then->computes : out.scalar_type();
  check_device_supports(device_of(out.device().index()), dtype_of(type, op), op);
  TORCH_CHECK_NOT_IMPLEMENTED(has_arithmetic(type), "\"", op, "\" not implemented for '", c10::toString(type),
                              "'");
  if (out.numel() == 0) return;
  const bool adds = add.defined() && !is_zero(beta);
  if (a.is_conj() || a.is_neg())
    return product_into(op, out, a.resolve_conj().resolve_neg(), b, add, beta, alpha, then);
  if (b.is_conj() || b.is_neg())
    return product_into(op, out, a, b.resolve_conj().resolve_neg(), add, beta, alpha, then);
  if (adds && !add.is_same(out) && (add.is_conj() || add.is_neg()))
    return product_into(op, out, a, b, add.resolve_conj().resolve_neg(), beta, alpha, then);
  const bool same_memory = adds && add.is_alias_of(out) && add.data_ptr() == out.data_ptr() &&
                           add.sizes() == out.sizes() && add.strides() == out.strides();
  if (out.is_conj() || out.is_neg() || clobbers(out, a) || clobbers(out, b) ||
      (adds && !same_memory && clobbers(out, add))) {
    const at::Tensor result = at::empty(out.sizes(), out.options());
    product_into(op, result, a, b, add, beta, alpha, then);
    out.copy_(result);
    return;
  }
  at::assert_no_internal_overlap(out);

  const bool batched = out.dim() == 3;
  solver::GemmProblem p = solver::gemm_op.make();
  p.dtype = type, p.device = static_cast<int8_t>(out.device().index());
  p.batch = batched ? out.size(0) : 1, p.m = out.size(batched), p.n = out.size(batched + 1);
  p.k = is_zero(alpha) ? 0 : a.size(batched + 1);  // as BLAS: a zero factor does not read the product
  for (const auto& [operand, other] : {std::pair(&a, &p.a_dtype), std::pair(&b, &p.b_dtype)})
    if (operand->scalar_type() != type) *other = solver::OperandDtype(operand->scalar_type());
  set_strides(p.a, a.strides()), set_strides(p.b, b.strides()), set_strides(p.c, out.strides());
  p.has_d = adds;
  if (adds)
    set_strides(p.d, at::inferExpandGeometry_dimvector(add.sizes(), add.strides(), out.sizes()).strides);
  p.normalize();
  const cl::Device& device = device_of(out.device().index());
  solver::allow_tf32(p, device);
  // Numbers of float8 are ones of TF32.
  if (p.a_dtype.is_float8() && p.b_dtype.is_float8() && device.tensor_cores != cl::TensorCores::kNone)
    p.tf32 = type == c10::ScalarType::Float;

  solver::GemmOperands o;
  o.c = buffer_of(out);
  o.a = a.numel() ? buffer_of(a) : o.c;
  o.b = b.numel() ? buffer_of(b) : o.c;
  o.d = adds ? buffer_of(add) : o.c;
  o.alpha = factor_of(alpha, type);
  o.beta = adds ? factor_of(beta, type) : solver::Factor{0, 0, 0};
  run_product(p, o, out, then);
}

void product_of_groups_into(const char* op, const at::Tensor& out, const at::Tensor& a,
                            const at::Tensor& pairs, int64_t group, const at::Tensor& parameters,
                            const Then* then) {
  constexpr int64_t kUnit = 16;  // bytes that kernels may read at once
  check_device_supports(device_of(out.device().index()), dtype_of(out.scalar_type(), op), op);
  if (out.numel() == 0) return;
  if (!pairs.is_contiguous() || pairs.storage_offset() % kUnit != 0)
    return product_of_groups_into(op, out, a, pairs.clone(at::MemoryFormat::Contiguous), group, parameters,
                                  then);
  solver::GemmProblem p = solver::gemm_op.make();
  p.dtype = out.scalar_type(), p.device = static_cast<int8_t>(out.device().index());
  p.m = out.size(0), p.n = out.size(1), p.k = a.size(1);
  set_strides(p.a, a.strides()), set_strides(p.c, out.strides());
  p.b[1] = 1, p.b[2] = p.k;
  p.b_dtype = solver::OperandDtype(c10::ScalarType::UInt4);
  p.group = static_cast<int32_t>(group), p.group_pitch = 2 * p.n;
  p.normalize();
  solver::allow_tf32(p, device_of(out.device().index()));

  const at::Tensor dense = parameters.contiguous();
  solver::GemmOperands o;
  o.a = buffer_of(a), o.b = buffer_of(pairs), o.groups = buffer_of(dense);
  o.c = o.d = buffer_of(out);
  o.alpha = factor_of(1, p.dtype);
  run_product(p, o, out, then);
}

}  // namespace dlb
