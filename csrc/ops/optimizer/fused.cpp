// Fused optimizer steps: SGD, Adam, AdamW and Adagrad over all parameters in one launch.
#include "ops/optimizer/fused.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cmath>

namespace dlb {

namespace {
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (int64_t d = 0; d < a.dim(); ++d)
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) return false;
  return true;
}
}  // namespace

bool fits_fused(TensorList params, TensorList list, size_t i) {
  return list[i].device() == params[0].device() && list[i].layout() == c10::kStrided &&
         list[i].scalar_type() == list[0].scalar_type() && list[i].is_non_overlapping_and_dense() &&
         same_layout(list[i], params[i]);
}

void check_fused_lists(const char* op, at::ArrayRef<TensorList> lists) {
  const TensorList params = lists[0];
  TORCH_CHECK(!params.empty(), op, ": expected at least one parameter");
  TORCH_CHECK(at::isFloatingType(params[0].scalar_type()), op, ": parameters must be floating, got ",
              params[0].scalar_type());
  for (const TensorList& list : lists) {
    if (list.empty()) continue;
    TORCH_CHECK(list.size() == params.size(), op, ": lists differ in length: ", list.size(), " and ",
                params.size());
    for (size_t i = 0; i < list.size(); ++i)
      TORCH_CHECK(
          fits_fused(params, list, i), op,
          ": parameters, gradients and states must be dense, on one device, of one dtype for each kind, and "
          "of the same sizes and strides at each index; number ",
          i, " is not");
  }
}

TensorList aligned_gradients(TensorList params, TensorList grads, Tensors& storage) {
  bool aligned = params.size() == grads.size();
  for (size_t i = 0; aligned && i < grads.size(); ++i) aligned = same_layout(params[i], grads[i]);
  if (aligned || params.size() != grads.size()) return grads;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (params[i].sizes() != grads[i].sizes() || same_layout(params[i], grads[i])) {
      storage.push_back(grads[i]);
    } else {
      storage.push_back(at::empty_strided(params[i].sizes(), params[i].strides(), grads[i].options()));
      storage.back().copy_(grads[i]);
    }
  }
  return storage;
}

namespace {

using codegen::PointwiseOp;

// The gradient as all optimizers use it: unscaled, negated to maximise, with L2 decay. Inputs x0 parameter,
// x1 gradient; `grad_scale` x-number, s0 sign, s1 L2 factor.
#define DLB_GRADIENT(grad_scale)        \
  "const T unscaled = x1 / " grad_scale \
  "; "                                  \
  "T g = s0 * unscaled; if (s1 != 0) g += s1 * x0; "
#define DLB_SKIP(found_inf) "if (" found_inf " != 0) return; "

// How one optimizer runs: in-place operands are outputs 0.. and inputs 0.. alike, with the gradient as
// input 1. Where the unscaled gradient is stored too, it is the last output.
struct FusedOp {
  PointwiseOp plain;   // outputs: parameter, states
  PointwiseOp scaled;  // outputs: parameter, states, gradient
  const char* setup;
};

// Adds parameter, gradient and states, all in place.
MultiTensor fused_call(const FusedOp& op, at::ArrayRef<TensorList> states, TensorList params,
                       TensorList grads, const Scaling& scaling) {
  const bool store = scaling.stores_gradients();
  MultiTensor call(store ? op.scaled : op.plain, params[0].scalar_type(), op.setup);
  call.output(params);
  for (const TensorList& state : states) call.output(state);
  if (store) call.output(grads);
  call.input_in_place(0);
  const auto states_count = static_cast<uint8_t>(states.size());
  if (store)
    call.input_in_place(static_cast<uint8_t>(1 + states_count));
  else
    call.input(grads);
  for (uint8_t i = 1; i <= states_count; ++i) call.input_in_place(i);
  return call;
}

void run_fused(const char* op, MultiTensor& call, at::ArrayRef<TensorList> changed) {
  TORCH_CHECK(call.run(), op, ": parameters, gradients or states overlap each other in memory");
  for (const TensorList& list : changed) bump_versions(list);
}

// Copies unscaled gradients back when they were taken in another layout.
void finish_gradients(const Scaling& scaling, TensorList used, TensorList grads) {
  if (!scaling.stores_gradients()) return;
  for (size_t i = 0; i < grads.size(); ++i)
    if (!used[i].is_same(grads[i])) grads[i].copy_(used[i]);
}

// --- SGD (with momentum: inputs x2 buffer, x3 lr, x4 scale, x5 found_inf; without: x2 lr, x3, x4). s2
// momentum, s3 1 - dampening, s4 nesterov, s5 first step.
#define DLB_SGD_MOMENTUM \
  DLB_GRADIENT("x4")     \
  "y1 = s5 != 0 ? g : s2 * x2 + s3 * g; g = s4 != 0 ? g + s2 * y1 : y1; y0 = x0 - x3 * g; "
#define DLB_SGD DLB_GRADIENT("x3") "y0 = x0 - x2 * g; "
constexpr FusedOp kSgdMomentum{
    .plain = {.name = "fused_sgd_momentum", .on_float = DLB_SGD_MOMENTUM, .scalars = 6},
    .scaled = {.name = "fused_sgd_momentum_unscale",
               .on_float = DLB_SGD_MOMENTUM "y2 = unscaled;",
               .scalars = 6},
    .setup = DLB_SKIP("x5")};
constexpr FusedOp kSgd{
    .plain = {.name = "fused_sgd", .on_float = DLB_SGD, .scalars = 2},
    .scaled = {.name = "fused_sgd_unscale", .on_float = DLB_SGD "y1 = unscaled;", .scalars = 2},
    .setup = DLB_SKIP("x4")};

void sgd(TensorList params, TensorList grads, TensorList buffers, double weight_decay, double momentum,
         LearningRate lr, double dampening, bool nesterov, bool maximize, bool first,
         const Scaling& scaling) {
  const c10::DeviceGuard guard(params[0].device());
  Tensors storage;
  const TensorList g = aligned_gradients(params, grads, storage);
  check_fused_lists("_fused_sgd_", {params, g, buffers});
  const bool with_momentum = !buffers.empty();
  const TensorList states[] = {buffers};
  MultiTensor call = fused_call(with_momentum ? kSgdMomentum : kSgd,
                                with_momentum ? at::ArrayRef<TensorList>(states) : at::ArrayRef<TensorList>(),
                                params, g, scaling);
  lr.add_to(call);
  scaling.add_to(call);
  call.scalar(maximize ? -1.0 : 1.0).scalar(weight_decay);
  if (with_momentum)
    call.scalar(momentum).scalar(1 - dampening).scalar(nesterov ? 1.0 : 0.0).scalar(first ? 1.0 : 0.0);
  run_fused("_fused_sgd_", call, {params, buffers});
  finish_gradients(scaling, g, grads);
}

// --- Adam and AdamW (Kingma and Ba, ICLR 2015; Loshchilov and Hutter, ICLR 2019). Inputs x2 exp_avg, x3
// exp_avg_sq, [x4 max_exp_avg_sq], then step, lr, scale, found_inf. s2 decoupled decay, s3 1 - beta1, s4
// beta2, s5 1 - beta2, s6 eps, s7 log beta1, s8 log beta2. The corrections 1 - beta^step come from expm1,
// which keeps their accuracy in float where the power would lose four digits in the first steps.
#define DLB_ADAM_SETUP(step, lr, found_inf)                                 \
  DLB_SKIP(found_inf)                                                       \
  "const T step_size = " lr " / -expm1(" step " * s7), keep = C(1.0) - " lr \
  " * s2, "                                                                 \
  "root = sqrt(-expm1(" step " * s8));"
#define DLB_ADAM(grad_scale, largest)                            \
  DLB_GRADIENT(grad_scale)                                       \
  "y1 = x2 + s3 * (g - x2); y2 = s4 * x3 + s5 * g * g; " largest \
  "y0 = keep * x0 - step_size * y1 / (sqrt(v) / root + s6); "
#define DLB_ADAM_PLAIN DLB_ADAM("x6", "const T v = y2; ")
#define DLB_ADAM_MAX DLB_ADAM("x7", "const T v = x4 > y2 || isnan(x4) ? x4 : y2; y3 = v; ")
constexpr FusedOp kAdam{
    .plain = {.name = "fused_adam", .on_float = DLB_ADAM_PLAIN, .scalars = 9},
    .scaled = {.name = "fused_adam_unscale", .on_float = DLB_ADAM_PLAIN "y3 = unscaled;", .scalars = 9},
    .setup = DLB_ADAM_SETUP("x4", "x5", "x7")};
constexpr FusedOp kAmsgrad{
    .plain = {.name = "fused_amsgrad", .on_float = DLB_ADAM_MAX, .scalars = 9},
    .scaled = {.name = "fused_amsgrad_unscale", .on_float = DLB_ADAM_MAX "y4 = unscaled;", .scalars = 9},
    .setup = DLB_ADAM_SETUP("x5", "x6", "x8")};

struct AdamOptions {
  const char* name;
  double beta1, beta2, l2, decay, eps;
  bool amsgrad, maximize;
};

// Steps on the device, or on the CPU, where optimizers that are not `fused` keep them.
void add_steps(MultiTensor& call, TensorList steps) {
  if (!steps[0].is_cpu()) {
    call.single(steps);
    return;
  }
  c10::SmallVector<c10::Scalar, 256> numbers;
  for (const at::Tensor& step : steps) numbers.push_back(cpu_scalar(step));
  const bool all_equal = std::all_of(numbers.begin(), numbers.end(), [&](const c10::Scalar& number) {
    return number.toDouble() == numbers[0].toDouble();
  });
  all_equal ? call.value(numbers[0]) : call.values(numbers);
}

void adam(TensorList params, TensorList grads, TensorList exp_avgs, TensorList exp_avg_sqs,
          TensorList max_exp_avg_sqs, TensorList steps, LearningRate lr, const AdamOptions& o,
          const Scaling& scaling) {
  const c10::DeviceGuard guard(params[0].device());
  Tensors storage;
  const TensorList g = aligned_gradients(params, grads, storage);
  check_fused_lists(o.name, {params, g, exp_avgs, exp_avg_sqs, o.amsgrad ? max_exp_avg_sqs : TensorList()});
  TORCH_CHECK(steps.size() == params.size(), o.name, ": expected one step for each parameter");
  const TensorList states[] = {exp_avgs, exp_avg_sqs, max_exp_avg_sqs};
  const at::ArrayRef<TensorList> used(states, o.amsgrad ? 3 : 2);
  MultiTensor call = fused_call(o.amsgrad ? kAmsgrad : kAdam, used, params, g, scaling);
  add_steps(call, steps);
  lr.add_to(call);
  scaling.add_to(call);
  call.scalar(o.maximize ? -1.0 : 1.0).scalar(o.l2).scalar(o.decay).scalar(1 - o.beta1).scalar(o.beta2);
  call.scalar(1 - o.beta2).scalar(o.eps).scalar(std::log(o.beta1)).scalar(std::log(o.beta2));
  run_fused(o.name, call, {params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs});
  finish_gradients(scaling, g, grads);
}

// --- Adagrad (Duchi et al., JMLR 2011). Inputs x2 sum, x3 step, x4 lr, x5 scale, x6 found_inf. s2 lr_decay,
// s3 eps.
#define DLB_ADAGRAD DLB_GRADIENT("x5") "y1 = x2 + g * g; y0 = x0 - rate * g / (sqrt(y1) + s3); "
constexpr FusedOp kAdagrad{
    .plain = {.name = "fused_adagrad", .on_float = DLB_ADAGRAD, .scalars = 4},
    .scaled = {.name = "fused_adagrad_unscale", .on_float = DLB_ADAGRAD "y2 = unscaled;", .scalars = 4},
    .setup = DLB_SKIP("x6") "const T rate = x4 / (C(1.0) + (x3 - C(1.0)) * s2);"};

void adagrad(TensorList params, TensorList grads, TensorList sums, TensorList steps, LearningRate lr,
             double lr_decay, double weight_decay, double eps, bool maximize, const Scaling& scaling) {
  const c10::DeviceGuard guard(params[0].device());
  Tensors storage;
  const TensorList g = aligned_gradients(params, grads, storage);
  check_fused_lists("_fused_adagrad_", {params, g, sums});
  TORCH_CHECK(steps.size() == params.size(), "_fused_adagrad_: expected one step for each parameter");
  const TensorList states[] = {sums};
  MultiTensor call = fused_call(kAdagrad, states, params, g, scaling);
  add_steps(call, steps);
  lr.add_to(call);
  scaling.add_to(call);
  call.scalar(maximize ? -1.0 : 1.0).scalar(weight_decay).scalar(lr_decay).scalar(eps);
  run_fused("_fused_adagrad_", call, {params, sums});
  finish_gradients(scaling, g, grads);
}

#define DLB_SGD_OVERLOADS "_fused_sgd_ _fused_sgd_.tensor_lr"
#define DLB_ADAM_OVERLOADS "_fused_adam_ _fused_adam_.tensor_lr _fused_adamw_ _fused_adamw_.tensor_lr"
const codegen::RegisterOps kFusedOps(codegen::RowKind::MultiTensor,
                                     {{kSgdMomentum.plain, DLB_SGD_OVERLOADS, "list", kSgdMomentum.setup},
                                      {kSgdMomentum.scaled, DLB_SGD_OVERLOADS, "list", kSgdMomentum.setup},
                                      {kSgd.plain, DLB_SGD_OVERLOADS, "list", kSgd.setup},
                                      {kSgd.scaled, DLB_SGD_OVERLOADS, "list", kSgd.setup},
                                      {kAdam.plain, DLB_ADAM_OVERLOADS, "list", kAdam.setup},
                                      {kAdam.scaled, DLB_ADAM_OVERLOADS, "list", kAdam.setup},
                                      {kAmsgrad.plain, DLB_ADAM_OVERLOADS, "list", kAmsgrad.setup},
                                      {kAmsgrad.scaled, DLB_ADAM_OVERLOADS, "list", kAmsgrad.setup},
                                      {kAdagrad.plain, "_fused_adagrad_", "list", kAdagrad.setup},
                                      {kAdagrad.scaled, "_fused_adagrad_", "list", kAdagrad.setup}});

// --- Registration: the learning rate is a number or, in overload tensor_lr, a tensor.

using Optional = std::optional<at::Tensor>;

LearningRate rate(double lr) {
  return {lr, nullptr};
}
LearningRate rate(const at::Tensor& lr) {
  TORCH_CHECK(lr.numel() == 1, "lr must be a tensor of one element, got ", lr.numel());
  return {0, &lr};
}

template <class Lr>
void fused_sgd(TensorList params, TensorList grads, TensorList buffers, double weight_decay, double momentum,
               Lr lr, double dampening, bool nesterov, bool maximize, bool is_first_step,
               const Optional& grad_scale, const Optional& found_inf) {
  sgd(params, grads, buffers, weight_decay, momentum, rate(lr), dampening, nesterov, maximize, is_first_step,
      {grad_scale, found_inf});
}

template <class Lr, bool Decoupled>
void fused_adam(TensorList params, TensorList grads, TensorList exp_avgs, TensorList exp_avg_sqs,
                TensorList max_exp_avg_sqs, TensorList steps, Lr lr, double beta1, double beta2,
                double weight_decay, double eps, bool amsgrad, bool maximize, const Optional& grad_scale,
                const Optional& found_inf) {
  const AdamOptions options{Decoupled ? "_fused_adamw_" : "_fused_adam_",
                            beta1,
                            beta2,
                            Decoupled ? 0 : weight_decay,
                            Decoupled ? weight_decay : 0,
                            eps,
                            amsgrad,
                            maximize};
  adam(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, rate(lr), options,
       {grad_scale, found_inf});
}

template <class Lr>
void fused_adagrad(TensorList params, TensorList grads, TensorList sums, TensorList steps, Lr lr,
                   double lr_decay, double weight_decay, double eps, bool maximize,
                   const Optional& grad_scale, const Optional& found_inf) {
  adagrad(params, grads, sums, steps, rate(lr), lr_decay, weight_decay, eps, maximize,
          {grad_scale, found_inf});
}

template <class Lr>
void register_overload(torch::Library& m, const char* overload) {
  impl_if_known(m, "_fused_sgd_", overload, &fused_sgd<Lr>);
  impl_if_known(m, "_fused_adam_", overload, &fused_adam<Lr, false>);
  impl_if_known(m, "_fused_adamw_", overload, &fused_adam<Lr, true>);
  impl_if_known(m, "_fused_adagrad_", overload, &fused_adagrad<Lr>);
}

bool fits_fused_step(TensorList params, TensorList grads, TensorList first, TensorList second,
                     TensorList third) {
  if (!at::isFloatingType(params[0].scalar_type())) return false;
  std::vector<const void*> addresses;
  for (size_t i = 0; i < params.size(); ++i) {
    if (grads[i].sizes() != params[i].sizes() || grads[i].device() != params[0].device()) return false;
    for (const TensorList& list : {params, first, second, third})
      if (!list.empty() && !fits_fused(params, list, i)) return false;
    if (params[i].numel() > 0) addresses.push_back(params[i].const_data_ptr());
  }
  std::sort(addresses.begin(), addresses.end());
  return std::adjacent_find(addresses.begin(), addresses.end()) == addresses.end();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_overload<double>(m, "");
  register_overload<const at::Tensor&>(m, "tensor_lr");
}

TORCH_LIBRARY_FRAGMENT(dlbackend, m) {
  // Whether one launch can take an optimizer's step: its parameters, which appear once, and its lists of
  // states (empty ones where it has fewer) are dense, alike, and on one device; the gradients have their
  // sizes and device.
  m.def(
      "fits_fused_step(Tensor[] params, Tensor[] grads, Tensor[] first, Tensor[] second, Tensor[] third) -> "
      "bool",
      fits_fused_step, {at::Tag::pt2_compliant_tag});
}

}  // namespace dlb
