// Reductions over truth values: any, all, count_nonzero, equal.
#include <ATen/ops/all_meta.h>
#include <ATen/ops/any_meta.h>
#include <torch/library.h>

#include "ops/reduce/results.h"

namespace dlb {
namespace {

using codegen::ReduceBody;
using codegen::ReduceOp;
using codegen::ResultType;

// Inputs of any dtype are loaded as truth values.
constexpr ReduceOp kAny{.name = "any",
                        .on_bool = {.fields = {{{"int", "0"}}},
                                    .step = "a0 |= x0;",
                                    .combine = "a0 |= b0;",
                                    .finish = "y0 = a0;"},
                        .results = {ResultType::Truth}};
constexpr ReduceOp kAll{.name = "all",
                        .on_bool = {.fields = {{{"int", "1"}}},
                                    .step = "a0 &= x0;",
                                    .combine = "a0 &= b0;",
                                    .finish = "y0 = a0;"},
                        .results = {ResultType::Truth}};
constexpr ReduceOp kCountNonzero{.name = "count_nonzero",
                                 .on_bool = {.fields = {{{"long", "0"}}},
                                             .step = "a0 += x0;",
                                             .combine = "a0 += b0;",
                                             .finish = "y0 = a0;"},
                                 .results = {ResultType::Index}};
constexpr ReduceBody equal_body(const char* step) {
  return {.fields = {{{"int", "1"}}}, .step = step, .combine = "a0 &= b0;", .finish = "y0 = a0;"};
}
constexpr ReduceOp kEqual{.name = "equal",
                          .on_float = equal_body("a0 &= x0 == x1;"),
                          .on_int = equal_body("a0 &= x0 == x1;"),
                          .on_bool = equal_body("a0 &= x0 == x1;"),
                          .on_complex = equal_body("a0 &= x0.x == x1.x && x0.y == x1.y;"),
                          .results = {ResultType::Truth}};

#define DLB_TRUTH(op) op " " op ".all_out " op ".dim " op ".out " op ".dims " op ".dims_out"
const codegen::RegisterOps kTruthOps(codegen::RowKind::Reduce,
                                     {{kAny, DLB_TRUTH("any"), "truth"},
                                      {kAll, DLB_TRUTH("all"), "truth"},
                                      {kCountNonzero, "count_nonzero.dim_IntList", "truth"},
                                      {kEqual, "equal", "common"}});

// The three overloads of any and all. An empty list of dims reduces nothing, as PyTorch has it.
template <const ReduceOp& Op, class MetaDim, class MetaDims, class MetaAll>
struct Truth {
  static at::Tensor into(Results<MetaDim>& results, const at::Tensor& self, int64_t dim, bool keepdim) {
    const c10::DeviceGuard guard(self.device());
    results.meta(self, dim, keepdim);
    reduce(Op, self, mask_of(dim, self), at::kBool, results[0]);
    return results[0];
  }
  static at::Tensor into(Results<MetaDims>& results, const at::Tensor& self, at::OptionalIntArrayRef dim,
                         bool keepdim) {
    const c10::DeviceGuard guard(self.device());
    results.meta(self, dim, keepdim);
    reduce(Op, self, mask_of(dim, self, /*allow_empty=*/true), at::kBool, results[0]);
    return results[0];
  }
  static at::Tensor into(Results<MetaAll>& results, const at::Tensor& self) {
    const c10::DeviceGuard guard(self.device());
    results.meta(self);
    reduce(Op, self, mask_of(std::nullopt, self), at::kBool, results[0]);
    return results[0];
  }
  static at::Tensor dim(const at::Tensor& self, int64_t dim, bool keepdim) {
    Results<MetaDim> results;
    return into(results, self, dim, keepdim);
  }
  static at::Tensor& dim_out(const at::Tensor& self, int64_t dim, bool keepdim, at::Tensor& out) {
    Results<MetaDim> results(out);
    into(results, self, dim, keepdim);
    return out;
  }
  static at::Tensor dims(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim) {
    Results<MetaDims> results;
    return into(results, self, dim, keepdim);
  }
  static at::Tensor& dims_out(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                              at::Tensor& out) {
    Results<MetaDims> results(out);
    into(results, self, dim, keepdim);
    return out;
  }
  static at::Tensor all(const at::Tensor& self) {
    Results<MetaAll> results;
    return into(results, self);
  }
  static at::Tensor& all_out(const at::Tensor& self, at::Tensor& out) {
    Results<MetaAll> results(out);
    into(results, self);
    return out;
  }
  static void register_all(torch::Library& m, const std::string& name) {
    m.impl((name + ".dim").c_str(), dim);
    m.impl((name + ".out").c_str(), dim_out);
    m.impl((name + ".dims").c_str(), dims);
    m.impl((name + ".dims_out").c_str(), dims_out);
    m.impl(name.c_str(), all);
    m.impl((name + ".all_out").c_str(), all_out);
  }
};

at::Tensor count_nonzero(const at::Tensor& self, at::IntArrayRef dim) {
  const c10::DeviceGuard guard(self.device());
  const DimMask mask = mask_of(dim, self);
  at::Tensor out = new_result(at::native::shape_from_dim_mask(self, mask, false), at::kLong);
  reduce(kCountNonzero, self, mask, at::kBool, out);
  return out;
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(), "Expected all tensors to be on the same device, but found ",
              self.device(), " and ", other.device());
  if (!self.sizes().equals(other.sizes())) return false;
  if (self.numel() == 0) return true;
  const c10::DeviceGuard guard(self.device());
  at::Tensor out = new_result({}, at::kBool);
  const at::Tensor *inputs[] = {&self, &other}, *output = &out;
  run_reduce({kEqual,
              {output},
              {},
              inputs,
              mask_of(std::nullopt, self),
              c10::promoteTypes(self.scalar_type(), other.scalar_type())});
  return out.item().toBool();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::meta;
  Truth<kAny, structured_any_dim, structured_any_dims, structured_any>::register_all(m, "any");
  Truth<kAll, structured_all_dim, structured_all_dims, structured_all>::register_all(m, "all");
  m.impl("count_nonzero.dim_IntList", count_nonzero);
  m.impl("equal", equal);
}

}  // namespace dlb
