// Writes the macros of one op's operands and the op's function.
#include "codegen/op_text.h"

#include "codegen/text.h"

namespace dlb::codegen {

std::string OpText::input_name(size_t i) const {
  return "x" + num(i - outputs_);
}
std::string OpText::load(size_t i, const std::string& memory, const std::string& index) const {
  return "const T " + input_name(i) + " = " + loaded(i, memory + "[" + index + "]") + "; ";
}
std::string OpText::loaded(size_t i, const std::string& element) const {
  std::string value = codegen::load(types_[i], compute_, element);
  if (rounded_ == DType::F32 || compute_ != DType::F32 || types_[i] == rounded_) return value;
  return codegen::load(rounded_, compute_, store(compute_, rounded_, value));
}
std::string OpText::constant(const std::string& name, const std::string& value) {
  return "const T " + name + " = (T)" + value + "; ";
}
std::string OpText::declare_results() const {
  const auto name = [](size_t o) { return "y" + num(o); };
  return compute_name(result_type(op_, compute_)) + (" " + each(outputs_, name, ", ")) + "; ";
}
std::string OpText::stored(size_t o) const {
  const DType type = result_type(op_, compute_);
  std::string value = "y" + num(o);
  const bool is_wider = class_of(types_[o]) == DClass::Float || class_of(types_[o]) == DClass::Complex;
  if (rounded_ != DType::F32 && type == DType::F32 && is_wider && types_[o] != rounded_)
    value = codegen::load(rounded_, type, store(type, rounded_, value));
  return store(type, types_[o], value);
}
std::string OpText::body() const {
  const std::string text = op_.body(class_of(compute_));
  return text.find("y0 =") != std::string::npos ? text : "y0 = (" + text + ");";
}
std::string OpText::function() const {
  const size_t inputs = count_ - outputs_;
  const std::string result = compute_name(result_type(op_, compute_));
  const auto parameter = [](const char* name) {
    return [name](size_t i) { return std::string("const T ") + name + num(i) + ", "; };
  };
  const auto argument = [](const char* name) { return [name](size_t i) { return name + num(i) + ", "; }; };
  std::string s =
      "DLB_INLINE void dlb_op(" + each(inputs, parameter("x")) + each(op_.scalars, parameter("s"));
  s += each(
      outputs_, [&](size_t o) { return result + "* p_y" + num(o); }, ", ");
  s += std::string(op_.error ? ", int* p_bad" : "") + ") {\n  " + declare_results() +
       (op_.error ? "int bad = 0;" : "") + "\n  " + body() + "\n";
  s += each(outputs_, [](size_t o) { return "  *p_y" + num(o) + " = y" + num(o) + ";\n"; });
  s += std::string(op_.error ? "  *p_bad = bad;\n" : "") + "}\n";
  const std::string call = "dlb_op(" + each(inputs, argument("x")) + each(op_.scalars, argument("s")) +
                           each(
                               outputs_, [](size_t o) { return "&y" + num(o); }, ", ");
  return s + define("DLB_COMPUTE",
                    declare_results() +
                        (op_.error ? "int bad; " + call + ", &bad); any_bad |= bad;" : call + ");"));
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
                return "const T " + input_name(i) + " = " + loaded(i, "w" + num(i) + ".s##l") + "; ";
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
