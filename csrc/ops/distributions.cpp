// Random distributions whose parameters are tensors: gamma, Dirichlet, Poisson, binomial. The numbers come
// from csrc/kernels/random/rejection.cl.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <limits>

#include "primitives/common/split.h"
#include "runtime/device_error.h"
#include "runtime/fetch_kernel.h"
#include "runtime/generator.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using codegen::DType;
using Gen = std::optional<at::Generator>;

constexpr uint32_t kGrain = 256;  // elements that are worth a CPU work-item of their own

void check_implemented(const at::Tensor& self, const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_floating_point(), "\"", op, "\" not implemented for '",
                              c10::toString(self.scalar_type()), "'");
}

// One launch over a new tensor like the first of the inputs, which all have its sizes. `arguments(launch)` is
// called with a function that takes what follows the common arguments.
template <class Arguments>
at::Tensor sampled(const char* kernel, at::ArrayRef<at::Tensor> inputs, const Gen& generator,
                   const Arguments& arguments) {
  const at::Tensor& first = inputs[0];
  const c10::DeviceGuard guard(first.device());
  at::Tensor out = at::empty(first.sizes(), first.options());
  const auto count = static_cast<uint64_t>(out.numel());
  if (count == 0) return out;
  TORCH_CHECK(count < (uint64_t{1} << 31), kernel + 4, " of 2^31 or more elements is not supported");
  Stream& stream = current_stream(out.device().index());
  const DType type = dtype_of(out.scalar_type(), kernel + 4);
  check_device_supports(stream.device(), type, kernel + 4);
  const DType compute = codegen::compute_type(type);
  const Split split = split_work(stream.device(), static_cast<uint32_t>(count), kGrain);
  const auto [seed, counter] = reserve_philox(generator, count);
  at::Tensor dense[2];
  for (size_t i = 0; i < inputs.size(); ++i) dense[i] = inputs[i].contiguous();
  fetch_kernel(stream.device(), "random/rejection.cl", kernel, compute, {type, type},
               compute == DType::F64 ? "-DWIDE=1" : "")
      .launch_with(stream.queue(), split.range, [&, seed = seed, counter = counter](auto& list) {
        const Buffer to = buffer_of(out);
        list.add(to.mem);
        list.add(to.offset);
        for (size_t i = 0; i < inputs.size(); ++i) {
          const Buffer from = buffer_of(dense[i]);
          list.add(from.mem);
          list.add(from.offset);
        }
        list.add(static_cast<uint32_t>(count));
        list.add(split.per_item);
        list.add(seed);
        list.add(counter);
        arguments(list);
      });
  return out;
}

// The least normal positive number of a dtype, and the distance of 1 to the number below.
std::pair<double, double> limits_of(c10::ScalarType type) {
  if (type == at::kHalf) return {0x1p-14, 0x1p-11};
  if (type == at::kBFloat16) return {std::numeric_limits<float>::min(), 0x1p-8};
  if (type == at::kDouble)
    return {std::numeric_limits<double>::min(), std::numeric_limits<double>::epsilon() / 2};
  return {std::numeric_limits<float>::min(), std::numeric_limits<float>::epsilon() / 2};
}

// Gamma numbers or their logarithms, `least` in place of less.
at::Tensor gamma_numbers(const at::Tensor& alpha, const Gen& generator, double least, bool logarithms) {
  return sampled("dlb_gamma", alpha, generator, [&](auto& list) {
    if (alpha.scalar_type() == at::kDouble)
      list.add(least);
    else
      list.add(static_cast<float>(least));
    list.add(static_cast<int32_t>(logarithms));
  });
}

// Never 0, as on the CPU: logarithms are taken of it.
at::Tensor standard_gamma(const at::Tensor& alpha, Gen generator) {
  check_implemented(alpha, "gamma_cpu");
  return gamma_numbers(alpha, generator, limits_of(alpha.scalar_type()).first, false);
}

// Gamma numbers over their sum, more than 0 and less than 1. They are divided as logarithms, because with
// small parameters all numbers of a row may be less than the dtype's least, while their ratios are not.
at::Tensor sample_dirichlet(const at::Tensor& alpha, Gen generator) {
  check_implemented(alpha, "dirichlet");
  const c10::ScalarType type = alpha.scalar_type();
  const bool wide = type == at::kDouble;
  const double lowest = wide ? std::numeric_limits<double>::lowest() : std::numeric_limits<float>::lowest();
  const at::Tensor logs = gamma_numbers(wide ? alpha : alpha.to(at::kFloat), generator, lowest, true);
  const auto [least, step] = limits_of(type);
  return at::softmax(logs, -1).clamp_(least, 1 - step).to(type);
}

at::Tensor poisson(const at::Tensor& rate, Gen generator) {
  check_implemented(rate, "poisson_cpu");
  static const int32_t site =
      register_error_site({"poisson", "invalid Poisson rate, expected rate to be non-negative", false});
  const ErrorBuffer errors(current_stream(rate.device().index()));
  return sampled("dlb_poisson", rate, generator, [&](auto& list) {
    list.add(errors.mem());
    list.add(site);
  });
}

at::Tensor binomial(const at::Tensor& count, const at::Tensor& prob, Gen generator) {
  TORCH_CHECK_VALUE(count.is_floating_point(),
                    "binomial only supports floating-point dtypes for count, got: ", count.scalar_type());
  TORCH_CHECK_VALUE(prob.is_floating_point(),
                    "binomial only supports floating-point dtypes for prob, got: ", prob.scalar_type());
  TORCH_CHECK(count.scalar_type() == prob.scalar_type(), "Found dtype ", prob.scalar_type(), " but expected ",
              count.scalar_type());
  TORCH_CHECK(count.device() == prob.device(), "Expected count and prob on one device, but found ",
              count.device(), " and ", prob.device());
  const auto sizes = at::infer_size(count.sizes(), prob.sizes());
  return sampled("dlb_binomial", {count.expand(sizes), prob.expand(sizes)}, generator, [](auto&) {});
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_standard_gamma", standard_gamma);
  m.impl("_sample_dirichlet", sample_dirichlet);
  m.impl("poisson", poisson);
  m.impl("binomial", binomial);
}

}  // namespace dlb
