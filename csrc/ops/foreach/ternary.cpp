// _foreach ops of three lists (addcmul, addcdiv, lerp), and those that only write (copy_, zero_).
#include <ATen/ops/_foreach_addcdiv_native.h>
#include <ATen/ops/_foreach_addcmul_native.h>
#include <ATen/ops/_foreach_copy_native.h>
#include <ATen/ops/_foreach_lerp_native.h>
#include <ATen/ops/_foreach_zero_native.h>

#include "ops/foreach/foreach.h"
#include "ops/pointwise/rows.h"

namespace dlb {
namespace {

using codegen::PointwiseOp;

// The scalar is an input, so that it can be one value or one for each tensor. The products are grouped as in
// PyTorch on the CPU, so that they round alike.
constexpr PointwiseOp kAddcmul{.name = "foreach_addcmul",
                               .on_float = "x0 + x3 * x1 * x2",
                               .on_int = "x0 + x3 * x1 * x2",
                               .on_complex = "x0 + dlb_cmul(dlb_cmul(x3, x1), x2)"};
constexpr PointwiseOp kAddcdiv{.name = "foreach_addcdiv",
                               .on_float = "x0 + x3 * x1 / x2",
                               .on_complex = "x0 + dlb_cdiv(dlb_cmul(x3, x1), x2)"};
// The result is reckoned from the nearer end, so that weight 1 gives x1 exactly.
constexpr PointwiseOp kLerp{
    .name = "foreach_lerp",
    .on_float = "fabs(x2) < C(0.5) ? x0 + x2 * (x1 - x0) : x1 - (x1 - x0) * (C(1.0) - x2)"};
constexpr PointwiseOp kCopy{
    .name = "foreach_copy", .on_float = "x0", .on_int = "x0", .on_bool = "x0", .on_complex = "x0"};
constexpr PointwiseOp kZero{
    .name = "foreach_zero", .on_float = "0", .on_int = "0", .on_bool = "0", .on_complex = "(T)(0, 0)"};

#define DLB_POINTWISE_LISTS(op) \
  op ".Scalar " op "_.Scalar " op ".ScalarList " op "_.ScalarList " op ".Tensor " op "_.Tensor"
#define DLB_LERP_LISTS(overload) "_foreach_lerp." overload " _foreach_lerp_." overload
const codegen::RegisterOps kForeachTernaryOps(
    codegen::RowKind::MultiTensor,
    {{kAddcmul, DLB_POINTWISE_LISTS("_foreach_addcmul"), "list"},
     {kAddcdiv, DLB_POINTWISE_LISTS("_foreach_addcdiv"), "list"},
     {kLerp, DLB_LERP_LISTS("List") " " DLB_LERP_LISTS("Scalar") " " DLB_LERP_LISTS("ScalarList"), "list"},
     {kCopy, "_foreach_copy_", "list"},
     {kZero, "_foreach_zero_", "list"}});

// The op of self, two lists and one value.
template <const PointwiseOp& Op, auto SlowList, auto SlowInPlace>
struct PointwiseScalar {
  static auto setup(TensorList self, TensorList a, TensorList b, const c10::Scalar& value) {
    at::native::check_foreach_api_restrictions(self, a, b);
    check_scalar_fits_compute(value, self[0].scalar_type());
    return std::pair(fast_op(&Op, false, {self, a, b}, value),
                     [=, &value](MultiTensor& call) { call.input(a).input(b).value(value); });
  }
  static Tensors functional(TensorList self, TensorList a, TensorList b, const c10::Scalar& value) {
    const auto [op, fill] = setup(self, a, b, value);
    return foreach_functional(op, self, fill, [&] { return SlowList(self, a, b, value); });
  }
  static void in_place(TensorList self, TensorList a, TensorList b, const c10::Scalar& value) {
    const auto [op, fill] = setup(self, a, b, value);
    foreach_in_place(op, self, fill, [&] { SlowInPlace(self, a, b, value); });
  }
};

// The op of self, two lists and a value for each tensor, given as scalars or packed in a 1-d CPU tensor.
template <const PointwiseOp& Op, auto SlowList, auto SlowInPlace>
struct PointwiseScalars {
  static auto setup(TensorList self, TensorList a, TensorList b, Scalars values) {
    at::native::check_foreach_api_restrictions(self, a, b, values);
    for (const c10::Scalar& value : values) check_scalar_fits_compute(value, self[0].scalar_type());
    return std::pair(fast_op(&Op, false, {self, a, b}, values),
                     [=](MultiTensor& call) { call.input(a).input(b).values(values); });
  }
  static Tensors functional(TensorList self, TensorList a, TensorList b, Scalars values) {
    const auto [op, fill] = setup(self, a, b, values);
    return foreach_functional(op, self, fill, [&] { return SlowList(self, a, b, values); });
  }
  static void in_place(TensorList self, TensorList a, TensorList b, Scalars values) {
    const auto [op, fill] = setup(self, a, b, values);
    foreach_in_place(op, self, fill, [&] { SlowInPlace(self, a, b, values); });
  }
  static Tensors packed(TensorList self, TensorList a, TensorList b, const at::Tensor& values) {
    at::native::check_foreach_api_restrictions(self, a, b);
    return functional(self, a, b,
                      at::native::convert_tensor_to_scalar_list(values, static_cast<int64_t>(self.size())));
  }
  static void packed_in_place(TensorList self, TensorList a, TensorList b, const at::Tensor& values) {
    at::native::check_foreach_api_restrictions(self, a, b);
    in_place(self, a, b,
             at::native::convert_tensor_to_scalar_list(values, static_cast<int64_t>(self.size())));
  }
};

// lerp takes a weight of three kinds: a list, one value, or a value for each tensor.
void add_weight(MultiTensor& call, TensorList weight) {
  call.input(weight);
}
void add_weight(MultiTensor& call, const c10::Scalar& weight) {
  call.value(weight);
}
void add_weight(MultiTensor& call, Scalars weights) {
  call.values(weights);
}
const PointwiseOp* lerp_op(TensorList self, TensorList end, TensorList weight) {
  at::native::check_foreach_api_restrictions(self, end, weight);
  return fast_op(&kLerp, true, {self, end, weight});
}
const PointwiseOp* lerp_op(TensorList self, TensorList end, const c10::Scalar& weight) {
  at::native::check_foreach_api_restrictions(self, end);
  return fast_op(&kLerp, true, {self, end}, weight);
}
const PointwiseOp* lerp_op(TensorList self, TensorList end, Scalars weights) {
  at::native::check_foreach_api_restrictions(self, end, weights);
  return fast_op(&kLerp, true, {self, end}, weights);
}

template <class Weight, auto SlowList, auto SlowInPlace>
struct Lerp {
  static Tensors functional(TensorList self, TensorList end, Weight weight) {
    return foreach_functional(
        lerp_op(self, end, weight), self,
        [&](MultiTensor& call) { call.input(end), add_weight(call, weight); },
        [&] { return SlowList(self, end, weight); });
  }
  static void in_place(TensorList self, TensorList end, Weight weight) {
    foreach_in_place(
        lerp_op(self, end, weight), self,
        [&](MultiTensor& call) { call.input(end), add_weight(call, weight); },
        [&] { SlowInPlace(self, end, weight); });
  }
};

// Whether copy_ may take the fast route. Dtypes may differ between the two lists, but not within one.
bool can_copy(TensorList self, TensorList source) {
  for (size_t i = 0; i < self.size(); ++i) {
    const at::Tensor &to = self[i], &from = source[i];
    if (to.device() != self[0].device() || from.device() != self[0].device() ||
        to.layout() != c10::kStrided || from.layout() != c10::kStrided ||
        to.scalar_type() != self[0].scalar_type() || from.scalar_type() != source[0].scalar_type() ||
        to.sizes() != from.sizes() || to.strides() != from.strides() || !to.is_non_overlapping_and_dense())
      return false;
  }
  // Dropping an imaginary part must warn, and the slow route does.
  return self[0].is_complex() == source[0].is_complex();
}

void copy_(TensorList self, TensorList source, bool non_blocking) {
  at::native::check_foreach_api_restrictions(self, source);
  if (can_copy(self, source) && fast_op(&kCopy, false, {self}) && fast_op(&kCopy, false, {source})) {
    const c10::DeviceGuard guard(self[0].device());
    if (MultiTensor(kCopy, self[0].scalar_type()).output(self).input(source).run())
      return bump_versions(self);
  }
  at::native::foreach_tensor_copy_list_kernel_slow_(self, source, non_blocking);
}

void zero_(TensorList self) {
  at::native::check_foreach_api_restrictions(self);
  if (fast_op(&kZero, false, {self})) {
    const c10::DeviceGuard guard(self[0].device());
    if (MultiTensor(kZero, self[0].scalar_type()).output(self).run()) return bump_versions(self);
  }
  at::native::foreach_tensor_zero_slow_(self);
}

template <class Form>
void register_form(torch::Library& m, const std::string& name, const char* overload) {
  m.impl((name + "." + overload).c_str(), &Form::functional);
  m.impl((name + "_." + overload).c_str(), &Form::in_place);
}

template <class WithScalar, class WithScalars>
void register_pointwise(torch::Library& m, const std::string& name) {
  register_form<WithScalar>(m, name, "Scalar");
  register_form<WithScalars>(m, name, "ScalarList");
  m.impl((name + ".Tensor").c_str(), &WithScalars::packed);
  m.impl((name + "_.Tensor").c_str(), &WithScalars::packed_in_place);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::native;
  register_pointwise<
      PointwiseScalar<kAddcmul, &foreach_tensor_addcmul_scalar_slow, &foreach_tensor_addcmul_scalar_slow_>,
      PointwiseScalars<kAddcmul, &foreach_tensor_addcmul_scalarlist_slow,
                       &foreach_tensor_addcmul_scalarlist_slow_>>(m, "_foreach_addcmul");
  register_pointwise<
      PointwiseScalar<kAddcdiv, &foreach_tensor_addcdiv_scalar_slow, &foreach_tensor_addcdiv_scalar_slow_>,
      PointwiseScalars<kAddcdiv, &foreach_tensor_addcdiv_scalarlist_slow,
                       &foreach_tensor_addcdiv_scalarlist_slow_>>(m, "_foreach_addcdiv");
  register_form<Lerp<TensorList, &foreach_tensor_ternary_lerp_slow, &foreach_tensor_ternary_lerp_slow_>>(
      m, "_foreach_lerp", "List");
  register_form<Lerp<const c10::Scalar&, &foreach_tensor_lerp_list_kernel_slow,
                     &foreach_tensor_lerp_list_kernel_slow_>>(m, "_foreach_lerp", "Scalar");
  register_form<Lerp<Scalars, &foreach_tensor_lerp_scalarlist_kernel_slow,
                     &foreach_tensor_lerp_scalarlist_kernel_slow_>>(m, "_foreach_lerp", "ScalarList");
  m.impl("_foreach_copy_", copy_);
  m.impl("_foreach_zero_", zero_);
}

}  // namespace dlb
