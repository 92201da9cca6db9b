// Keys of problems: written and read through the problem's own list of fields.
#include "solver/problem.h"

#include <sstream>
#include <stdexcept>
#include <utility>

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

struct Writer {
  std::ostringstream out;
  template <class T>
  void operator()(const char* name, const T& value) {
    out << ' ' << name << '=' << static_cast<int64_t>(value);
  }
  template <class T, size_t N>
  void operator()(const char* name, const T (&values)[N]) {
    out << ' ' << name << '=';
    for (size_t i = 0; i < N; i++) out << (i ? "," : "") << static_cast<int64_t>(values[i]);
  }
};

struct Reader {
  std::istringstream in;
  void expect(const std::string& text) {
    std::string found(text.size(), '\0');
    if (!in.read(found.data(), static_cast<std::streamsize>(text.size())) || found != text)
      throw std::invalid_argument("problem key: expected '" + text + "'");
  }
  template <class T>
  void number(T& value) {
    int64_t read;
    if (!(in >> read)) throw std::invalid_argument("problem key: expected a number");
    value = static_cast<T>(read);
  }
  template <class T>
  void operator()(const char* name, T& value) {
    expect(std::string(" ") + name + "=");
    number(value);
  }
  template <class T, size_t N>
  void operator()(const char* name, T (&values)[N]) {
    expect(std::string(" ") + name + "=");
    for (size_t i = 0; i < N; i++) {
      if (i) expect(",");
      number(values[i]);
    }
  }
};

template <class Problem>
std::string write(const Problem& problem) {
  Writer writer;
  writer.out << op_name(problem.op()) << ':';
  for (const DtypeName& dtype : kDtypes)
    if (dtype.type == problem.dtype) writer.out << dtype.name;
  Problem::visit(problem, writer);
  return writer.out.str();
}

// Reads "op:dtype" and returns the op's name.
std::string read_head(Reader& reader, c10::ScalarType& type) {
  std::string op, dtype;
  std::getline(reader.in, op, ':');
  while (reader.in.peek() != ' ' && reader.in.good()) dtype += static_cast<char>(reader.in.get());
  for (const DtypeName& known : kDtypes)
    if (dtype == known.name) {
      type = known.type;
      return op;
    }
  throw std::invalid_argument("problem key: unknown dtype '" + dtype + "'");
}

template <class Problem>
void read_fields(Reader& reader, Problem& problem) {
  Problem::visit(problem, reader);
  if (reader.in.peek() != std::istringstream::traits_type::eof())
    throw std::invalid_argument("problem key: text after the last field");
}

}  // namespace

const char* op_name(Op op) {
  constexpr const char* names[kOps] = {"gemm", "conv_fwd", "conv_bwd_data", "conv_bwd_weight"};
  return names[static_cast<int>(op)];
}

void GemmProblem::normalize() {
  for (int64_t* s : {a, b, c, d})
    if (batch == 1) s[0] = 0;
  if (m == 1) a[1] = c[1] = d[1] = 0;
  if (n == 1) b[2] = c[2] = d[2] = 0;
  if (k == 1) a[2] = b[1] = 0;
  if (!has_d) d[0] = d[1] = d[2] = 0;
}

void ConvProblem::normalize() {
  // trivial dimensions go to the front, so that a 1-d convolution is one however it was written
  for (int pass = 0; pass < 2; pass++)
    for (int i = 2; i > 0; i--) {
      if (in[i] != 1 || out[i] != 1 || filter[i] != 1 || padding[i] != 0) continue;
      for (int32_t* v : {in, out, filter, stride, padding, dilation}) std::swap(v[i], v[i - 1]);
      for (int64_t* v : {xs, ws, ys}) std::swap(v[2 + i], v[1 + i]);
    }
  if (n == 1) xs[0] = ys[0] = 0;
  if (c == groups) ws[1] = 0;
  if (c == 1) xs[1] = 0;
  if (k == 1) ws[0] = ys[1] = 0;
  for (int i = 0; i < 3; i++) {
    if (in[i] == 1) xs[2 + i] = 0;
    if (out[i] == 1) ys[2 + i] = 0;
    if (filter[i] == 1) ws[2 + i] = 0, dilation[i] = 1;
    if (out[i] == 1 && filter[i] == 1 && padding[i] == 0 && in[i] == 1) stride[i] = 1;
  }
}

std::string key(const GemmProblem& problem) {
  return write(problem);
}
std::string key(const ConvProblem& problem) {
  return write(problem);
}

GemmProblem parse_gemm_key(const std::string& key, int device) {
  Reader reader{std::istringstream(key)};
  GemmProblem problem;
  if (read_head(reader, problem.dtype) != "gemm") throw std::invalid_argument("problem key: not a gemm");
  read_fields(reader, problem);
  problem.device = static_cast<int8_t>(device);
  return problem;
}

ConvProblem parse_conv_key(const std::string& key, int device) {
  Reader reader{std::istringstream(key)};
  ConvProblem problem;
  const std::string op = read_head(reader, problem.dtype);
  bool known = false;
  for (Op direction : {Op::kConvForward, Op::kConvInputGrad, Op::kConvWeightGrad})
    if (op == op_name(direction)) problem.direction = direction, known = true;
  if (!known) throw std::invalid_argument("problem key: not a convolution");
  read_fields(reader, problem);
  problem.device = static_cast<int8_t>(device);
  return problem;
}

}  // namespace dlb::solver
