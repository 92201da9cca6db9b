// Binary pointwise ops: arithmetic, comparison, logic. Tables of rows and their registration.
#include <ATen/native/BinaryOps.h>

#include "ops/pointwise/rows.h"

namespace dlb {
namespace {

// NaN wins over any number, as in PyTorch and unlike fmax.
#define DLB_MAX "x0 > x1 || isnan(x0) ? x0 : x1"
#define DLB_MIN "x0 < x1 || isnan(x0) ? x0 : x1"

constexpr std::array kBinary = {
    PointwiseRow{"mul",
                 "out",
                 Promote::Same,
                 {.name = "mul",
                  .on_float = "x0 * x1",
                  .on_int = "x0 * x1",
                  .on_bool = "x0 & x1",
                  .on_complex = "dlb_cmul(x0, x1)"}},
    PointwiseRow{"div", "out", Promote::Float, float_op("div", "x0 / x1", "dlb_cdiv(x0, x1)")},
    PointwiseRow{"maximum",
                 "out",
                 Promote::Same,
                 {.name = "maximum", .on_float = DLB_MAX, .on_int = "max(x0, x1)", .on_bool = "x0 | x1"}},
    PointwiseRow{"minimum",
                 "out",
                 Promote::Same,
                 {.name = "minimum", .on_float = DLB_MIN, .on_int = "min(x0, x1)", .on_bool = "x0 & x1"}},
    PointwiseRow{"bitwise_and",
                 "Tensor_out",
                 Promote::Same,
                 {.name = "bitwise_and", .on_int = "x0 & x1", .on_bool = "x0 & x1"}},
    PointwiseRow{"bitwise_or",
                 "Tensor_out",
                 Promote::Same,
                 {.name = "bitwise_or", .on_int = "x0 | x1", .on_bool = "x0 | x1"}},
    PointwiseRow{"bitwise_xor",
                 "Tensor_out",
                 Promote::Same,
                 {.name = "bitwise_xor", .on_int = "x0 ^ x1", .on_bool = "x0 ^ x1"}},
    PointwiseRow{"logical_and", "out", Promote::Bool,
                 truth_op("logical_and", "x0 != 0 && x1 != 0",
                          "(x0.x != 0 || x0.y != 0) && (x1.x != 0 || x1.y != 0)")},
    PointwiseRow{
        "logical_or", "out", Promote::Bool,
        truth_op("logical_or", "x0 != 0 || x1 != 0", "x0.x != 0 || x0.y != 0 || x1.x != 0 || x1.y != 0")},
    PointwiseRow{"logical_xor", "out", Promote::Bool,
                 truth_op("logical_xor", "(x0 != 0) != (x1 != 0)",
                          "(x0.x != 0 || x0.y != 0) != (x1.x != 0 || x1.y != 0)")},
    PointwiseRow{"eq", "Tensor_out", Promote::Bool,
                 truth_op("eq", "x0 == x1", "x0.x == x1.x && x0.y == x1.y")},
    PointwiseRow{"ne", "Tensor_out", Promote::Bool,
                 truth_op("ne", "x0 != x1", "x0.x != x1.x || x0.y != x1.y")},
    PointwiseRow{"lt", "Tensor_out", Promote::Bool, truth_op("lt", "x0 < x1")},
    PointwiseRow{"le", "Tensor_out", Promote::Bool, truth_op("le", "x0 <= x1")},
    PointwiseRow{"gt", "Tensor_out", Promote::Bool, truth_op("gt", "x0 > x1")},
    PointwiseRow{"ge", "Tensor_out", Promote::Bool, truth_op("ge", "x0 >= x1")},
};

template <const auto& Table, size_t I>
struct Binary {
  static at::Tensor& call(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
    auto iter = binary_iterator(Table[I].promote, out, self, other);
    if (!try_pointwise(Table[I], iter))
      return call_cpu_fallback<at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor&>(
          (std::string("aten::") + Table[I].name).c_str(), Table[I].overload, self, other, out);
    return out;
  }
};

// add and sub: a second factor, alpha.
constexpr std::array kAlpha = {
    PointwiseRow{"add",
                 "out",
                 Promote::Same,
                 {.name = "add_alpha",
                  .on_float = "x0 + s0 * x1",
                  .on_int = "x0 + s0 * x1",
                  .on_bool = "x0 | (s0 & x1)",
                  .on_complex = "x0 + dlb_cmul(s0, x1)",
                  .scalars = 1}},
    PointwiseRow{"sub",
                 "out",
                 Promote::Same,
                 {.name = "sub_alpha",
                  .on_float = "x0 - s0 * x1",
                  .on_int = "x0 - s0 * x1",
                  .on_complex = "x0 - dlb_cmul(s0, x1)",
                  .scalars = 1}},
};

template <const auto& Table, size_t I>
struct Alpha {
  static at::Tensor& call(const at::Tensor& self, const at::Tensor& other, const c10::Scalar& alpha,
                          at::Tensor& out) {
    if constexpr (I == 1) at::native::sub_check(self, other);
    auto iter = binary_iterator(Table[I].promote, out, self, other);
    at::native::alpha_check(iter.common_dtype(), alpha);
    if (!try_pointwise(Table[I], iter, alpha))
      return call_cpu_fallback<at::Tensor&, const at::Tensor&, const at::Tensor&, const c10::Scalar&,
                               at::Tensor&>((std::string("aten::") + Table[I].name).c_str(),
                                            Table[I].overload, self, other, alpha, out);
    return out;
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_rows<Binary, kBinary>(m);
  register_rows<Alpha, kAlpha>(m);
}

}  // namespace dlb
