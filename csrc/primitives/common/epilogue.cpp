// Keeps the expressions of epilogues by their hashes, and writes the function that kernels call.
#include "primitives/common/epilogue.h"

#include <algorithm>
#include <array>
#include <bit>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <variant>

#include "cl/embedded.h"
#include "cl/hash.h"
#include "cl/program_table.h"
#include "codegen/expression_text.h"
#include "codegen/pointwise.h"
#include "codegen/text.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

using codegen::DType;
using codegen::num;

// An expression in whatever epilogues.
struct Rows {
  DType result;
  std::string text;  // without spaces
  codegen::Expression expression;
};

constexpr const char* kLiesNames[] = {"once", "column", "row", "result"};

class Table {
 public:
  static Table& get() {
    static auto* table = new Table;
    return *table;
  }
  // Its hash. Throws std::invalid_argument for what no epilogue can be.
  uint32_t add(const std::string& text, DType result) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& known = known_[static_cast<size_t>(result)];
    if (const auto it = known.find(text); it != known.end()) return it->second;
    Rows rows{result, "", {}};
    for (const char c : text)
      if (c != ' ' && c != '\n') rows.text += c;
    auto hash =
        static_cast<uint32_t>(cl::hash128(std::string(codegen::name_of(result)) + "|" + rows.text).low);
    hash += hash == 0;
    if (const auto it = rows_.find(hash); it != rows_.end()) {
      if (it->second.text != rows.text || it->second.result != result)
        throw std::invalid_argument("epilogue: its hash is another one's");
    } else {
      rows.expression = parsed(text);
      rows_.emplace(hash, std::move(rows));
    }
    known[text] = hash;
    return hash;
  }
  // Of a hash that add() returned. Rows are never dropped, nor do they move.
  const Rows& of(uint32_t hash) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = rows_.find(hash);
    if (it == rows_.end()) throw std::logic_error("an epilogue that nobody made");
    return it->second;
  }

 private:
  static codegen::Expression parsed(const std::string& text) {
    auto parsed = codegen::parse_rows(text);
    auto* expression = std::get_if<codegen::Expression>(&parsed);
    if (!expression) throw std::invalid_argument("epilogue: it reduces");
    if (!expression->scalars.empty()) throw std::invalid_argument("epilogue: it takes scalars");
    if (expression->results.size() > 2) throw std::invalid_argument("epilogue: more than two results");
    if (expression->inputs > 1 + kMostExtras)
      throw std::invalid_argument("epilogue: more than " + num(kMostExtras) + " operands beside x0");
    return std::move(*expression);
  }

  std::mutex mutex_;
  std::unordered_map<uint32_t, Rows> rows_;
  std::array<std::unordered_map<std::string, uint32_t>, codegen::kDTypes> known_;  // by the text as given
};

// The dtypes of x0, x1 ..
std::array<DType, 1 + kMostExtras> input_types(const Epilogue& epilogue, const Rows& rows) {
  std::array<DType, 1 + kMostExtras> types{rows.result};
  std::copy_n(epilogue.types, kMostExtras, types.begin() + 1);
  return types;
}

// Where a kernel finds the element of extra e for a result.
std::string place_of(const Epilogue& epilogue, size_t e) {
  const std::string offset = "epilogue_offsets.extra[" + num(e) + "]";
  switch (epilogue.lies[e]) {
    case Lies::kOnce:
      return offset;
    case Lies::kColumn:
      return offset + " + column";
    case Lies::kRow:
      return offset + " + row";
    default:
      return offset + " + at";
  }
}

// EpilogueExtras, a result's elements of the extra operands as they are stored, and the function that loads
// them.
std::string extras_source(const Epilogue& epilogue) {
  const auto extras = static_cast<size_t>(epilogue.extras);
  std::string fields, loads;
  for (size_t e = 0; e < extras; e++) {
    const std::string field = "x" + num(e + 1);
    fields += std::string(codegen::storage_name(epilogue.types[e])) + " " + field + "; ";
    loads += "  extras." + field + " = epilogue_extra" + num(e) + "[" + place_of(epilogue, e) + "];\n";
  }
  if (extras == 0) fields = "char none; ", loads = "  extras.none = 0;\n";
  return "typedef struct { " + fields +
         "} EpilogueExtras;\n"
         "static inline EpilogueExtras dlb_epilogue_extras(long at, int row, int column EPILOGUE_PARAMETERS) "
         "{\n"
         "  EpilogueExtras extras;\n" +
         loads + "  return extras;\n}\n";
}

}  // namespace

Epilogue make_epilogue(const std::string& text, DType result, c10::ArrayRef<DType> types,
                       c10::ArrayRef<Lies> lies) {
  Epilogue epilogue;
  epilogue.rows = Table::get().add(text, result);
  const Rows& rows = Table::get().of(epilogue.rows);
  const codegen::Expression& e = rows.expression;
  if (types.size() != lies.size() || e.inputs > 1 + types.size() || types.size() > kMostExtras)
    throw std::invalid_argument("epilogue: it takes " + num(e.inputs) + " inputs, of which " +
                                num(1 + types.size()) + " are there");
  epilogue.extras = static_cast<int8_t>(types.size());
  std::copy(types.begin(), types.end(), epilogue.types);
  std::copy(lies.begin(), lies.end(), epilogue.lies);
  const auto inputs = input_types(epilogue, rows);
  epilogue.first_type = e.dtype_of(e.results[0], inputs.data());
  if (e.results.size() > 1) {
    epilogue.has_second = 1;
    epilogue.second_type = e.dtype_of(e.results[1], inputs.data());
  }
  return epilogue;
}

bool Epilogue::changes_type() const {
  return *this && Table::get().of(rows).result != first_type;
}

std::string Epilogue::key_text() const {
  const Rows& known = Table::get().of(rows);
  std::string text = codegen::name_of(known.result);
  for (size_t e = 0; e < static_cast<size_t>(extras); e++)
    text += std::string("|") + codegen::name_of(types[e]) + "@" + kLiesNames[static_cast<size_t>(lies[e])];
  return text + "|" + known.text;
}

Epilogue Epilogue::parse(const std::string& text) {
  const auto fail = [] { throw std::invalid_argument("problem key: this is no epilogue"); };
  std::vector<std::string> parts{""};
  for (const char c : text)
    if (c == '|')
      parts.emplace_back();
    else
      parts.back() += c;
  const auto result = codegen::dtype_named(parts[0]);
  if (parts.size() < 2 || !result) fail();
  std::vector<DType> types;
  std::vector<Lies> lies;
  for (size_t i = 1; i + 1 < parts.size(); i++) {
    const size_t at = parts[i].find('@');
    const auto type = codegen::dtype_named(parts[i].substr(0, at));
    const auto* place = std::find(std::begin(kLiesNames), std::end(kLiesNames),
                                  at == std::string::npos ? "" : parts[i].substr(at + 1));
    if (!type || place == std::end(kLiesNames)) fail();
    types.push_back(*type), lies.push_back(static_cast<Lies>(place - kLiesNames));
  }
  return make_epilogue(parts.back(), *result, types, lies);
}

c10::ScalarType trial_type(DType type) {
  const c10::ScalarType own = scalar_type_of(type);
  if (has_arithmetic(own)) return own;
  constexpr c10::ScalarType kIntegers[] = {c10::kByte, c10::kShort, c10::kInt, c10::kLong};
  return kIntegers[std::countr_zero(codegen::size_of(type))];
}

void shift_extras(EpilogueOperands& shift, const Epilogue& epilogue, int64_t row, int64_t column,
                  int64_t at) {
  for (size_t e = 0; e < static_cast<size_t>(epilogue.extras); e++) {
    const Lies lies = epilogue.lies[e];
    shift.extra(e).offset = lies == Lies::kOnce     ? 0
                            : lies == Lies::kColumn ? column
                            : lies == Lies::kRow    ? row
                                                    : at;
  }
  shift.second.offset = at;
}

std::string epilogue_source(const Epilogue& epilogue, const cl::Device& device) {
  if (!epilogue) return "";
  const Rows& rows = Table::get().of(epilogue.rows);
  const auto inputs = input_types(epilogue, rows);
  const DType compute = codegen::compute_type(rows.result);
  const std::string type = codegen::compute_name(compute);
  const DType first = codegen::compute_type(epilogue.first_type);
  const std::string stored = codegen::compute_name(first);
  const auto extras = static_cast<size_t>(epilogue.extras);
  std::vector<DType> types(inputs.begin(), inputs.begin() + 1 + static_cast<ptrdiff_t>(extras));
  if (epilogue.has_second) types.push_back(epilogue.second_type);
  if (epilogue.first_type != rows.result) types.push_back(epilogue.first_type);
  codegen::add_types(rows.expression, types);
  codegen::OpFunctions functions;
  const std::string function =
      codegen::expression_function(rows.expression, inputs.data(), "dlb_epilogue_rows", functions);
  // Solvers' kernels are written for a compiler that may fuse multiplications and additions.
  std::string s = codegen::conversions_source(types.data(), types.size()) +
                  codegen::device_macro(device.cls) + functions.source() + function +
                  "#pragma OPENCL FP_CONTRACT ON\n";
  s += cl::embedded_source("common/epilogue.h");
  std::string parameters, arguments;
  for (size_t e = 0; e < extras; e++) {
    parameters += std::string(", global const ") + codegen::storage_name(epilogue.types[e]) +
                  "* epilogue_extra" + num(e);
    arguments += ", epilogue_extra" + num(e);
  }
  if (epilogue.has_second) {
    parameters +=
        std::string(", global ") + codegen::storage_name(epilogue.second_type) + "* epilogue_second";
    arguments += ", epilogue_second";
  }
  s += codegen::define("EPILOGUE", "") +
       codegen::define("EPILOGUE_PARAMETERS", parameters + ", EpilogueOffsets epilogue_offsets") +
       codegen::define("EPILOGUE_ARGUMENTS", arguments + ", epilogue_offsets");
  if (epilogue.first_type != rows.result)
    s += codegen::define("EPILOGUE_T", codegen::storage_name(epilogue.first_type)) +
         codegen::define("EPILOGUE_BYTES", num(codegen::size_of(epilogue.first_type))) +
         codegen::define("EPILOGUE_NUMBER", stored) +
         codegen::define("EPILOGUE_STORED(v)", codegen::store(first, epilogue.first_type, "(v)"));
  s += extras_source(epilogue);
  s += "static inline " + stored + " dlb_epilogue_of(" + type +
       " v, EpilogueExtras extras, bool exists, long at EPILOGUE_PARAMETERS) {\n";
  s += "  " + stored + " y0;\n";
  const DType second = codegen::compute_type(epilogue.second_type);
  if (epilogue.has_second) s += std::string("  ") + codegen::compute_name(second) + " y1;\n";
  const std::string x0 =
      codegen::loses_digits(compute, rows.result) ? codegen::rounded(compute, rows.result, "v") : "v";
  s += "  dlb_epilogue_rows(" + x0;
  for (size_t e = 0; e + 1 < rows.expression.inputs; e++)
    s += ", " +
         codegen::load(epilogue.types[e], codegen::compute_type(epilogue.types[e]), "extras.x" + num(e + 1));
  s += std::string(", &y0") + (epilogue.has_second ? ", &y1" : "") + ");\n";
  if (epilogue.has_second)
    s += "  if (exists) epilogue_second[epilogue_offsets.second + at] = " +
         codegen::store(second, epilogue.second_type, "y1") + ";\n";
  return s + "  return y0;\n}\nstatic inline " + stored + " dlb_epilogue(" + type +
         " v, long at, int row, int column EPILOGUE_PARAMETERS) {\n"
         "  return dlb_epilogue_of(v, dlb_epilogue_extras(at, row, column EPILOGUE_ARGUMENTS), true, at "
         "EPILOGUE_ARGUMENTS);\n}\n";
}

cl::Kernel& fetch_with(const Epilogue& epilogue, cl::Device& device, std::initializer_list<const char*> files,
                       const char* kernel, const std::string& options) {
  if (!epilogue) return fetch_kernel(device, files, kernel, options);
  return cl::get_kernel(device, epilogue_source(epilogue, device) + kernel_text(files), options, kernel);
}

}  // namespace dlb::solver
