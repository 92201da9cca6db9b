// Pointwise ATen ops as data: one row per op, and the few function templates that register whole tables of
// rows.
#pragma once
#include <ATen/TensorIterator.h>
#include <torch/library.h>

#include <array>
#include <utility>

#include "ops/common/pointwise.h"
#include "ops/fallback.h"

namespace dlb {

// Which dtype an op's result has, as PyTorch's native_functions define it.
enum class Promote : uint8_t {
  Same,   // the common dtype of the inputs
  Float,  // the same, but integers become the default floating dtype
  Bool    // compares in the common dtype, gives bool
};

// `schema`: name.overload in the aten namespace, an out= variant; functional and in-place forms follow from
// it.
struct PointwiseRow {
  const char* name;
  const char* overload;
  Promote promote;
  codegen::PointwiseOp op;
};

// An op with the same body for floats and integers. Further fields by designated initialisers in the tables.
constexpr codegen::PointwiseOp real_op(const char* name, const char* body) {
  return {.name = name, .on_float = body, .on_int = body};
}
constexpr codegen::PointwiseOp float_op(const char* name, const char* body, const char* complex = nullptr,
                                        const char* functions = nullptr) {
  return {.name = name, .on_float = body, .on_complex = complex, .functions = functions};
}
constexpr codegen::PointwiseOp truth_op(const char* name, const char* body, const char* complex = nullptr) {
  return {.name = name,
          .on_float = body,
          .on_int = body,
          .on_bool = body,
          .on_complex = complex,
          .bool_result = true};
}

inline bool has_body(const codegen::PointwiseOp& op, c10::ScalarType type) {
  return op.body(codegen::class_of(codegen::compute_type(dtype_of(type, op.name)))) != nullptr;
}

// A built iterator for a row: computes, or says that the row has no body for its dtype.
inline bool try_pointwise(const PointwiseRow& row, at::TensorIteratorBase& iter,
                          c10::ArrayRef<c10::Scalar> scalars = {}) {
  if (!has_body(row.op, iter.common_dtype())) return false;
  run_pointwise(row.op, iter, scalars);
  return true;
}

inline at::TensorIterator unary_iterator(Promote promote, at::Tensor& out, const at::Tensor& self) {
  switch (promote) {
    case Promote::Float:
      return at::TensorIterator::unary_float_op(out, self);
    case Promote::Bool:
      return at::TensorIteratorConfig()
          .set_check_mem_overlap(true)
          .add_output(out)
          .add_const_input(self)
          .check_all_same_dtype(false)
          .declare_static_dtype(at::kBool)
          .promote_inputs_to_common_dtype(true)
          .build();
    default:
      return at::TensorIterator::unary_op(out, self);
  }
}

inline at::TensorIterator binary_iterator(Promote promote, at::Tensor& out, const at::Tensor& a,
                                          const at::Tensor& b) {
  switch (promote) {
    case Promote::Float:
      return at::TensorIterator::binary_float_op(out, a, b);
    case Promote::Bool:
      return at::TensorIterator::comparison_op(out, a, b);
    default:
      return at::TensorIterator::binary_op(out, a, b);
  }
}

// Registers every row of a table through Make<Table, I>::call, a function of the op's C++ signature.
template <template <const auto&, size_t> class Make, const auto& Table, size_t... I>
void register_rows(torch::Library& m, std::index_sequence<I...>) {
  (m.impl((std::string(Table[I].name) + "." + Table[I].overload).c_str(), &Make<Table, I>::call), ...);
}
template <template <const auto&, size_t> class Make, const auto& Table>
void register_rows(torch::Library& m) {
  register_rows<Make, Table>(m, std::make_index_sequence<Table.size()>{});
}

}  // namespace dlb
