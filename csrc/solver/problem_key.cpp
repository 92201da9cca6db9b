#include "solver/problem_key.h"

#include <cctype>
#include <charconv>
#include <stdexcept>

namespace dlb::solver {
namespace {

struct DtypeName {
  c10::ScalarType type;
  const char* name;
};
constexpr DtypeName kDtypes[] = {{c10::ScalarType::Bool, "bool"},
                                 {c10::ScalarType::Byte, "uint8"},
                                 {c10::ScalarType::Char, "int8"},
                                 {c10::ScalarType::Short, "int16"},
                                 {c10::ScalarType::Int, "int32"},
                                 {c10::ScalarType::Long, "int64"},
                                 {c10::ScalarType::Half, "float16"},
                                 {c10::ScalarType::BFloat16, "bfloat16"},
                                 {c10::ScalarType::Float, "float32"},
                                 {c10::ScalarType::Double, "float64"},
                                 {c10::ScalarType::ComplexFloat, "complex64"},
                                 {c10::ScalarType::ComplexDouble, "complex128"}};

const char* dtype_name(c10::ScalarType type) {
  for (const DtypeName& dtype : kDtypes)
    if (dtype.type == type) return dtype.name;
  return "?";
}
c10::ScalarType parse_dtype(const std::string& name) {
  for (const DtypeName& dtype : kDtypes)
    if (name == dtype.name) return dtype.type;
  throw std::invalid_argument("problem key: unknown dtype '" + name + "'");
}

constexpr size_t kUsualKeyBytes = 400;

}  // namespace

KeyWriter::KeyWriter(const char* op, c10::ScalarType dtype) {
  out_.reserve(kUsualKeyBytes);
  out_.append(op).append(1, ':').append(dtype_name(dtype));
}

void KeyWriter::put(int64_t number) {
  char digits[24];
  out_.append(digits, std::to_chars(digits, std::end(digits), number).ptr);
}

void KeyWriter::put(c10::ScalarType type) {
  out_ += dtype_name(type);
}

KeyReader::KeyReader(const std::string& key, const char* op, c10::ScalarType& dtype) : in_(key) {
  expect(std::string(op) + ":");
  get(dtype);
}

void KeyReader::finish() {
  if (in_.peek() != std::istringstream::traits_type::eof())
    throw std::invalid_argument("problem key: text after the last field");
}

bool KeyReader::take(const std::string& text) {
  if (in_.peek() == std::istringstream::traits_type::eof()) return false;
  const auto begin = in_.tellg();
  std::string found(text.size(), '\0');
  if (in_.read(found.data(), static_cast<std::streamsize>(text.size())) && found == text) return true;
  in_.clear();
  in_.seekg(begin);
  return false;
}

void KeyReader::expect(const std::string& text) {
  if (!take(text)) throw std::invalid_argument("problem key: expected '" + text + "'");
}

std::string KeyReader::graphic_word(size_t most) {
  std::string word;
  while (std::isgraph(in_.peek()) && word.size() < most) word += static_cast<char>(in_.get());
  return word;
}

int64_t KeyReader::number() {
  int64_t read = 0;
  if (!(in_ >> read)) throw std::invalid_argument("problem key: expected a number");
  return read;
}

void KeyReader::get(c10::ScalarType& type) {
  std::string name;
  while (std::isalnum(in_.peek())) name += static_cast<char>(in_.get());
  type = parse_dtype(name);
}

void check_tf32(const Problem& problem) {
  if (problem.tf32 && problem.dtype != c10::ScalarType::Float)
    throw std::invalid_argument("problem key: tf32 is for float32");
}

}  // namespace dlb::solver
