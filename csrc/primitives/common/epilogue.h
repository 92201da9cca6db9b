// Epilogues: rows that products and convolutions apply to their results while these are in registers, in
// place of a launch that reads and writes them again. oneDNN calls them post-ops.
#pragma once
#include <c10/util/ArrayRef.h>

#include <array>
#include <string>
#include <vector>

#include "cl/kernel.h"
#include "codegen/dtype.h"
#include "kernels/common/epilogue.h"
#include "runtime/tensor.h"
#include "solver/problem.h"

namespace dlb::solver {

constexpr size_t kMostExtras = params::EPILOGUE_EXTRAS;

// How an extra operand lies beside the result.
enum class Lies : int8_t {
  kOnce,    // one element, for all results
  kColumn,  // one for each column of a product, or each channel of a convolution; dense
  kRow,     // one for each row of a product; dense
  kResult   // one for each result, in the result's strides
};

// An expression (codegen/expression.h) whose x0 is the result, rounded to its dtype as it would be in memory,
// and whose x1 .. are extra operands. y0 is stored in the result's place; y1, if there is one, in a second
// result with the strides of the first. Both may be of other dtypes, as the bytes that sums of int32 become.
// Part of a problem: equal by bytes.
struct Epilogue {
  uint32_t rows = 0;                       // a hash of the expression and the result's dtype; 0: no epilogue
  int8_t extras = 0;                       // operands x1 ..
  codegen::DType types[kMostExtras] = {};  // of the extras
  Lies lies[kMostExtras] = {};
  int8_t has_second = 0;         // y1 is stored too
  codegen::DType second_type{};  // its dtype
  codegen::DType first_type{};   // y0's

  explicit operator bool() const { return rows != 0; }
  // Whether y0 is of another dtype than x0. Takes a lock.
  bool changes_type() const;

  // The part of a problem's key: "f32|bf16@column|y0=mul.f32(x0,x1)".
  std::string key_text() const;
  // Reads what key_text() wrote. Throws std::invalid_argument.
  static Epilogue parse(const std::string& text);
};
static_assert(sizeof(Epilogue) == 16 && std::has_unique_object_representations_v<Epilogue>);

// The epilogue of an expression and its extras' dtypes and places. Takes a lock. Throws std::invalid_argument
// with the reason for text that is no expression, that reduces or takes scalars, that has more than
// kMostExtras extras or two results.
Epilogue make_epilogue(const std::string& text, codegen::DType result, c10::ArrayRef<codegen::DType> types,
                       c10::ArrayRef<Lies> lies);

// Operands of problems that may have an epilogue: what that reads and writes besides.
struct EpilogueOperands : Operands {
  Buffer extra0, extra1, extra2, extra3, second;

  Buffer& extra(size_t e) { return *std::array{&extra0, &extra1, &extra2, &extra3}[e]; }
  const Buffer& extra(size_t e) const { return *std::array{&extra0, &extra1, &extra2, &extra3}[e]; }
};

// The same epilogue where rows and columns have changed places.
inline Epilogue transposed(Epilogue epilogue) {
  for (Lies& lies : epilogue.lies)
    lies = lies == Lies::kColumn ? Lies::kRow : lies == Lies::kRow ? Lies::kColumn : lies;
  return epilogue;
}

// The dtype that trials fill and compare an operand as: its own, or for those without arithmetic integers of
// their size.
c10::ScalarType trial_type(codegen::DType type);

// Adds the spans of the operands of an epilogue, which an operands' type has in `extras`, for a problem with
// so many rows, columns, and elements from its first result to its last.
template <class Operands>
void add_spans(std::vector<Span>& spans, const Epilogue& epilogue, int64_t rows, int64_t columns,
               int64_t extent) {
  static constexpr Buffer Operands::*kExtras[kMostExtras] = {&Operands::extra0, &Operands::extra1,
                                                             &Operands::extra2, &Operands::extra3};
  for (size_t e = 0; e < static_cast<size_t>(epilogue.extras); e++) {
    const Lies lies = epilogue.lies[e];
    const int64_t elements = lies == Lies::kOnce     ? 1
                             : lies == Lies::kColumn ? columns
                             : lies == Lies::kRow    ? rows
                                                     : extent;
    spans.push_back(span(kExtras[e], elements, trial_type(epilogue.types[e])));
  }
  if (epilogue.has_second)
    spans.push_back(span(&Operands::second, extent, trial_type(epilogue.second_type), true));
}

// Shifts an epilogue's operands to those of a window that begins at that row and column, `at` elements behind
// the first result.
void shift_extras(EpilogueOperands& shift, const Epilogue& epilogue, int64_t row, int64_t column, int64_t at);

// What tells the kernels of a problem with an epilogue apart: Problem::kernel_variant (solver/op.h).
template <class P>
std::string variant_of(const P& problem) {
  std::string text = problem.tf32 ? " tf32" : "";
  return problem.epilogue ? text + " then " + problem.epilogue.key_text() : text;
}

// What kernels that take the epilogue are compiled with: the text in front of the program.
// Empty where there is none.
std::string epilogue_source(const Epilogue& epilogue, const cl::Device& device);

// fetch_kernel() of these files, behind the epilogue's text where there is one.
cl::Kernel& fetch_with(const Epilogue& epilogue, cl::Device& device, std::initializer_list<const char*> files,
                       const char* kernel, const std::string& options);

// Adds the epilogue's arguments, which are a kernel's last.
template <class Arguments>
void add_epilogue(Arguments& arguments, const Epilogue& epilogue, const EpilogueOperands& operands) {
  if (!epilogue) return;
  params::EpilogueOffsets offsets{};
  for (size_t e = 0; e < static_cast<size_t>(epilogue.extras); e++) {
    arguments.add(operands.extra(e).mem);
    offsets.extra[e] = operands.extra(e).offset;
  }
  if (epilogue.has_second) {
    arguments.add(operands.second.mem);
    offsets.second = operands.second.offset;
  }
  arguments.add(offsets);
}

}  // namespace dlb::solver
