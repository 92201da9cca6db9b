// Expressions of op rows: what one kernel computes in place of a chain of launches, with the values that the
// launches would have given. A row's body is the only definition of what it computes, whether it runs by
// itself or in an expression.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "codegen/dtype.h"

namespace dlb::codegen {

struct PointwiseOp;

struct Expression {
  // Where an argument comes from.
  enum class From : uint8_t {
    Input,   // tensor x<index>, of whatever dtype
    Scalar,  // s<index>, an argument of the kernel
    Number,  // numbers[index], a part of the text
    Node     // result number `result` of nodes[index]
  };
  struct Value {
    From from = From::Input;
    uint8_t index = 0, result = 0;
  };
  // One row. `type` is what its operands are promoted to and its results rounded to: a row of bf16 computes
  // in float, as it does by itself.
  struct Node {
    const PointwiseOp* op = nullptr;
    DType type = DType::F32;
    uint8_t inputs = 0, results = 1;
    std::vector<Value> arguments;  // inputs, then scalars
  };

  size_t inputs = 0;
  // The compute type in which each scalar arrives: the widest of the rows that take it, 64 bits for integers.
  std::vector<DType> scalars;
  std::vector<double> numbers;
  std::vector<Node> nodes;     // each after those whose results it takes
  std::vector<Value> results;  // y0, y1 ..

  // The dtype of a node's result.
  static DType result_dtype(const Node& node);
  // The dtype of an input or of a node's result, given the inputs'.
  DType dtype_of(const Value& value, const DType* input_dtypes) const;
};

struct ReduceOp;

// A reduction row with what its operands are computed by, element for element, and what becomes of its
// results.
struct ReduceExpression {
  Expression before;  // its results are the row's inputs, then the mapped results
  const ReduceOp* op = nullptr;
  DType type = DType::F32;  // as Expression::Node::type
  uint8_t inputs = 0, results = 1;
  std::vector<Expression::Value> scalars;  // the row's: scalars and numbers, which both parts have
  Expression after;                        // its inputs are the row's results
  std::vector<bool> reduced;               // of y0, y1 ..: whether it is a result of `after`, or a mapped one

  // The dtype of the row's result.
  DType result_dtype(size_t result) const;
  DType dtype_of(size_t y, const DType* input_dtypes) const;
};

// Reads statements such as "v = mul.bf16(x0, x1); y0 = gelu_tanh.bf16(v); y1 = v". A statement gives names to
// a row's results, or another name to a value. Arguments are inputs x0, x1 .., scalars s0, s1 .., names, and
// numbers. What is called y0, y1 .. at the end are the results. Types are those of name_of().
//
// One row may be a reduction: "v = mul.f32(x0, x0); r = sum.f32(v); y0 = sqrt.f32(r)". Rows that take its
// results take nothing else but those, scalars and numbers.
//
// Throws std::invalid_argument, which names the statement, for text that is none of this; for a row that
// there is not, that has no body for the type or not that many operands, or that reports errors; for a number
// that the row's type does not hold; and for a scalar that rows of integers and rows of floats take.
std::variant<Expression, ReduceExpression> parse_rows(std::string_view text);

}  // namespace dlb::codegen
