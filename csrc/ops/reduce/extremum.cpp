// Greatest and least elements, with and without their positions: amax, max, argmax, aminmax and theirs.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/amax_meta.h>
#include <ATen/ops/amin_meta.h>
#include <ATen/ops/aminmax_meta.h>
#include <ATen/ops/argmax_meta.h>
#include <ATen/ops/argmin_meta.h>
#include <ATen/ops/max_meta.h>
#include <ATen/ops/min_meta.h>
#include <torch/library.h>

#include "ops/reduce/results.h"

namespace dlb {
namespace {

using codegen::Field;
using codegen::ReduceBody;
using codegen::ReduceOp;
using codegen::ResultType;

// NaN wins over any number, and the first of equals wins. One comparison chooses the better, as an
// instruction does that vectors have, and one finds NaN.
constexpr ReduceBody kMaxFloat{.fields = {{{"T", "T_LOWEST"}}},
                               .step = "const T better = x0 > a0 ? x0 : a0; a0 = isnan(x0) ? x0 : better;",
                               .combine = "const T better = b0 > a0 ? b0 : a0; a0 = isnan(b0) ? b0 : better;",
                               .finish = "y0 = a0;"};
constexpr ReduceBody kMinFloat{.fields = {{{"T", "T_HIGHEST"}}},
                               .step = "const T better = x0 < a0 ? x0 : a0; a0 = isnan(x0) ? x0 : better;",
                               .combine = "const T better = b0 < a0 ? b0 : a0; a0 = isnan(b0) ? b0 : better;",
                               .finish = "y0 = a0;"};
constexpr ReduceBody kMaxInt{.fields = {{{"T", "T_LOWEST"}}},
                             .step = "a0 = max(a0, x0);",
                             .combine = "a0 = max(a0, b0);",
                             .finish = "y0 = a0;"};
constexpr ReduceBody kMinInt{.fields = {{{"T", "T_HIGHEST"}}},
                             .step = "a0 = min(a0, x0);",
                             .combine = "a0 = min(a0, b0);",
                             .finish = "y0 = a0;"};
constexpr ReduceOp kAmax{.name = "amax", .on_float = kMaxFloat, .on_int = kMaxInt, .on_bool = kMaxInt};
constexpr ReduceOp kAmin{.name = "amin", .on_float = kMinFloat, .on_int = kMinInt, .on_bool = kMinInt};
constexpr ReduceBody kBothFloat{.fields = {{{"T", "T_HIGHEST"}, {"T", "T_LOWEST"}}},
                                .step =
                                    "const T least = x0 < a0 ? x0 : a0, most = x0 > a1 ? x0 : a1; "
                                    "a0 = isnan(x0) ? x0 : least; a1 = isnan(x0) ? x0 : most;",
                                .combine =
                                    "const T least = b0 < a0 ? b0 : a0, most = b1 > a1 ? b1 : a1; "
                                    "a0 = isnan(b0) ? b0 : least; a1 = isnan(b1) ? b1 : most;",
                                .finish = "y0 = a0; y1 = a1;"};
constexpr ReduceBody kBothInt{.fields = {{{"T", "T_HIGHEST"}, {"T", "T_LOWEST"}}},
                              .step = "a0 = min(a0, x0); a1 = max(a1, x0);",
                              .combine = "a0 = min(a0, b0); a1 = max(a1, b1);",
                              .finish = "y0 = a0; y1 = a1;"};
constexpr ReduceOp kAminmax{
    .name = "aminmax", .on_float = kBothFloat, .on_int = kBothInt, .on_bool = kBothInt};

// With positions. The neutral element is the worst value at position 0: where nothing beats it, the first
// element is the answer.
#define DLB_ARG_STEP(better) \
  "const int take = x0 " better " a0 || (isnan(x0) && !isnan(a0)); a0 = take ? x0 : a0; a1 = take ? i : a1;"
#define DLB_ARG_COMBINE(better)                             \
  "const int equal = b0 == a0 || (isnan(b0) && isnan(a0));" \
  "const int take = b0 " better                             \
  " a0 || (isnan(b0) && !isnan(a0)) || (equal && b1 < a1);" \
  "a0 = take ? b0 : a0; a1 = take ? b1 : a1;"
#define DLB_ARG_STEP_INT(better) "const int take = x0 " better " a0; a0 = take ? x0 : a0; a1 = take ? i : a1;"
#define DLB_ARG_COMBINE_INT(better) \
  "const int take = b0 " better     \
  " a0 || (b0 == a0 && b1 < a1);"   \
  "a0 = take ? b0 : a0; a1 = take ? b1 : a1;"
constexpr ReduceBody arg_body(const char* init, const char* step, const char* combine, const char* finish) {
  return {.fields = {{{"T", init}, {"long", "0"}}}, .step = step, .combine = combine, .finish = finish};
}
constexpr ReduceOp arg_op(const char* name, bool max, bool values, bool on_bool) {
  const char* const finish = values ? "y0 = a0; y1 = a1;" : "y0 = a1;";
  const ReduceBody real = max ? arg_body("T_LOWEST", DLB_ARG_STEP(">"), DLB_ARG_COMBINE(">"), finish)
                              : arg_body("T_HIGHEST", DLB_ARG_STEP("<"), DLB_ARG_COMBINE("<"), finish);
  const ReduceBody integer =
      max ? arg_body("T_LOWEST", DLB_ARG_STEP_INT(">"), DLB_ARG_COMBINE_INT(">"), finish)
          : arg_body("T_HIGHEST", DLB_ARG_STEP_INT("<"), DLB_ARG_COMBINE_INT("<"), finish);
  ReduceOp op{.name = name, .on_float = real, .on_int = integer, .ordered = true};
  if (on_bool) op.on_bool = integer;
  op.results = values ? std::array<ResultType, codegen::kMaxResults>{ResultType::Same, ResultType::Index}
                      : std::array<ResultType, codegen::kMaxResults>{ResultType::Index};
  return op;
}
constexpr ReduceOp kArgmax = arg_op("argmax", true, false, false);
constexpr ReduceOp kArgmin = arg_op("argmin", false, false, false);
constexpr ReduceOp kMaxWithIndex = arg_op("max", true, true, true);
constexpr ReduceOp kMinWithIndex = arg_op("min", false, true, true);

const codegen::RegisterOps kExtremumOps(codegen::RowKind::Reduce,
                                        {{kAmax, "amax amax.out max max.unary_out", "first"},
                                         {kAmin, "amin amin.out min min.unary_out", "first"},
                                         {kAminmax, "aminmax aminmax.out", "first"},
                                         {kArgmax, "argmax argmax.out", "first"},
                                         {kArgmin, "argmin argmin.out", "first"},
                                         {kMaxWithIndex, "max.dim max.dim_max", "first"},
                                         {kMinWithIndex, "min.dim min.dim_min", "first"}});

// amax and amin.
template <class Meta, const ReduceOp& Op>
struct Amax {
  static at::Tensor into(at::Tensor out, const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
    const c10::DeviceGuard guard(self.device());
    Results<Meta> results(out);
    results.meta(self, dim, keepdim);
    reduce(Op, self, mask_of(dim, self), self.scalar_type(), results[0]);
    return results[0];
  }
  static at::Tensor call(const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
    return into({}, self, dim, keepdim);
  }
  static at::Tensor& call_out(const at::Tensor& self, at::IntArrayRef dim, bool keepdim, at::Tensor& out) {
    into(out, self, dim, keepdim);
    return out;
  }
};

// max() and min() of all elements.
template <const ReduceOp& Op>
struct MaxAll {
  static void check(const at::Tensor& self) {
    TORCH_CHECK(self.numel() > 0, Op.name + 1,
                "(): Expected reduction dim to be specified for input.numel() == 0. ",
                "Specify the reduction dim with the 'dim' argument.");
  }
  static at::Tensor call(const at::Tensor& self) {
    const c10::DeviceGuard guard(self.device());
    check(self);
    at::Tensor out = new_result({}, self.scalar_type());
    reduce(Op, self, mask_of(std::nullopt, self), self.scalar_type(), out);
    return out;
  }
  static at::Tensor& call_out(const at::Tensor& self, at::Tensor& out) {
    const c10::DeviceGuard guard(self.device());
    check(self);
    TORCH_CHECK(out.device() == self.device(), "Expected out tensor to have device ", self.device(),
                ", but got ", out.device(), " instead");
    TORCH_CHECK(c10::canCast(self.scalar_type(), out.scalar_type()), "result type ", self.scalar_type(),
                " can't be cast to the desired output type ", out.scalar_type());
    at::native::resize_output(out, {});
    if (out.scalar_type() != self.scalar_type()) return out.copy_(call(self));
    reduce(Op, self, mask_of(std::nullopt, self), self.scalar_type(), out);
    return out;
  }
};

// max(dim) and min(dim): values and the first positions.
template <class Meta, const ReduceOp& Op>
struct MaxDim {
  using Pair = std::tuple<at::Tensor, at::Tensor>;
  static Pair into(at::Tensor values, at::Tensor indices, const at::Tensor& self, int64_t dim, bool keepdim) {
    const c10::DeviceGuard guard(self.device());
    Results<Meta, 2> results(values, indices);
    results.meta(self, dim, keepdim);
    results.check_overlap(self);
    const at::Tensor *input = &self, *outputs[] = {&results[0], &results[1]};
    run_reduce({Op, outputs, {}, {input}, mask_of(dim, self), self.scalar_type()});
    return {results[0], results[1]};
  }
  static Pair call(const at::Tensor& self, int64_t dim, bool keepdim) {
    return into({}, {}, self, dim, keepdim);
  }
  static std::tuple<at::Tensor&, at::Tensor&> call_out(const at::Tensor& self, int64_t dim, bool keepdim,
                                                       at::Tensor& values, at::Tensor& indices) {
    into(values, indices, self, dim, keepdim);
    return {values, indices};
  }
};

template <class Meta, const ReduceOp& Op>
struct Arg {
  static at::Tensor into(at::Tensor out, const at::Tensor& self, std::optional<int64_t> dim, bool keepdim) {
    const c10::DeviceGuard guard(self.device());
    Results<Meta> results(out);
    results.meta(self, dim, keepdim);
    reduce(Op, self, dim ? mask_of(*dim, self) : mask_of(std::nullopt, self), self.scalar_type(), results[0]);
    return results[0];
  }
  static at::Tensor call(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim) {
    return into({}, self, dim, keepdim);
  }
  static at::Tensor& call_out(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim,
                              at::Tensor& out) {
    into(out, self, dim, keepdim);
    return out;
  }
};

std::tuple<at::Tensor, at::Tensor> aminmax_into(at::Tensor min, at::Tensor max, const at::Tensor& self,
                                                std::optional<int64_t> dim, bool keepdim) {
  const c10::DeviceGuard guard(self.device());
  Results<at::meta::structured_aminmax, 2> results(min, max);
  results.meta(self, dim, keepdim);
  if (dim) results.check_overlap(self);
  const at::Tensor *input = &self, *outputs[] = {&results[0], &results[1]};
  const DimMask mask = dim ? mask_of(*dim, self) : mask_of(std::nullopt, self);
  run_reduce({kAminmax, outputs, {}, {input}, mask, self.scalar_type()});
  return {results[0], results[1]};
}
std::tuple<at::Tensor, at::Tensor> aminmax(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  return aminmax_into({}, {}, self, dim, keepdim);
}
std::tuple<at::Tensor&, at::Tensor&> aminmax_out(const at::Tensor& self, std::optional<int64_t> dim,
                                                 bool keepdim, at::Tensor& min, at::Tensor& max) {
  aminmax_into(min, max, self, dim, keepdim);
  return {min, max};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("amax", Amax<at::meta::structured_amax, kAmax>::call);
  m.impl("amax.out", Amax<at::meta::structured_amax, kAmax>::call_out);
  m.impl("amin", Amax<at::meta::structured_amin, kAmin>::call);
  m.impl("amin.out", Amax<at::meta::structured_amin, kAmin>::call_out);
  m.impl("max", MaxAll<kAmax>::call);
  m.impl("max.unary_out", MaxAll<kAmax>::call_out);
  m.impl("min", MaxAll<kAmin>::call);
  m.impl("min.unary_out", MaxAll<kAmin>::call_out);
  m.impl("max.dim", MaxDim<at::meta::structured_max_dim, kMaxWithIndex>::call);
  m.impl("max.dim_max", MaxDim<at::meta::structured_max_dim, kMaxWithIndex>::call_out);
  m.impl("min.dim", MaxDim<at::meta::structured_min_dim, kMinWithIndex>::call);
  m.impl("min.dim_min", MaxDim<at::meta::structured_min_dim, kMinWithIndex>::call_out);
  m.impl("argmax", Arg<at::meta::structured_argmax, kArgmax>::call);
  m.impl("argmax.out", Arg<at::meta::structured_argmax, kArgmax>::call_out);
  m.impl("argmin", Arg<at::meta::structured_argmin, kArgmin>::call);
  m.impl("argmin.out", Arg<at::meta::structured_argmin, kArgmin>::call_out);
  m.impl("aminmax", aminmax);
  m.impl("aminmax.out", aminmax_out);
}

}  // namespace dlb
