// _foreach ops of a list with another list, a scalar, a scalar for each tensor, or a 0-dim tensor.
#include <ATen/native/BinaryOps.h>
#include <ATen/ops/_foreach_add_native.h>
#include <ATen/ops/_foreach_clamp_max_native.h>
#include <ATen/ops/_foreach_clamp_min_native.h>
#include <ATen/ops/_foreach_div_native.h>
#include <ATen/ops/_foreach_mul_native.h>
#include <ATen/ops/_foreach_pow_native.h>
#include <ATen/ops/_foreach_sub_native.h>
#include <ATen/ops/result_type_native.h>

#include "ops/foreach/foreach.h"
#include "ops/pointwise/rows.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

// PyTorch's composite kernels of one op, for a scalar and for a list of scalars as the second operand.
struct Slow {
  Tensors (*scalar)(TensorList, const c10::Scalar&);
  void (*scalar_)(TensorList, const c10::Scalar&);
  Tensors (*scalars)(TensorList, Scalars);
  void (*scalars_)(TensorList, Scalars);
};
#define DLB_SLOW(name)                                               \
  Slow {                                                             \
    &at::native::foreach_tensor_##name##_scalar_kernel_slow,         \
        &at::native::foreach_tensor_##name##_scalar_kernel_slow_,    \
        &at::native::foreach_tensor_##name##_scalarlist_kernel_slow, \
        &at::native::foreach_tensor_##name##_scalarlist_kernel_slow_ \
  }

struct BinaryRow {
  const char* name;  // _foreach_NAME
  const char* op;    // id of the row; its s0, if it has one, is alpha
  bool float_result;
  bool refuses_bool;    // raises for a bool as the scalar
  bool checks_scalars;  // raises for a scalar that does not fit the dtype
  Slow slow;
};

// Integer powers take the slow route too: they raise for negative exponents.
constexpr std::array kBinary = {
    BinaryRow{"add", "add_alpha", false, false, false, DLB_SLOW(add)},
    BinaryRow{"sub", "sub_alpha", false, true, false, DLB_SLOW(sub)},
    BinaryRow{"mul", "mul", false, false, false, DLB_SLOW(mul)},
    BinaryRow{"div", "div", true, false, false, DLB_SLOW(div)},
    BinaryRow{"maximum", "maximum", false, false, true, DLB_SLOW(clamp_min)},
    BinaryRow{"minimum", "minimum", false, false, true, DLB_SLOW(clamp_max)},
    BinaryRow{"clamp_min", "maximum", false, false, true, DLB_SLOW(clamp_min)},
    BinaryRow{"clamp_max", "minimum", false, false, true, DLB_SLOW(clamp_max)},
    BinaryRow{"pow", "pow", true, false, false, DLB_SLOW(pow)},
};

// Whether pow() has a row of its own for an exponent, which the fast route does not take. Only complex
// numbers give other results by it.
bool has_own_power(const c10::Scalar& exponent) {
  for (const double power : {0.0, 1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0})
    if (exponent.equal(power)) return true;
  return false;
}

const codegen::PointwiseOp* op_of(const BinaryRow& row, at::ArrayRef<TensorList> lists,
                                  Scalars scalars = {}) {
  const bool complex_pow = std::string_view(row.op) == "pow" && lists[0][0].is_complex();
  for (const c10::Scalar& scalar : scalars)  // the slow route raises, or computes by another row
    if ((row.refuses_bool && scalar.isBoolean()) || (complex_pow && has_own_power(scalar)) ||
        (row.checks_scalars && lists[0][0].scalar_type() == at::kBool))
      return nullptr;
  const codegen::PointwiseOp* op = fast_op(codegen::find_pointwise(row.op), row.float_result, lists, scalars);
  if (op && row.checks_scalars)
    for (const c10::Scalar& scalar : scalars) check_scalar_fits(scalar, lists[0][0].scalar_type());
  return op;
}

// The dtype to which the op for one tensor rounds a number that is its second operand; Undefined where it
// takes it exactly.
c10::ScalarType number_type(const codegen::PointwiseOp& op, TensorList self) {
  return op.exact_number ? c10::ScalarType::Undefined : self[0].scalar_type();
}

// Adds alpha where the row's op takes it.
void add_alpha(MultiTensor& call, const codegen::PointwiseOp* op, TensorList self,
               const c10::Scalar& alpha = 1) {
  if (op->scalars > 0) call.scalar(op->rounded_scalars ? rounded_to(alpha, self[0].scalar_type()) : alpha);
}

template <size_t I>
struct WithScalar {
  static constexpr const BinaryRow& row = kBinary[I];
  static auto setup(TensorList self, const c10::Scalar& scalar) {
    at::native::check_foreach_api_restrictions(self);
    const codegen::PointwiseOp* op = op_of(row, {self}, scalar);
    return std::pair(op, [=, &scalar](MultiTensor& call) {
      call.value(scalar, number_type(*op, self)), add_alpha(call, op, self);
    });
  }
  static Tensors functional(TensorList self, const c10::Scalar& scalar) {
    const auto [op, fill] = setup(self, scalar);
    return foreach_functional(op, self, fill, [&] { return row.slow.scalar(self, scalar); });
  }
  static void in_place(TensorList self, const c10::Scalar& scalar) {
    const auto [op, fill] = setup(self, scalar);
    foreach_in_place(op, self, fill, [&] { row.slow.scalar_(self, scalar); });
  }
};

template <size_t I>
struct WithScalars {
  static constexpr const BinaryRow& row = kBinary[I];
  static auto setup(TensorList self, Scalars scalars) {
    at::native::check_foreach_api_restrictions(self, scalars);
    const codegen::PointwiseOp* op = op_of(row, {self}, scalars);
    return std::pair(op, [=](MultiTensor& call) {
      call.values(scalars, number_type(*op, self)), add_alpha(call, op, self);
    });
  }
  static Tensors functional(TensorList self, Scalars scalars) {
    const auto [op, fill] = setup(self, scalars);
    return foreach_functional(op, self, fill, [&] { return row.slow.scalars(self, scalars); });
  }
  static void in_place(TensorList self, Scalars scalars) {
    const auto [op, fill] = setup(self, scalars);
    foreach_in_place(op, self, fill, [&] { row.slow.scalars_(self, scalars); });
  }
};

// The op of two lists. `SlowList` and `SlowInPlace` are PyTorch's composite kernels; Alpha is
// (const c10::Scalar&) or nothing.
template <size_t I, auto SlowList, auto SlowInPlace, class... Alpha>
struct WithList {
  static constexpr const BinaryRow& row = kBinary[I];
  static auto setup(TensorList self, TensorList other, Alpha... alpha) {
    at::native::check_foreach_api_restrictions(self, other);
    const codegen::PointwiseOp* op = op_of(row, {self, other});
    if (op) (at::native::alpha_check(self[0].scalar_type(), alpha), ...);
    return std::pair(op, [=](MultiTensor& call) { call.input(other), add_alpha(call, op, self, alpha...); });
  }
  static Tensors functional(TensorList self, TensorList other, Alpha... alpha) {
    const auto [op, fill] = setup(self, other, alpha...);
    return foreach_functional(op, self, fill, [&] { return SlowList(self, other, alpha...); });
  }
  static void in_place(TensorList self, TensorList other, Alpha... alpha) {
    const auto [op, fill] = setup(self, other, alpha...);
    foreach_in_place(op, self, fill, [&] { SlowInPlace(self, other, alpha...); });
  }
};

// Whether every result keeps its tensor's dtype.
bool keeps_dtype(TensorList self, const at::Tensor& other) {
  if (other.scalar_type() == self[0].scalar_type()) return true;
  for (const at::Tensor& t : self)
    if (at::native::result_type(t, other) != t.scalar_type()) return false;
  return true;
}

// The op of a list and a tensor of one element.
template <size_t I, auto SlowTensor, auto SlowInPlace, class... Alpha>
struct WithTensor {
  static constexpr const BinaryRow& row = kBinary[I];
  static auto setup(TensorList self, const at::Tensor& other, Alpha... alpha) {
    at::native::check_foreach_api_restrictions(self);
    const bool fits = other.dim() == 0 && (other.device().is_cpu() || other.device() == self[0].device()) &&
                      keeps_dtype(self, other);
    const codegen::PointwiseOp* op = fits ? op_of(row, {self}) : nullptr;
    if (op) (at::native::alpha_check(self[0].scalar_type(), alpha), ...);
    return std::pair(op, [=, &other](MultiTensor& call) {
      call.single_or_value(other), add_alpha(call, op, self, alpha...);
    });
  }
  static Tensors functional(TensorList self, const at::Tensor& other, Alpha... alpha) {
    const auto [op, fill] = setup(self, other, alpha...);
    return foreach_functional(op, self, fill, [&] { return SlowTensor(self, other, alpha...); });
  }
  static void in_place(TensorList self, const at::Tensor& other, Alpha... alpha) {
    const auto [op, fill] = setup(self, other, alpha...);
    foreach_in_place(op, self, fill, [&] { SlowInPlace(self, other, alpha...); });
  }
};

Tensors scalar_pow_list(const c10::Scalar& self, TensorList exponent) {
  at::native::check_foreach_api_restrictions(exponent);
  const codegen::PointwiseOp* op = fast_op(codegen::find_pointwise("pow"), true, {exponent}, self);
  if (!op) return at::native::foreach_scalar_pow_list_kernel_slow(self, exponent);
  const c10::DeviceGuard guard(exponent[0].device());
  Tensors result;
  for (const at::Tensor& t : exponent) result.push_back(at::empty_like(t));
  MultiTensor(*op, exponent[0].scalar_type())
      .output(result)
      .value(self, exponent[0].scalar_type())
      .input(exponent)
      .run();
  return result;
}

template <class Form>
void register_form(torch::Library& m, const BinaryRow& row, const char* overload) {
  const std::string name = std::string("_foreach_") + row.name;
  m.impl((name + "." + overload).c_str(), &Form::functional);
  m.impl((name + "_." + overload).c_str(), &Form::in_place);
  codegen::add_overload(row.op, "aten::" + name + "." + overload);
  codegen::add_overload(row.op, "aten::" + name + "_." + overload);
}

template <size_t... I>
void register_scalar_forms(torch::Library& m, std::index_sequence<I...>) {
  (register_form<WithScalar<I>>(m, kBinary[I], "Scalar"), ...);
  (register_form<WithScalars<I>>(m, kBinary[I], "ScalarList"), ...);
}

template <size_t I, auto SlowList, auto SlowInPlace, class... Alpha>
void register_list(torch::Library& m) {
  register_form<WithList<I, SlowList, SlowInPlace, Alpha...>>(m, kBinary[I], "List");
}
template <size_t I, auto SlowTensor, auto SlowInPlace, class... Alpha>
void register_tensor(torch::Library& m) {
  register_form<WithTensor<I, SlowTensor, SlowInPlace, Alpha...>>(m, kBinary[I], "Tensor");
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::native;
  register_scalar_forms(m, std::make_index_sequence<kBinary.size()>{});
  register_list<0, &foreach_tensor_add_list_kernel_slow, &foreach_tensor_add_list_kernel_slow_,
                const c10::Scalar&>(m);
  register_list<1, &foreach_tensor_sub_list_kernel_slow, &foreach_tensor_sub_list_kernel_slow_,
                const c10::Scalar&>(m);
  register_list<2, &foreach_tensor_mul_list_kernel_slow, &foreach_tensor_mul_list_kernel_slow_>(m);
  register_list<3, &foreach_tensor_div_list_kernel_slow, &foreach_tensor_div_list_kernel_slow_>(m);
  register_list<4, &foreach_tensor_clamp_min_list_kernel_slow, &foreach_tensor_clamp_min_list_kernel_slow_>(
      m);
  register_list<5, &foreach_tensor_clamp_max_list_kernel_slow, &foreach_tensor_clamp_max_list_kernel_slow_>(
      m);
  register_list<6, &foreach_tensor_clamp_min_list_kernel_slow, &foreach_tensor_clamp_min_list_kernel_slow_>(
      m);
  register_list<7, &foreach_tensor_clamp_max_list_kernel_slow, &foreach_tensor_clamp_max_list_kernel_slow_>(
      m);
  register_list<8, &foreach_tensor_pow_list_kernel_slow, &foreach_tensor_pow_list_kernel_slow_>(m);
  register_tensor<0, &foreach_tensor_add_tensor_kernel_slow, &foreach_tensor_add_tensor_kernel_slow_,
                  const c10::Scalar&>(m);
  register_tensor<2, &foreach_tensor_mul_tensor_kernel_slow, &foreach_tensor_mul_tensor_kernel_slow_>(m);
  register_tensor<3, &foreach_tensor_div_tensor_kernel_slow, &foreach_tensor_div_tensor_kernel_slow_>(m);
  m.impl("_foreach_pow.ScalarAndTensor", scalar_pow_list);
  codegen::add_overload("pow", "aten::_foreach_pow.ScalarAndTensor");
}

}  // namespace dlb
