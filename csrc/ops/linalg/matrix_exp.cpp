// linalg_matrix_exp: the Taylor polynomial of degree 15 by Paterson and Stockmeyer's scheme, scaling and
// squaring.
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "ops/linalg/matrix.h"

namespace dlb::linalg {
namespace {

// The polynomial is a quartet of quartets, sum over j of a^(4 j) (sum over i of a^i / (4 j + i)!).
constexpr int64_t kQuartet = 4;

// Norms below which the polynomial's relative remainder, about norm^16 / 16!, is less than the type's
// precision.
double largest_norm(at::ScalarType type) {
  return c10::toRealValueType(type) == at::kDouble ? 0.65 : 2.2;
}

Tensor coefficients(const Tensor& like) {
  std::vector<double> values;
  double factorial = 1;
  for (int64_t i = 0; i < kQuartet * kQuartet; ++i) {
    if (i) factorial *= static_cast<double>(i);
    values.push_back(1 / factorial);
  }
  return at::tensor(values).view({kQuartet, kQuartet}).to(like.options());
}

// exp(a) for [batch, n, n] of small norm.
Tensor polynomial(const Tensor& a) {
  const int64_t batch = a.size(0), n = a.size(1);
  const Tensor powers = at::empty({kQuartet, batch, n, n}, a.options());
  powers[0].copy_(at::eye(n, a.options()));
  powers[1].copy_(a);
  set_product(powers[2], powers[1], powers[1]);
  set_product(powers[3], powers[2], powers[1]);
  const Tensor quartets = at::empty_like(powers), fourth = at::empty_like(powers[0]);
  set_product(quartets.view({1, kQuartet, -1}), coefficients(a).unsqueeze(0), powers.view({1, kQuartet, -1}));
  set_product(fourth, powers[2], powers[2]);
  for (int64_t j = kQuartet - 2; j >= 0; --j) add_product(quartets[j], fourth, quartets[j + 1], 1);
  return quartets[0];
}

Tensor exponential(const Tensor& a) {
  // How often each matrix is halved, so that its norm becomes small.
  const Tensor norms = a.abs().sum(at::IntArrayRef{1}).amax(at::IntArrayRef{1});
  const Tensor halvings =
      norms.div(largest_norm(a.scalar_type())).log2().ceil().nan_to_num(0, 1000, 0).clamp(0, 1000);
  const auto most = static_cast<int64_t>(halvings.max().item<double>());
  const Tensor scale = halvings.neg().exp2().view({-1, 1, 1});
  Tensor result = polynomial(most ? a.mul(scale) : a);
  for (int64_t step = 0; step < most; ++step) {
    Tensor square = at::empty_like(result);
    set_product(square, result, result);
    result = a.size(0) == 1 ? square : at::where(halvings.gt(step).view({-1, 1, 1}), square, result);
  }
  return result;
}

Tensor matrix_exp(const Tensor& self) {
  at::native::squareCheckInputs(self, "linalg.matrix_exp");
  at::native::checkFloatingOrComplex(self, "linalg.matrix_exp");
  if (self.numel() == 0) return at::empty_like(self, at::MemoryFormat::Contiguous);
  const auto type = self.scalar_type();
  const bool narrow = type == at::kHalf || type == at::kBFloat16;
  const Tensor a = (narrow ? self.to(at::kFloat) : self).resolve_conj().contiguous();
  const Place place(a, "linalg.matrix_exp");
  const Tensor result = a.size(-1) == 1 ? a.exp() : exponential(collapse(a)).view(self.sizes());
  return narrow ? result.to(type) : result;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("linalg_matrix_exp", matrix_exp);
}

}  // namespace dlb::linalg
