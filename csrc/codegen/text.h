// Small pieces that the generators build their text from.
#pragma once
#include <cstddef>
#include <string>

namespace dlb::codegen {

inline std::string num(size_t i) {
  return std::to_string(i);
}

// Joins f(0), f(1), .. f(count - 1).
template <class F>
std::string each(size_t count, F&& f, const char* separator = "") {
  std::string s;
  for (size_t i = 0; i < count; ++i) s += (i ? separator : "") + f(i);
  return s;
}

// The line that defines a macro. `name` may have parameters.
inline std::string define(const std::string& name, const std::string& value) {
  return "#define " + name + " " + value + "\n";
}

}  // namespace dlb::codegen
