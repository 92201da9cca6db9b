// Dtypes of the operands of products and convolutions beside that of the problem.
#pragma once
#include <c10/core/ScalarType.h>

#include <stdexcept>
#include <string>

#include "solver/problem.h"

namespace dlb::solver {

// The dtype of an operand that differs from the problem's; none by default.
class OperandDtype {
 public:
  OperandDtype() = default;
  explicit OperandDtype(c10::ScalarType type) : code_(static_cast<int8_t>(static_cast<int8_t>(type) + 1)) {}
  explicit operator bool() const { return code_ != 0; }
  c10::ScalarType type() const { return static_cast<c10::ScalarType>(code_ - 1); }
  c10::ScalarType or_else(c10::ScalarType other) const { return code_ ? type() : other; }
  bool is_nibbles() const { return code_ && type() == c10::ScalarType::UInt4; }
  bool is_float8() const {
    return code_ && (type() == c10::ScalarType::Float8_e4m3fn || type() == c10::ScalarType::Float8_e5m2);
  }
  // int8 or uint8.
  bool is_byte() const {
    return code_ && (type() == c10::ScalarType::Char || type() == c10::ScalarType::Byte);
  }

  std::string key_text() const { return of_type(type()).name; }
  // Reads what key_text() wrote. Throws std::invalid_argument.
  static OperandDtype parse(const std::string& text) {
    for (const Known& known : kKnown)
      if (text == known.name) return OperandDtype(known.type);
    throw std::invalid_argument("problem key: operands are i8, u8, e4m3, e5m2 or u4");
  }
  // The option that tells a kernel's operand A or B: common/operands.clh.
  std::string option(const char* operand) const {
    return code_ ? std::string(" -D") + operand + of_type(type()).suffix : "";
  }

 private:
  struct Known {
    c10::ScalarType type;
    const char *name, *suffix;
  };
  static constexpr Known kKnown[] = {{c10::ScalarType::Char, "i8", "_CHAR"},
                                     {c10::ScalarType::Byte, "u8", "_UCHAR"},
                                     {c10::ScalarType::Float8_e4m3fn, "e4m3", "_E4M3"},
                                     {c10::ScalarType::Float8_e5m2, "e5m2", "_E5M2"},
                                     {c10::ScalarType::UInt4, "u4", "_NIBBLES"}};
  static const Known& of_type(c10::ScalarType type) {
    for (const Known& known : kKnown)
      if (known.type == type) return known;
    throw std::invalid_argument("an operand of " + std::string(c10::toString(type)));
  }

  int8_t code_ = 0;
};

// Options that say which types two operands have in memory.
inline std::string operand_options(OperandDtype a, OperandDtype b) {
  return a.option("A") + b.option("B");
}

// The span of an operand that is only read, with so many elements. Trials have bytes for float8: small ones,
// which are small numbers.
template <class Operands>
Span operand_span(Buffer Operands::*buffer, int64_t elements, OperandDtype type, c10::ScalarType problem) {
  if (type.is_nibbles()) return span(buffer, (elements + 1) / 2, c10::ScalarType::Byte);
  if (type.is_float8()) return span(buffer, elements, c10::ScalarType::Byte, false, true);
  return span(buffer, elements, type.or_else(problem));
}

}  // namespace dlb::solver
