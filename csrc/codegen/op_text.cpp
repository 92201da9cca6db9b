// Writes the macros of one op's operands and the op's function.
#include "codegen/op_text.h"

#include "codegen/expression_text.h"
#include "codegen/text.h"

namespace dlb::codegen {

std::string OpText::input_name(size_t i) const {
  return "x" + num(i - outputs_);
}
DType OpText::in_register(size_t i) const {
  return op_.expression ? compute_type(types_[i]) : compute_;
}
DType OpText::result_dtype(size_t o) const {
  if (!op_.expression) return result_type(op_, compute_);
  return op_.expression->dtype_of(op_.expression->results[o], types_ + outputs_);
}
std::string OpText::load(size_t i, const std::string& memory, const std::string& index) const {
  return std::string("const ") + compute_name(in_register(i)) + " " + input_name(i) + " = " +
         loaded(i, memory + "[" + index + "]") + "; ";
}
std::string OpText::loaded(size_t i, const std::string& element) const {
  std::string value = codegen::load(types_[i], in_register(i), element);
  if (rounded_ == DType::F32 || compute_ != DType::F32 || types_[i] == rounded_) return value;
  return rounded(compute_, rounded_, value);
}
std::string OpText::constant(DType compute, const std::string& name, const std::string& value) {
  const std::string type = compute_name(compute);
  return "const " + type + " " + name + " = (" + type + ")" + value + "; ";
}
std::string OpText::declare_results() const {
  return each(outputs_, [&](size_t o) {
    return std::string(compute_name(compute_type(result_dtype(o)))) + " y" + num(o) + "; ";
  });
}
std::string OpText::stored(size_t o) const {
  const DType type = compute_type(result_dtype(o));
  std::string value = "y" + num(o);
  const bool has_digits = class_of(types_[o]) == DClass::Float || class_of(types_[o]) == DClass::Complex;
  if (rounded_ != DType::F32 && type == DType::F32 && has_digits && types_[o] != rounded_)
    value = rounded(type, rounded_, value);
  return store(type, types_[o], value);
}
std::string OpText::body() const {
  return statements_of(op_, compute_);
}
std::string OpText::function() const {
  const size_t inputs = count_ - outputs_;
  OpFunctions functions;
  std::string name, expression;
  if (op_.expression) {
    name = std::string("dlb_op_") + op_.name;
    expression = expression_function(*op_.expression, types_ + outputs_, name, functions);
  } else {
    name = functions.add(op_, compute_, inputs, outputs_);
  }
  const auto argument = [](const char* letter) {
    return [letter](size_t i) { return letter + num(i) + ", "; };
  };
  const std::string call = name + "(" + each(inputs, argument("x")) + each(op_.scalars, argument("s")) +
                           each(
                               outputs_, [](size_t o) { return "&y" + num(o); }, ", ");
  return functions.source() + expression +
         define(
             "DLB_COMPUTE",
             declare_results() + (op_.error ? "int bad; " + call + ", &bad); any_bad |= bad;" : call + ");"));
}

std::string OpText::vector_type(size_t i) const {
  return storage_name(types_[i]) + num(kGpuVector);
}

std::string OpText::vector_macros(const std::function<bool(size_t)>& moves,
                                  const std::function<std::string(size_t)>& memory) const {
  // Joins f(i) for the inputs i that are loaded as vectors.
  const auto inputs = [&](auto&& f) {
    return each(count_ - outputs_, [&](size_t k) {
      const size_t i = outputs_ + k;
      return moves(i) ? f(i) : std::string();
    });
  };
  std::string s = define("DLB_LOAD_VECTORS(j)", inputs([&](size_t i) {
                           return "const " + vector_type(i) + " w" + num(i) + " = *(global const " +
                                  vector_type(i) + "*)(" + memory(i) + " + (j)); ";
                         }));
  s += define("DLB_LOAD_LANE(l)", inputs([&](size_t i) {
                return std::string("const ") + compute_name(in_register(i)) + " " + input_name(i) + " = " +
                       loaded(i, "w" + num(i) + ".s##l") + "; ";
              }));
  s += define("DLB_DECLARE_VECTORS",
              each(outputs_, [&](size_t o) { return vector_type(o) + " r" + num(o) + "; "; }));
  s += define("DLB_KEEP_LANE(l)",
              each(outputs_, [&](size_t o) { return "r" + num(o) + ".s##l = " + stored(o) + "; "; }));
  return s + define("DLB_STORE_VECTORS(j)", each(outputs_, [&](size_t o) {
                      return "*(global " + vector_type(o) + "*)(b" + num(o) + " + (j)) = r" + num(o) + "; ";
                    }));
}

}  // namespace dlb::codegen
