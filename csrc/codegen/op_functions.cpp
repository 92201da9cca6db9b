// A program's ops come in sections, one for each compute type. A section defines T and its like, the math
// functions under names of their own, the ops, and takes the macros away.
#include "codegen/op_functions.h"

#include "codegen/functions.h"
#include "codegen/text.h"

namespace dlb::codegen {
namespace {

std::string function_of(const PointwiseOp& op, DType compute, const std::string& name, size_t inputs,
                        size_t results) {
  const std::string result = compute_name(result_type(op, compute));
  const auto parameter = [](const char* letter) {
    return [letter](size_t i) { return std::string("const T ") + letter + num(i) + ", "; };
  };
  const auto y = [](size_t o) { return "y" + num(o); };
  std::string s =
      "DLB_INLINE void " + name + "(" + each(inputs, parameter("x")) + each(op.scalars, parameter("s"));
  s += each(
      results, [&](size_t o) { return result + "* p_y" + num(o); }, ", ");
  s += std::string(op.error ? ", int* p_bad" : "") + ") {\n  " + result + " " + each(results, y, ", ") +
       "; " + (op.error ? "int bad = 0;" : "") + "\n  ";
  s += statements_of(op, compute);
  s += "\n" + each(results, [](size_t o) { return "  *p_y" + num(o) + " = y" + num(o) + ";\n"; });
  return s + (op.error ? "  *p_bad = bad;\n" : "") + "}\n";
}

}  // namespace

std::string statements_of(const PointwiseOp& op, DType compute) {
  const std::string text = op.body(class_of(compute));
  return text.find("y0 =") != std::string::npos ? text : "y0 = (" + text + ");";
}

std::string OpFunctions::add(const PointwiseOp& op, DType compute, size_t inputs, size_t results) {
  std::string name = std::string("dlb_op_") + op.name + "_" + name_of(compute);
  Section& section = sections_[compute];
  if (section.names.insert(name).second) {
    section.bodies += std::string(op.body(class_of(compute))) + "\n";
    section.functions += function_of(op, compute, name, inputs, results);
  }
  return name;
}

std::string OpFunctions::source() const {
  if (sections_.empty()) return functions_source("DLB_INLINE");  // of an expression that only passes on
  std::string s;
  for (const auto& [compute, section] : sections_)
    s += named_for(compute, compute_macros(compute) + functions_source("DLB_INLINE " + section.bodies) +
                                section.functions) +
         end_compute_macros(compute);
  return s;
}

}  // namespace dlb::codegen
