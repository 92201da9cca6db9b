// linalg_lstsq with the CPU's drivers: "gels" solves with QR factors, the others with singular values.
#include <ATen/ExpandUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/_linalg_svd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "ops/linalg/matrix.h"

namespace dlb::linalg {
namespace {

constexpr const char* kName = "torch.linalg.lstsq: ";

// The results that a driver gives.
struct Driver {
  bool gels, values, residuals;
};

Driver driver_of(const std::optional<c10::string_view>& given) {
  const std::string name(given.value_or("gelsy"));
  TORCH_CHECK(name == "gels" || name == "gelsy" || name == "gelsd" || name == "gelss", kName,
              "parameter `driver` should be one of (gels, gelsy, gelsd, gelss)");
  return {name == "gels", name == "gelsd" || name == "gelss", name != "gelsy"};
}

// Whether b holds a vector for each matrix of a.
bool is_vector(const Tensor& a, const Tensor& b) {
  return b.dim() == 1 || (a.dim() - 1 == b.dim() && b.sizes() == a.sizes().slice(0, a.dim() - 1));
}

void check_inputs(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.dim() >= 2, kName, "input must have at least 2 dimensions.");
  TORCH_CHECK(b.dim() >= 1, kName, "other must have at least 1 dimension.");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), kName,
              "Expected input and other to have the same dtype, but got input's dtype ", a.scalar_type(),
              " and other's dtype ", b.scalar_type());
  const int64_t difference = a.dim() - b.dim();
  TORCH_CHECK(difference >= 0 && difference <= 1, kName,
              "input.dim() must be greater or equal to other.dim() and ", "(input.dim() - other.dim()) <= 1");
  const bool vector = is_vector(a, b);
  TORCH_CHECK(a.size(-2) == b.size(vector ? -1 : -2), kName, "input.size(-2) should match other.size(",
              vector ? "-1" : "-2", ")");
  TORCH_CHECK(a.device() == b.device(), kName,
              "Expected input and other to be on the same device, but found ", "input on ", a.device(),
              " and other on ", b.device(), " instead.");
}

// Assigns a result to an out= tensor.
void give(const char* name, Tensor& out, const Tensor& result) {
  TORCH_CHECK(out.scalar_type() == result.scalar_type(), kName, "Expected ", name, " to have dtype ",
              result.scalar_type(), ", but got ", out.scalar_type());
  TORCH_CHECK(out.device() == result.device(), kName, "Expected ", name, " to be on ", result.device(),
              ", but it is on ", out.device());
  at::native::resize_output(out, result.sizes());
  out.copy_(result);
}

// The solution of full rank, of least norm for wide matrices. Raises where R has a zero on its diagonal.
Tensor solve_full_rank(const Tensor& a, const Tensor& b) {
  const bool wide = a.size(-2) < a.size(-1);
  const auto [q, r] = at::linalg_qr(wide ? a.mH() : a, "reduced");
  const Tensor zero = r.diagonal(0, -2, -1).eq(0);
  const Tensor info = at::where(zero.any(-1), zero.to(at::kInt).argmax(-1).add(1), 0).to(at::kInt);
  at::_linalg_check_errors(info, "torch.linalg.lstsq", /*is_matrix=*/info.numel() <= 1);
  return wide ? at::matmul(q, at::linalg_solve_triangular(r.mH(), b, /*upper=*/false))
              : at::linalg_solve_triangular(r, at::matmul(q.mH(), b), /*upper=*/true);
}

struct ByValues {
  Tensor solution, rank, values;
};
// The solution of least norm, with singular values of at most rcond times the largest taken for zeros.
ByValues solve_by_values(const Tensor& a, const Tensor& b, double rcond) {
  const auto [u, s, vh] = at::_linalg_svd(a, /*full_matrices=*/false, /*compute_uv=*/true);
  const Tensor kept = s.gt(s.narrow(-1, 0, 1).mul(rcond));
  const Tensor inverse = at::where(kept, s.reciprocal(), 0).unsqueeze(-1);
  const Tensor along = at::matmul(u.mH(), b);
  return {at::matmul(vh.mH(), along.mul(inverse)), kept.sum(at::IntArrayRef{-1}), s};
}

double default_rcond(const Tensor& a) {
  const double epsilon = c10::toRealValueType(a.scalar_type()) == at::kDouble
                             ? std::numeric_limits<double>::epsilon()
                             : std::numeric_limits<float>::epsilon();
  return epsilon * static_cast<double>(std::max(a.size(-2), a.size(-1)));
}

std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> lstsq_out(const Tensor& a, const Tensor& b_,
                                                         std::optional<double> rcond,
                                                         std::optional<c10::string_view> driver_name,
                                                         Tensor& solution, Tensor& residuals, Tensor& rank,
                                                         Tensor& singular_values) {
  check_inputs(a, b_);
  const Driver driver = driver_of(driver_name);
  const Place place(a, "linalg.lstsq");
  const bool vector = is_vector(a, b_);
  const Tensor b = vector ? b_.unsqueeze(-1) : b_;
  const auto real = a.options().dtype(c10::toRealValueType(a.scalar_type()));
  const int64_t m = a.size(-2), n = a.size(-1);
  const at::IntArrayRef batch = a.sizes().slice(0, a.dim() - 2);
  auto shape = at::infer_size(batch, b.sizes().slice(0, b.dim() - 2));
  shape.insert(shape.end(), {n, b.size(-1)});

  ByValues found;
  if (a.numel() == 0 || b.numel() == 0) {
    auto values = batch.vec();
    found.rank = at::zeros(values, a.options().dtype(at::kLong));
    values.push_back(std::min(m, n));
    found = {at::zeros(shape, a.options()), found.rank, at::zeros(values, real)};
  } else if (driver.gels) {
    found.solution = solve_full_rank(a, b);
  } else {
    found = solve_by_values(a, b, rcond.value_or(default_rcond(a)));
  }
  Tensor left = at::empty({0}, real);
  const bool all_found = driver.residuals && m > n && (driver.gels || found.rank.eq(n).all().item<bool>());
  if (all_found) left = at::matmul(a, found.solution).sub(b).abs().square().sum(at::IntArrayRef{-2});
  const Tensor none = at::empty({0}, real);
  give("solution", solution, vector ? found.solution.squeeze(-1) : found.solution);
  give("residuals", residuals, left);
  give("rank", rank, driver.gels ? at::empty({0}, a.options().dtype(at::kLong)) : found.rank);
  give("singular_values", singular_values, driver.values ? found.values : none);
  return {solution, residuals, rank, singular_values};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("linalg_lstsq.out", lstsq_out);
}

}  // namespace dlb::linalg
