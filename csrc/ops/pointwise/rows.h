// Pointwise ATen ops as data: one row per op, and the templates that register whole tables of rows.
#pragma once
#include <torch/library.h>

#include <array>
#include <string_view>
#include <utility>

#include "codegen/registry.h"
#include "ops/common/pointwise.h"
#include "ops/fallback.h"
#include "primitives/pointwise/launch.h"

namespace dlb {

// The dtype of an op's result, as PyTorch's native_functions define it.
enum class Promote : uint8_t {
  Same,   // the common dtype of the inputs
  Float,  // the same, but integers become the default floating dtype
  Bool,   // compares in the common dtype, gives bool
  Truth,  // the same, but out= must be bool
  Fixed   // all inputs have one dtype already, another is an error; so has the result
};

// The same as the exported table says it (docs/op-table.md).
inline const char* word_of(Promote promote) {
  constexpr const char* kWords[] = {"common", "float", "bool", "truth", "fixed"};
  return kWords[static_cast<size_t>(promote)];
}

inline bool gives_bool(Promote promote) {
  return promote == Promote::Bool || promote == Promote::Truth;
}

// The overloads that a row registers. For structured ops out= is enough: functional and in-place follow from
// it. Others, and the structured ones that programs call most (a dispatch and an iterator less), name their
// functional overload too; the in-place one is called the same with "_" after the op's name.
enum Forms : uint8_t { kOut = 1, kFunctional = 2, kInplace = 4, kAll = 7 };

using Inputs = c10::ArrayRef<const at::Tensor*>;
using Scalars = c10::ArrayRef<c10::Scalar>;
// Raises what PyTorch raises for these arguments; `common` is the dtype of the computation.
using Check = void (*)(Inputs inputs, Scalars scalars, c10::ScalarType common);

// `name`.`overload` in the aten namespace is the out= variant.
struct PointwiseRow {
  const char* name;
  const char* overload;
  Promote promote;
  codegen::PointwiseOp op;
  uint8_t forms = kOut;
  const char* functional = "";  // overload name of the functional and in-place variants
  Check check = nullptr;
  bool may_overlap = false;  // elements of the result may share memory: computed twice they stay the same
};

// An op with the same body for floats and integers. Further fields by designated initialisers in the tables.
constexpr codegen::PointwiseOp real_op(const char* name, const char* body, uint8_t scalars = 0) {
  return {.name = name, .on_float = body, .on_int = body, .scalars = scalars};
}
// One of floating point numbers only, and of complex ones where it has a body for them.
constexpr codegen::PointwiseOp float_op(const char* name, const char* body, const char* complex = nullptr,
                                        uint8_t scalars = 0) {
  return {.name = name, .on_float = body, .on_complex = complex, .scalars = scalars};
}
constexpr codegen::PointwiseOp truth_op(const char* name, const char* body, const char* complex = nullptr) {
  return {.name = name,
          .on_float = body,
          .on_int = body,
          .on_bool = body,
          .on_complex = complex,
          .bool_result = true};
}
constexpr codegen::PointwiseOp takes_float8(codegen::PointwiseOp op) {
  op.takes_float8 = true;
  return op;
}

inline bool has_body(const codegen::PointwiseOp& op, c10::ScalarType type) {
  return op.body(codegen::class_of(codegen::compute_type(pointwise::dtype_in(op, type)))) != nullptr;
}

// Whether the device computes the op in the dtype; where not, the op runs on the CPU.
inline bool has_kernel(const codegen::PointwiseOp& op, c10::ScalarType type, c10::Device device) {
  return has_body(op, type) && device_computes(device, type);
}

// Computes an op into `out` (undefined: a new tensor; one of the inputs: in place) through a TensorIterator.
// `op` must be registered: kernels are found by its address. False when it has no kernel for
// the common dtype.
bool run_op(const codegen::PointwiseOp& op, Promote promote, Inputs inputs, Scalars scalars, at::Tensor& out,
            Check check = nullptr, bool may_overlap = false);
inline bool run_row(const PointwiseRow& row, Inputs inputs, Scalars scalars, at::Tensor& out) {
  return run_op(row.op, row.promote, inputs, scalars, out, row.check, row.may_overlap);
}

// The same for hand-written signatures without a fallback: raises NotImplementedError where the CPU does.
at::Tensor& run_or_raise(const codegen::PointwiseOp& op, at::Tensor& out, Inputs inputs, Scalars scalars = {},
                         Promote promote = Promote::Same);

// The same without an iterator for dense tensors of one shape and dtype, Python numbers among them. False
// when the arguments are not that simple; nothing has happened then.
bool run_row_flat(const PointwiseRow& row, Inputs inputs, Scalars scalars, at::Tensor& out);

// Raises as CPU kernels do when a scalar does not fit the dtype that it is used in.
void check_scalar_fits(const c10::Scalar& value, c10::ScalarType type);
// The same for kernels that take it in the type that they compute in, which is float for 16-bit numbers.
void check_scalar_fits_compute(const c10::Scalar& value, c10::ScalarType type);
// Checks of all scalars of a row by either.
void check_scalars_fit(Inputs, Scalars scalars, c10::ScalarType common);
void check_scalars_fit_compute(Inputs, Scalars scalars, c10::ScalarType common);

// The kernels of a row whose ATen signature is (self, Rest more tensors, S scalars[, out]).
template <class Rest, class S>
struct Signature;

template <size_t... Rest, size_t... S>
struct Signature<std::index_sequence<Rest...>, std::index_sequence<S...>> {
  template <size_t>
  using Tensor = const at::Tensor&;
  template <size_t>
  using Scalar = const c10::Scalar&;

  template <const auto& Row>
  static at::Tensor& out(const at::Tensor& self, Tensor<Rest>... rest, Scalar<S>... scalars,
                         at::Tensor& out) {
    const at::Tensor* inputs[] = {&self, &rest...};
    const std::array<c10::Scalar, sizeof...(S)> values{scalars...};
    if (!run_row(Row, inputs, values, out))
      call_cpu_fallback<at::Tensor&, const at::Tensor&, Tensor<Rest>..., Scalar<S>..., at::Tensor&>(
          (std::string("aten::") + Row.name).c_str(), Row.overload, self, rest..., scalars..., out);
    return out;
  }

  template <const auto& Row>
  static at::Tensor functional(const at::Tensor& self, Tensor<Rest>... rest, Scalar<S>... scalars) {
    const at::Tensor* inputs[] = {&self, &rest...};
    const std::array<c10::Scalar, sizeof...(S)> values{scalars...};
    at::Tensor result;
    if (run_row_flat(Row, inputs, values, result) || run_row(Row, inputs, values, result)) return result;
    return call_cpu_fallback<at::Tensor, const at::Tensor&, Tensor<Rest>..., Scalar<S>...>(
        (std::string("aten::") + Row.name).c_str(), Row.functional, self, rest..., scalars...);
  }

  template <const auto& Row>
  static at::Tensor& inplace(at::Tensor& self, Tensor<Rest>... rest, Scalar<S>... scalars) {
    const at::Tensor* inputs[] = {&self, &rest...};
    const std::array<c10::Scalar, sizeof...(S)> values{scalars...};
    if (!run_row_flat(Row, inputs, values, self) && !run_row(Row, inputs, values, self))
      call_cpu_fallback<at::Tensor&, at::Tensor&, Tensor<Rest>..., Scalar<S>...>(
          (std::string("aten::") + Row.name + "_").c_str(), Row.functional, self, rest..., scalars...);
    return self;
  }
};

// The place of a row in its table, and its op, for functions that run it in ways of their own.
template <size_t N>
constexpr size_t row_at(const std::array<PointwiseRow, N>& table, std::string_view id) {
  for (size_t i = 0; i < N; ++i)
    if (table[i].op.name == id) return i;
  throw "there is no such row";
}
template <size_t N>
constexpr const codegen::PointwiseOp& row_op(const std::array<PointwiseRow, N>& table, std::string_view id) {
  return table[row_at(table, id)].op;
}

// The row at a position of a table, as a template argument.
template <const auto& Table, size_t I>
inline constexpr const auto& kRowOf = Table[I];

template <class Kernels, const auto& Row>
void register_row(torch::Library& m) {
  codegen::OpRow registered{.pointwise = &Row.op, .promotion = word_of(Row.promote)};
  const auto implement = [&](const char* suffix, const char* overload, auto* kernel) {
    const std::string name = std::string(Row.name) + suffix + (*overload ? "." : "") + overload;
    m.impl(name.c_str(), kernel);
    registered.overloads.push_back("aten::" + name);
  };
  if constexpr (Row.forms & kOut) implement("", Row.overload, &Kernels::template out<Row>);
  if constexpr (Row.forms & kFunctional) implement("", Row.functional, &Kernels::template functional<Row>);
  if constexpr (Row.forms & kInplace) implement("_", Row.functional, &Kernels::template inplace<Row>);
  codegen::add_row(std::move(registered));
}

// Registers every row of a table of ops with this many tensor and scalar arguments.
template <const auto& Table, size_t Tensors, size_t ScalarCount>
void register_rows(torch::Library& m) {
  using Kernels = Signature<std::make_index_sequence<Tensors - 1>, std::make_index_sequence<ScalarCount>>;
  [&]<size_t... I>(std::index_sequence<I...>) {
    (register_row<Kernels, kRowOf<Table, I>>(m), ...);
  }
  (std::make_index_sequence<Table.size()>{});
}

}  // namespace dlb
