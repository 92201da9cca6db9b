// Random numbers: fills by distribution, permutations, sampling, dropout. Checks and messages are PyTorch's
// own templates; the numbers come from csrc/kernels/random/random.cl.
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>

#include <cmath>
#include <limits>

#include "kernels/random/params.h"
#include "ops/common/pointwise.h"
#include "ops/pointwise/rows.h"
#include "primitives/common/split.h"
#include "runtime/device_error.h"
#include "runtime/fetch_kernel.h"
#include "runtime/generator.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using codegen::DType;
using Gen = std::optional<at::Generator>;

constexpr uint32_t kBlockGrain = 1024;       // Philox blocks that are worth a CPU work-item of their own
constexpr int64_t kMostPerLaunch = 1 << 30;  // elements; a multiple of every lane count

// Calls fill(dense) for a tensor of the same sizes without gaps and without overlap, then copies where that
// is not `self`.
template <class Fill>
void fill_dense(const at::Tensor& self, const Fill& fill) {
  if (self.numel() == 0) return;
  const c10::DeviceGuard guard(self.device());
  if (self.is_non_overlapping_and_dense()) return fill(self);
  const at::Tensor dense = at::empty(self.sizes(), self.options());
  fill(dense);
  self.copy_(dense);
}

// One kernel of random/random.cl over a tensor. `arguments` follow the common ones.
struct Distribution {
  const char* kernel;
  DType compute;
  const char* options;
  uint32_t lanes;
};

template <class... Args>
void fill_random(const at::Tensor& self, const Distribution& d, const Gen& generator,
                 const Args&... arguments) {
  // The generator's device chose this kernel, whatever the tensor's.
  TORCH_CHECK(self.device().type() == kDeviceType, "Expected a '", self.device().type(),
              "' generator device but found 'ocl'");
  fill_dense(self, [&](const at::Tensor& out) {
    Stream& stream = current_stream(out.device().index());
    cl::Device& device = stream.device();
    const DType type = dtype_of(out.scalar_type(), d.kernel + 4);
    check_device_supports(device, type, d.kernel + 4);
    cl::Kernel& kernel = fetch_kernel(device, "random/random.cl", d.kernel, d.compute, {type}, d.options);
    const Buffer to = buffer_of(out);
    const int64_t total = out.numel();
    const auto [seed, first] =
        reserve_philox(generator, static_cast<uint64_t>((total + d.lanes - 1) / d.lanes));
    for (int64_t done = 0; done < total; done += kMostPerLaunch) {
      const auto count = static_cast<uint32_t>(std::min(kMostPerLaunch, total - done));
      const Split split = split_work(device, (count + d.lanes - 1) / d.lanes, kBlockGrain);
      kernel.launch(stream.queue(), split.range, to.mem, to.offset + done, count, split.per_item, seed,
                    first + static_cast<uint64_t>(done / d.lanes), arguments...);
    }
  });
}

bool is_wide(const at::Tensor& self) {
  return self.scalar_type() == at::kDouble;
}

// A floating point distribution with parameters of compute type.
template <class... Values>
void fill_real(const at::Tensor& self, const char* kernel, const Gen& generator, Values... values) {
  if (is_wide(self))
    fill_random(self, {kernel, DType::F64, "-DWIDE=1", params::RANDOM_WIDE_LANES}, generator,
                static_cast<double>(values)...);
  else
    fill_random(self, {kernel, DType::F32, "", params::RANDOM_LANES}, generator,
                static_cast<float>(values)...);
}

// Refuses dtypes that the kernels could fill, but PyTorch's do not.
void check_implemented(bool implemented, const at::Tensor& self, const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(implemented, "\"", op, "\" not implemented for '",
                              c10::toString(self.scalar_type()), "'");
}

template <typename RNG>
struct NormalKernel {
  void operator()(const at::Tensor& self, double mean, double std, Gen generator) {
    check_implemented(self.is_floating_point(), self, "normal_");
    fill_real(self, "dlb_normal", generator, mean, std);
  }
};

// The largest number of a dtype of 16 bits below one of it: the next in the order of bits.
template <class Number>
float before(float end) {
  const Number number = static_cast<Number>(end);
  const bool zero = static_cast<float>(number) == 0;
  const auto bits = static_cast<uint16_t>(zero ? 0x8001 : number.x & 0x8000 ? number.x + 1 : number.x - 1);
  return static_cast<float>(Number(bits, Number::from_bits()));
}
float number_before(float end, c10::ScalarType type) {
  if (type == at::kHalf) return before<c10::Half>(end);
  if (type == at::kBFloat16) return before<c10::BFloat16>(end);
  return std::nextafter(end, -std::numeric_limits<float>::infinity());
}

template <typename RNG>
struct UniformKernel {
  void operator()(at::TensorIteratorBase& iter, double from, double to, Gen generator) {
    const at::Tensor& self = iter.tensor(0);
    if (is_wide(self)) {
      fill_random(self, {"dlb_uniform", DType::F64, "-DWIDE=1", params::RANDOM_WIDE_LANES}, generator, 11u,
                  0x1p-53, from, to - from,
                  std::max(from, std::nextafter(to, -std::numeric_limits<double>::infinity())));
      return;
    }
    const int digits = self.scalar_type() == at::kHalf ? 11 : self.scalar_type() == at::kBFloat16 ? 8 : 24;
    const auto first = static_cast<float>(rounded_to(from, self.scalar_type()).toDouble());
    const auto end = static_cast<float>(rounded_to(to, self.scalar_type()).toDouble());
    fill_random(self, {"dlb_uniform", DType::F32, "", params::RANDOM_LANES}, generator,
                static_cast<uint32_t>(32 - digits), std::ldexp(1.0f, -digits), first,
                static_cast<float>(static_cast<double>(end) - first),
                std::max(first, number_before(end, self.scalar_type())));
  }
};

template <typename RNG>
struct LogNormalKernel {
  void operator()(at::TensorIteratorBase& iter, double mean, double std, Gen generator) {
    check_implemented(iter.tensor(0).is_floating_point(), iter.tensor(0), "log_normal_");
    fill_real(iter.tensor(0), "dlb_log_normal", generator, mean, std);
  }
};

template <typename RNG>
struct ExponentialKernel {
  void operator()(at::TensorIteratorBase& iter, double lambda, Gen generator) {
    TORCH_CHECK(iter.tensor(0).is_floating_point(),
                "Exponential distribution is a continuous probability distribution. dtype must be a floating "
                "point but you specified ",
                iter.dtype());
    fill_real(iter.tensor(0), "dlb_exponential", generator, 1.0 / lambda,
              std::isinf(lambda)            ? 0.0
              : iter.dtype() == at::kHalf   ? 0x1p-24
              : iter.dtype() == at::kDouble ? std::numeric_limits<double>::min()
                                            : std::numeric_limits<float>::min());
  }
};

template <typename RNG>
struct GeometricKernel {
  void operator()(at::TensorIteratorBase& iter, double p, Gen generator) {
    const at::Tensor& self = iter.tensor(0);
    check_implemented(!self.is_complex() && self.scalar_type() != at::kBool, self, "geometric_");
    fill_real(self, "dlb_geometric", generator, 1.0 / std::log1p(-p));
  }
};

template <typename RNG>
struct CauchyKernel {
  void operator()(at::TensorIteratorBase& iter, double median, double sigma, Gen generator) {
    fill_real(iter.tensor(0), "dlb_cauchy", generator, median, sigma);
  }
};

template <typename RNG>
struct BernoulliKernel {
  void operator()(const at::Tensor& self, double p, Gen generator) {
    check_implemented(!self.is_complex(), self, "bernoulli_");
    fill_real(self, "dlb_bernoulli", generator, p);
  }
};

template <typename RNG>
struct BernoulliEachKernel {
  void operator()(const at::Tensor& self, const at::Tensor& given, Gen generator) {
    check_implemented(!self.is_complex(), self, "bernoulli_");
    check_implemented(given.is_floating_point(), given, "bernoulli_");
    static const int32_t site = register_error_site(
        {"bernoulli", "Expected p_in >= 0 && p_in <= 1 (found outside [%lld, %lld])", false});
    fill_dense(self, [&](const at::Tensor& dense) {
      const at::Tensor out = dense.is_contiguous() ? dense : at::empty(dense.sizes(), dense.options());
      const at::Tensor p = given.to(self.device()).expand(self.sizes()).contiguous();
      const auto count = static_cast<uint64_t>(out.numel());
      TORCH_CHECK(count < (uint64_t{1} << 31), "bernoulli of 2^31 or more elements is not supported");
      Stream& stream = current_stream(out.device().index());
      const Split split = split_work(stream.device(), (count + 3) / 4, kBlockGrain);
      const auto [seed, first] = reserve_philox(generator, (count + 3) / 4);
      const Buffer to = buffer_of(out), from = buffer_of(p);
      fetch_kernel(stream.device(), "random/mask.cl", "dlb_bernoulli_each", DType::F32,
                   {dtype_of(out.scalar_type(), "bernoulli"), dtype_of(p.scalar_type(), "bernoulli")})
          .launch(stream.queue(), split.range, to.mem, to.offset, from.mem, from.offset,
                  static_cast<uint32_t>(count), split.per_item, seed, first, ErrorBuffer(stream).mem(), site);
      if (!out.is_same(dense)) dense.copy_(out);
    });
  }
};

// Integers in [base, base + range); range 0: all of int64.
void fill_integers(const at::Tensor& self, uint64_t range, int64_t base, const Gen& generator) {
  if (range == 0 || range > (uint64_t{1} << 32))
    fill_random(self, {"dlb_random_integer", DType::I64, "-DINTEGER=1 -DWIDE=1", params::RANDOM_WIDE_LANES},
                generator, range, base);
  else
    fill_random(self, {"dlb_random_integer", DType::I64, "-DINTEGER=1", params::RANDOM_LANES}, generator,
                range, base);
}

template <typename RNG>
struct IntegerKernel {
  void operator()(at::TensorIteratorBase& iter, uint64_t range, int64_t base, Gen generator) {
    fill_integers(iter.tensor(0), range, base, generator);
  }
  void operator()(at::TensorIteratorBase& iter, Gen generator) {
    fill_integers(iter.tensor(0), 0, 0, generator);
  }
};

namespace templates = at::native::templates;
using Rng = OclGenerator;

at::Tensor& normal_(at::Tensor& self, double mean, double std, Gen generator) {
  return templates::normal_impl_<NormalKernel, Rng>(self, mean, std, std::move(generator));
}
template <class Mean, class Std>
at::Tensor normal(Mean mean, Std std, Gen generator) {
  return templates::normal_impl<NormalKernel, Rng>(mean, std, std::move(generator));
}
template <class Mean, class Std>
at::Tensor& normal_out(Mean mean, Std std, Gen generator, at::Tensor& out) {
  return templates::normal_out_impl<NormalKernel, Rng>(out, mean, std, std::move(generator));
}
at::Tensor& uniform_(at::Tensor& self, double from, double to, Gen generator) {
  return templates::uniform_impl_<UniformKernel, Rng>(self, from, to, std::move(generator));
}
at::Tensor& log_normal_(at::Tensor& self, double mean, double std, Gen generator) {
  return templates::log_normal_impl_<LogNormalKernel, Rng>(self, mean, std, std::move(generator));
}
at::Tensor& exponential_(at::Tensor& self, double lambda, Gen generator) {
  return templates::exponential_impl_<ExponentialKernel, Rng>(self, lambda, std::move(generator));
}
at::Tensor& geometric_(at::Tensor& self, double p, Gen generator) {
  return templates::geometric_impl_<GeometricKernel, Rng>(self, p, std::move(generator));
}
at::Tensor& cauchy_(at::Tensor& self, double median, double sigma, Gen generator) {
  return templates::cauchy_impl_<CauchyKernel, Rng>(self, median, sigma, std::move(generator));
}
at::Tensor& bernoulli_scalar(at::Tensor& self, double p, Gen generator) {
  return templates::bernoulli_impl_<BernoulliKernel, Rng>(self, p, std::move(generator));
}
at::Tensor& bernoulli_tensor(at::Tensor& self, const at::Tensor& p, Gen generator) {
  return templates::bernoulli_impl_<BernoulliEachKernel, Rng>(self, p, std::move(generator));
}
at::Tensor& bernoulli_out(const at::Tensor& self, Gen generator, at::Tensor& out) {
  return templates::bernoulli_out_impl<BernoulliEachKernel, Rng>(out, self, std::move(generator));
}
at::Tensor& random_from(at::Tensor& self, int64_t from, std::optional<int64_t> to, Gen generator) {
  return templates::random_from_to_impl<IntegerKernel, Rng>(self, from, to, std::move(generator));
}
at::Tensor& random_to(at::Tensor& self, int64_t to, Gen generator) {
  return random_from(self, 0, to, std::move(generator));
}
// All values of an integer type from 0 on; for floats, the integers that they hold exactly.
at::Tensor& random_any(at::Tensor& self, Gen generator) {
  if (self.numel() == 0) return self;
  check_implemented(!self.is_complex(), self, "random_");
  return random_from(self, 0, std::nullopt, std::move(generator));
}

// A permutation is the order that sorts random 64-bit keys.
at::Tensor& randperm_out(int64_t n, Gen generator, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  TORCH_CHECK(!generator || !generator->defined() || generator->device().type() == out.device().type(),
              "Expected a '", out.device().type(), "' generator device but found '",
              generator->device().type(), "'");
  check_implemented(!out.is_complex() && out.scalar_type() != at::kBool, out, "randperm");
  check_scalar_fits(n > 0 ? n - 1 : n, out.scalar_type());
  const int64_t exact = out.scalar_type() == at::kHalf    ? 1 << 11
                        : out.scalar_type() == at::kFloat ? 1 << 24
                                                          : int64_t{1} << 53;
  TORCH_CHECK(n <= exact + 1 || !out.is_floating_point() || out.scalar_type() == at::kBFloat16,
              "n cannot be greater than ", exact + 1, " for ", out.scalar_type(), " type.");
  at::native::resize_output(out, {n});
  if (n == 0) return out;
  const at::Tensor keys = at::empty({n}, out.options().dtype(at::kLong));
  fill_integers(keys, 0, 0, generator);
  return out.copy_(keys.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false));
}

constexpr codegen::PointwiseOp kDropoutBackward{.name = "dropout_backward",
                                                .on_float = "x0 * (x1 * s0)",
                                                .on_complex = "x0 * (x1.x * s0.x)",
                                                .scalars = 1};

const codegen::RegisterOps kRandomOps(codegen::RowKind::Pointwise,
                                      {{kDropoutBackward, "native_dropout_backward", "first"}});

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  if (input.numel() == 0) return {input, at::empty_like(input, input.options().dtype(at::kBool))};
  const c10::DeviceGuard guard(input.device());
  if (train && !*train) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  // empty_like() keeps the order of dimensions of what has gaps too; what overlaps is contiguous as on the
  // CPU.
  at::Tensor out = at::empty_like(input);
  const at::Tensor in = out.strides() == input.strides() ? input : at::empty_like(out).copy_(input);
  at::Tensor mask = at::empty_like(in, in.options().dtype(at::kBool));
  const auto count = static_cast<uint64_t>(in.numel());
  TORCH_CHECK(count < (uint64_t{1} << 31), "dropout of 2^31 or more elements is not supported");
  Stream& stream = current_stream(in.device().index());
  const DType type = dtype_of(in.scalar_type(), "native_dropout");
  TORCH_CHECK_NOT_IMPLEMENTED(codegen::class_of(type) == codegen::DClass::Float,
                              "\"native_dropout\" not implemented for '", c10::toString(in.scalar_type()),
                              "'");
  check_device_supports(stream.device(), type, "native_dropout");
  const Split split = split_work(stream.device(), (count + 3) / 4, kBlockGrain);
  const auto [seed, first] = reserve_philox(std::nullopt, (count + 3) / 4);
  const Buffer from = buffer_of(in), to = buffer_of(out), kept = buffer_of(mask);
  auto launch = [&, seed = seed, first = first](auto keep, auto scale) {
    fetch_kernel(stream.device(), "random/mask.cl", "dlb_dropout", codegen::compute_type(type), {type, type})
        .launch(stream.queue(), split.range, from.mem, from.offset, to.mem, to.offset, kept.mem, kept.offset,
                static_cast<uint32_t>(count), split.per_item, seed, first, keep, scale);
  };
  const double keep = 1 - p, scale = p == 1 ? 0 : 1 / keep;
  if (type == DType::F64)
    launch(keep, scale);
  else
    launch(static_cast<float>(keep), static_cast<float>(scale));
  return {out, mask};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "Mask should be Bool Scalar Type", mask.scalar_type());
  // Promotes, as the product does on the CPU.
  if (!grad.is_floating_point() && !grad.is_complex()) return grad.mul(mask).mul(scale);
  at::Tensor out;
  auto iter = at::TensorIteratorConfig()
                  .add_owned_output(out)
                  .add_const_input(grad)
                  .add_const_input(mask)
                  .check_all_same_dtype(false)
                  .declare_static_dtype(grad.scalar_type())
                  .build();
  const c10::DeviceGuard guard(grad.device());
  run_pointwise(kDropoutBackward, iter, grad.scalar_type(), c10::Scalar(scale));
  return iter.output();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("normal_", normal_);
  m.impl("normal.Tensor_float", normal<const at::Tensor&, double>);
  m.impl("normal.float_Tensor", normal<double, const at::Tensor&>);
  m.impl("normal.Tensor_Tensor", normal<const at::Tensor&, const at::Tensor&>);
  m.impl("normal.Tensor_float_out", normal_out<const at::Tensor&, double>);
  m.impl("normal.float_Tensor_out", normal_out<double, const at::Tensor&>);
  m.impl("normal.Tensor_Tensor_out", normal_out<const at::Tensor&, const at::Tensor&>);
  m.impl("uniform_", uniform_);
  m.impl("log_normal_", log_normal_);
  m.impl("exponential_", exponential_);
  m.impl("geometric_", geometric_);
  m.impl("cauchy_", cauchy_);
  m.impl("bernoulli_.float", bernoulli_scalar);
  m.impl("bernoulli_.Tensor", bernoulli_tensor);
  m.impl("bernoulli.out", bernoulli_out);
  m.impl("random_", random_any);
  m.impl("random_.from", random_from);
  m.impl("random_.to", random_to);
  m.impl("randperm.generator_out", randperm_out);
  m.impl("native_dropout", native_dropout);
  m.impl("native_dropout_backward", native_dropout_backward);
}

}  // namespace dlb
