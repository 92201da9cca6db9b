// Writes an expression as a function: a call of its own function for each row, one after the other.
#include "codegen/expression_text.h"

#include <bit>
#include <cstdint>

#include "codegen/text.h"

namespace dlb::codegen {
namespace {

class ExpressionWriter {
 public:
  // `inputs`: dtypes of x0...
  ExpressionWriter(const Expression& expression, const DType* inputs)
      : expression_(expression), inputs_(inputs), scalar_(expression.scalar_type()) {}

  // Adds the rows' functions to `functions`, and returns the text that calls them.
  std::string function(const std::string& name, OpFunctions& functions) const {
    std::string s = "DLB_INLINE void " + name + "(";
    s += each(expression_.inputs, [&](size_t i) { return parameter(compute_type(inputs_[i]), "x", i); });
    s += each(expression_.scalars, [&](size_t i) { return parameter(scalar_, "s", i); });
    s += each(
        expression_.results.size(),
        [&](size_t o) {
          return std::string(compute_name(compute_type(dtype_of(expression_.results[o])))) + "* p_y" + num(o);
        },
        ", ");
    s += ") {\n";
    for (size_t n = 0; n < expression_.nodes.size(); ++n) s += call(n, functions);
    s += each(expression_.results.size(),
              [&](size_t o) { return "  *p_y" + num(o) + " = " + plain(expression_.results[o]) + ";\n"; });
    return s + "}\n";
  }

  DType dtype_of(const Expression::Value& value) const { return expression_.dtype_of(value, inputs_); }

 private:
  static std::string parameter(DType type, const char* letter, size_t i) {
    return std::string("const ") + compute_name(type) + " " + letter + num(i) + ", ";
  }

  // The value in the compute type of its dtype.
  std::string plain(const Expression::Value& value) const {
    switch (value.from) {
      case Expression::From::Input:
        return "x" + num(value.index);
      case Expression::From::Scalar:
        return "s" + num(value.index);
      case Expression::From::Node:
        return "v" + num(value.index) + "_" + num(value.result);
      case Expression::From::Number:
        return literal(expression_.numbers[value.index], scalar_);
    }
    return {};
  }

  // The value as a row's argument number `place`.
  std::string argument(const Expression::Node& node, size_t place) const {
    const Expression::Value& value = node.arguments[place];
    const DType compute = compute_type(node.type);
    const bool is_number = value.from == Expression::From::Scalar || value.from == Expression::From::Number;
    std::string text = value.from == Expression::From::Number
                           ? literal(expression_.numbers[value.index], compute)
                           : convert(compute_type(dtype_of(value)), compute, plain(value));
    // As by themselves: a number is rounded like a tensor, where the row does not say otherwise.
    const bool exact =
        is_number && (place < node.inputs ? node.op->exact_number && place == 1 : !node.op->rounded_scalars);
    const DType from = is_number ? DType::F64 : dtype_of(value);
    return loses_digits(from, node.type) && !exact ? rounded(compute, node.type, text) : text;
  }

  // Declares the node's results and calls its row.
  std::string call(size_t n, OpFunctions& functions) const {
    const Expression::Node& node = expression_.nodes[n];
    const DType compute = compute_type(node.type), result = result_type(*node.op, compute);
    const auto y = [&](size_t o) { return "v" + num(n) + "_" + num(o); };
    std::string s = std::string("  ") + compute_name(result) + " " + each(node.results, y, ", ") + ";\n  ";
    s += functions.add(*node.op, compute, node.inputs, node.results) + "(" +
         each(node.arguments.size(), [&](size_t i) { return argument(node, i) + ", "; }) +
         each(
             node.results, [&](size_t o) { return "&" + y(o); }, ", ") +
         ");\n";
    const DType dtype = Expression::result_dtype(node);
    if (loses_digits(result, dtype))
      s += each(node.results,
                [&](size_t o) { return "  " + y(o) + " = " + rounded(result, dtype, y(o)) + ";\n"; });
    return s;
  }

  const Expression& expression_;
  const DType* inputs_;
  DType scalar_;
};

}  // namespace

bool loses_digits(DType from, DType to) {
  return class_of(to) == DClass::Float && size_of(to) < 4 && from != to;
}

std::string rounded(DType compute, DType to, const std::string& e) {
  return load(to, compute, store(compute, to, e));
}

std::string literal(double number, DType compute) {
  const std::string type = compute_name(compute);
  if (class_of(compute) == DClass::Bool) return number != 0 ? "1" : "0";
  if (class_of(compute) == DClass::Int)
    return "((" + type + ")" + std::to_string(static_cast<int64_t>(number)) + "L)";
  // By its bits, so that every value has a form, which no locale changes.
  const bool wide = compute == DType::F64 || compute == DType::C128;
  const std::string real =
      wide ? "as_double(" + std::to_string(std::bit_cast<uint64_t>(number)) + "UL)"
           : "as_float(" + std::to_string(std::bit_cast<uint32_t>(static_cast<float>(number))) + "U)";
  return class_of(compute) == DClass::Complex ? "((" + type + ")(" + real + ", 0))" : real;
}

std::string expression_function(const Expression& expression, const DType* inputs, const std::string& name,
                                OpFunctions& functions) {
  return ExpressionWriter(expression, inputs).function(name, functions);
}

}  // namespace dlb::codegen
