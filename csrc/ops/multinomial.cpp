// Draws from rows of probabilities. Nothing waits for the device: kernels report what is no probability at
// the next call that does.
#include <ATen/native/Resize.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exponential.h>
#include <ATen/ops/max.h>
#include <ATen/ops/multinomial_native.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/uniform.h>
#include <torch/library.h>

#include "ops/pointwise/rows.h"

namespace dlb {
namespace {

using Gen = std::optional<at::Generator>;

constexpr const char* kNoProbability = "probability tensor contains either `inf`, `nan` or element < 0";
constexpr codegen::PointwiseOp kProbability{.name = "multinomial",
                                            .on_float = "bad = !(x0 >= 0 && x0 < INFINITY); y0 = x0;",
                                            .error = kNoProbability};
constexpr codegen::PointwiseOp kRace{.name = "multinomial_race",
                                     .on_float = "bad = !(x0 >= 0 && x0 < INFINITY); y0 = x0 / x1;",
                                     .error = kNoProbability};
constexpr codegen::PointwiseOp kTotalProbability{
    .name = "multinomial_total",
    .on_float = "bad = !(x0 > 0); y0 = x0;",
    .error = "invalid multinomial distribution (sum of probabilities <= 0)"};

at::Tensor checked(const codegen::PointwiseOp& check, const at::Tensor& values) {
  at::Tensor same;
  return run_or_raise(check, same, {&values});
}

const codegen::RegisterOps kMultinomialOps(codegen::RowKind::Pointwise,
                                           {{kProbability, "multinomial multinomial.out", "fixed"},
                                            {kRace, "multinomial multinomial.out", "common"},
                                            {kTotalProbability, "multinomial multinomial.out", "fixed"}});

void check_draws(const at::Tensor& self, int64_t samples, bool replacement, const at::Tensor& result) {
  TORCH_CHECK(result.device() == self.device(), "multinomial arguments must have the same device");
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(at::isFloatingType(self.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(result.scalar_type() == at::kLong,
              "multinomial expects Long tensor out, got: ", result.scalar_type());
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  const int64_t categories = self.size(-1);
  TORCH_CHECK(replacement || samples <= categories,
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(categories <= int64_t{1} << 24, "number of categories cannot exceed 2^24");
}

// Draws without replacement are the places of the largest p / e, with e drawn from Exp(1) (Efraimidis and
// Spirakis, "Weighted random sampling with a reservoir"). PyTorch's own code waits for the device twice, to
// look for what is no probability; here the kernels report that.
at::Tensor& multinomial_out(const at::Tensor& self, int64_t samples, bool replacement, Gen generator,
                            at::Tensor& result) {
  if (replacement && samples != 1)
    return at::native::multinomial_out(self, samples, replacement, std::move(generator), result);
  check_draws(self, samples, replacement, result);
  at::DimVector sizes(self.sizes());
  sizes.back() = samples;
  at::native::resize_output(result, sizes);
  if (result.numel() == 0) return result;
  const c10::DeviceGuard guard(self.device());
  const auto type = self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor keys = at::empty(self.sizes(), self.options().dtype(type));
  keys.exponential_(1, std::move(generator));
  run_or_raise(kRace, keys, {&self, &keys});
  at::Tensor largest = at::empty(sizes, keys.options());
  if (samples == 1)
    at::max_out(largest, result, keys, /*dim=*/-1, /*keepdim=*/true);
  else
    at::topk_out(largest, result, keys, samples);
  checked(kTotalProbability, largest.narrow(-1, 0, 1));
  return result;
}

at::Tensor multinomial(const at::Tensor& self, int64_t samples, bool replacement, Gen generator) {
  at::Tensor result = at::empty({0}, self.options().dtype(at::kLong));
  return multinomial_out(self, samples, replacement, std::move(generator), result);
}

}  // namespace

// Several draws with replacement, by the inverse of the cumulative distribution: where a uniform number times
// the total falls.
void multinomial_with_replacement(at::Tensor& result, const at::Tensor& self, const int64_t samples,
                                  Gen generator) {
  const at::ScalarType type = self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor rows = self.dim() == 1 ? self.unsqueeze(0) : self;
  const at::Tensor cumulative = at::cumsum(checked(kProbability, rows), 1, type);
  const at::Tensor total = checked(kTotalProbability, cumulative.narrow(1, cumulative.size(1) - 1, 1));
  at::Tensor u = at::empty({rows.size(0), samples}, cumulative.options());
  u.uniform_(0, 1, std::move(generator));
  const at::Tensor found = at::searchsorted(cumulative, u.mul_(total), /*out_int32=*/false, /*right=*/true)
                               .clamp_max_(cumulative.size(1) - 1);
  result.copy_(self.dim() == 1 ? found.squeeze(0) : found);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("multinomial", multinomial);
  m.impl("multinomial.out", multinomial_out);
}

}  // namespace dlb

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(multinomial_with_replacement_stub, &dlb::multinomial_with_replacement)
}
