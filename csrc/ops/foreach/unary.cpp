// _foreach ops of one list, from the rows of the unary pointwise ops.
#include <ATen/ops/_foreach_abs_native.h>
#include <ATen/ops/_foreach_acos_native.h>
#include <ATen/ops/_foreach_asin_native.h>
#include <ATen/ops/_foreach_atan_native.h>
#include <ATen/ops/_foreach_ceil_native.h>
#include <ATen/ops/_foreach_cos_native.h>
#include <ATen/ops/_foreach_cosh_native.h>
#include <ATen/ops/_foreach_erf_native.h>
#include <ATen/ops/_foreach_erfc_native.h>
#include <ATen/ops/_foreach_exp_native.h>
#include <ATen/ops/_foreach_expm1_native.h>
#include <ATen/ops/_foreach_floor_native.h>
#include <ATen/ops/_foreach_frac_native.h>
#include <ATen/ops/_foreach_lgamma_native.h>
#include <ATen/ops/_foreach_log10_native.h>
#include <ATen/ops/_foreach_log1p_native.h>
#include <ATen/ops/_foreach_log2_native.h>
#include <ATen/ops/_foreach_log_native.h>
#include <ATen/ops/_foreach_neg_native.h>
#include <ATen/ops/_foreach_reciprocal_native.h>
#include <ATen/ops/_foreach_round_native.h>
#include <ATen/ops/_foreach_rsqrt_native.h>
#include <ATen/ops/_foreach_sigmoid_native.h>
#include <ATen/ops/_foreach_sign_native.h>
#include <ATen/ops/_foreach_sin_native.h>
#include <ATen/ops/_foreach_sinh_native.h>
#include <ATen/ops/_foreach_sqrt_native.h>
#include <ATen/ops/_foreach_tan_native.h>
#include <ATen/ops/_foreach_tanh_native.h>
#include <ATen/ops/_foreach_trunc_native.h>

#include "ops/foreach/foreach.h"

namespace dlb {
namespace {

struct UnaryRow {
  const char* name;   // id of the pointwise row
  bool float_result;  // the op turns integers into floats
  Tensors (*slow)(TensorList);
  void (*slow_in_place)(TensorList);
};

#define DLB_UNARY(name, float_result)                               \
  UnaryRow {                                                        \
#name, float_result, &at::native::foreach_tensor_##name##_slow, \
        &at::native::foreach_tensor_##name##_slow_                  \
  }

constexpr std::array kUnary = {
    DLB_UNARY(abs, false),   DLB_UNARY(acos, true),   DLB_UNARY(asin, true),    DLB_UNARY(atan, true),
    DLB_UNARY(ceil, false),  DLB_UNARY(cos, true),    DLB_UNARY(cosh, true),    DLB_UNARY(erf, true),
    DLB_UNARY(erfc, true),   DLB_UNARY(exp, true),    DLB_UNARY(expm1, true),   DLB_UNARY(floor, false),
    DLB_UNARY(frac, false),  DLB_UNARY(lgamma, true), DLB_UNARY(log, true),     DLB_UNARY(log10, true),
    DLB_UNARY(log1p, true),  DLB_UNARY(log2, true),   DLB_UNARY(neg, false),    DLB_UNARY(reciprocal, true),
    DLB_UNARY(round, false), DLB_UNARY(rsqrt, true),  DLB_UNARY(sigmoid, true), DLB_UNARY(sign, false),
    DLB_UNARY(sin, true),    DLB_UNARY(sinh, true),   DLB_UNARY(sqrt, true),    DLB_UNARY(tan, true),
    DLB_UNARY(tanh, true),   DLB_UNARY(trunc, false),
};

template <size_t I>
struct Unary {
  static const codegen::PointwiseOp* op(TensorList self) {
    at::native::check_foreach_api_restrictions(self);
    static const codegen::PointwiseOp* const row = codegen::find_pointwise(kUnary[I].name);
    return fast_op(row, kUnary[I].float_result, {self});
  }
  static Tensors functional(TensorList self) {
    return foreach_functional(
        op(self), self, [](MultiTensor&) {}, [&] { return kUnary[I].slow(self); });
  }
  static void in_place(TensorList self) {
    foreach_in_place(
        op(self), self, [](MultiTensor&) {}, [&] { kUnary[I].slow_in_place(self); });
  }
};

template <size_t... I>
void register_unary(torch::Library& m, std::index_sequence<I...>) {
  const auto implement = [&](const char* id, const std::string& name, auto* kernel) {
    m.impl(name.c_str(), kernel);
    codegen::add_overload(id, "aten::" + name);
  };
  const std::string prefix = "_foreach_";
  (implement(kUnary[I].name, prefix + kUnary[I].name, &Unary<I>::functional), ...);
  (implement(kUnary[I].name, prefix + kUnary[I].name + "_", &Unary<I>::in_place), ...);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_unary(m, std::make_index_sequence<kUnary.size()>{});
}

}  // namespace dlb
