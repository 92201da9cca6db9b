// Writes an expression as a function: a call of its own function for each row, one after the other.
#include "codegen/expression_text.h"

#include <bit>
#include <cstdint>

#include "codegen/text.h"

namespace dlb::codegen {
namespace {

// A tensor's value of dtype `from`, in its compute type, as a row of type `to` takes it.
std::string converted(DType from, DType to, const std::string& value) {
  const DType compute = compute_type(to);
  const std::string text = convert(compute_type(from), compute, value);
  return loses_digits(from, to) ? rounded(compute, to, text) : text;
}

// What a row computed, in the compute type of `dtype`, with no more digits than that has.
std::string converted_result(DType dtype, const std::string& value) {
  const DType compute = compute_type(dtype);
  return loses_digits(compute, dtype) ? rounded(compute, dtype, value) : value;
}

class ExpressionWriter {
 public:
  // `inputs`: dtypes of x0...
  ExpressionWriter(const Expression& expression, const DType* inputs)
      : expression_(expression), inputs_(inputs) {}

  // Adds the rows' functions to `functions`, and returns the text that calls them.
  std::string function(const std::string& name, OpFunctions& functions) const {
    std::string s = "DLB_INLINE void " + name + "(";
    s += each(expression_.inputs, [&](size_t i) { return parameter(compute_type(inputs_[i]), "x", i); });
    s +=
        each(expression_.scalars.size(), [&](size_t i) { return parameter(expression_.scalars[i], "s", i); });
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

  // An input or a node's result, in the compute type of its dtype.
  static std::string plain(const Expression::Value& value) {
    if (value.from == Expression::From::Input) return "x" + num(value.index);
    return "v" + num(value.index) + "_" + num(value.result);
  }

  // The value as a row's argument number `place`. As by themselves, numbers are rounded like tensors, where
  // the row does not say otherwise.
  std::string argument(const Expression::Node& node, size_t place) const {
    const Expression::Value& value = node.arguments[place];
    const DType compute = compute_type(node.type);
    const bool exact = place < node.inputs ? node.op->exact_number && place == 1 : !node.op->rounded_scalars;
    const auto as_number = [&](const std::string& text) {
      return loses_digits(compute, node.type) && !exact ? rounded(compute, node.type, text) : text;
    };
    switch (value.from) {
      case Expression::From::Number:
        return as_number(literal(expression_.numbers[value.index], compute));
      case Expression::From::Scalar:
        return as_number(convert(expression_.scalars[value.index], compute, "s" + num(value.index)));
      default:
        return converted(dtype_of(value), node.type, plain(value));
    }
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
                [&](size_t o) { return "  " + y(o) + " = " + converted_result(dtype, y(o)) + ";\n"; });
    return s;
  }

  const Expression& expression_;
  const DType* inputs_;
};

}  // namespace

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

void add_types(const Expression& expression, std::vector<DType>& types) {
  for (const Expression::Node& node : expression.nodes) types.push_back(node.type);
  types.insert(types.end(), expression.scalars.begin(), expression.scalars.end());
}

ReductionText::ReductionText(const ReduceExpression& expression, const DType* inputs, DType compute)
    : e_(expression), inputs_(inputs), compute_(compute) {
  for (size_t r = 0; r < e_.results; ++r) row_types_.push_back(e_.result_dtype(r));
}

void ReductionText::add_types(std::vector<DType>& types) const {
  codegen::add_types(e_.before, types);
  codegen::add_types(e_.after, types);
}

std::string ReductionText::functions() const {
  OpFunctions functions;
  const std::string before = expression_function(e_.before, inputs_, "dlb_before", functions);
  const std::string after = expression_function(e_.after, row_types_.data(), "dlb_after", functions);
  return functions.source() + before + after;
}

std::string ReductionText::row_inputs() const {
  const size_t results = e_.before.results.size();
  const auto o = [](size_t r) { return "o" + num(r); };
  std::string s = each(results, [&](size_t r) {
    return std::string(compute_name(compute_type(before_dtype(r)))) + " " + o(r) + "; ";
  });
  s += "dlb_before(" + each(e_.before.inputs, [](size_t i) { return "u" + num(i) + ", "; }) +
       each(e_.before.scalars.size(), [](size_t i) { return "s" + num(i) + ", "; }) +
       each(
           results, [&](size_t r) { return "&" + o(r); }, ", ") +
       "); ";
  return s + each(e_.inputs, [&](size_t r) {
           return "const T x" + num(r) + " = " + converted(before_dtype(r), e_.type, o(r)) + "; ";
         });
}

std::string ReductionText::stored_mapped(size_t m, DType type) const {
  const size_t r = e_.inputs + m;
  return store(compute_type(before_dtype(r)), type, "o" + num(r));
}

std::string ReductionText::row_scalar(size_t i) const {
  const Expression::Value& value = e_.scalars[i];
  if (value.from == Expression::From::Number) return literal(e_.before.numbers[value.index], compute_);
  return convert(e_.before.scalars[value.index], compute_, "s" + num(value.index));
}

std::string ReductionText::results() const {
  const size_t results = e_.after.results.size();
  // The row's results have its type, whatever it computes in.
  const auto y = [&](size_t r) { return converted_result(row_types_[r], "y" + num(r)) + ", "; };
  return each(results,
              [&](size_t o) { return std::string(compute_name(result_type(o))) + " w" + num(o) + "; "; }) +
         "dlb_after(" + each(e_.results, y) +
         each(e_.after.scalars.size(), [](size_t i) { return "s" + num(i) + ", "; }) +
         each(
             results, [](size_t o) { return "&w" + num(o); }, ", ") +
         "); ";
}

DType ReductionText::result_type(size_t output) const {
  return compute_type(e_.after.dtype_of(e_.after.results[output], row_types_.data()));
}

}  // namespace dlb::codegen
