#include "primitives/gemm/problem.h"

#include <stdexcept>

#include "primitives/common/extent.h"

namespace dlb::solver {
namespace {

constexpr int64_t kReducedSize = 512;  // sizes of a reduced problem, at most

}  // namespace

OperandDtype OperandDtype::parse(const std::string& text) {
  for (const c10::ScalarType type : {c10::ScalarType::Char, c10::ScalarType::Byte})
    if (text == OperandDtype(type).key_text()) return OperandDtype(type);
  throw std::invalid_argument("problem key: operands are int8 or uint8");
}

GemmProblem::GemmProblem() {
  op = &gemm_op;
}

void GemmProblem::normalize() {
  for (int64_t* s : {a, b, c, d})
    if (batch == 1) s[0] = 0;
  if (m == 1) a[1] = c[1] = d[1] = 0;
  if (n == 1) b[2] = c[2] = d[2] = 0;
  if (k == 1) a[2] = b[1] = 0;
  if (!has_d) d[0] = d[1] = d[2] = 0;
}

std::vector<Span> GemmProblem::spans() const {
  std::vector<Span> list = {span(&Operands::a, extent({batch, m, k}, a), a_dtype.or_else(dtype)),
                            span(&Operands::b, extent({batch, k, n}, b), b_dtype.or_else(dtype)),
                            span(&Operands::c, extent({batch, m, n}, c), dtype, true)};
  if (has_d) list.push_back(span(&Operands::d, extent({batch, m, n}, d), dtype));
  add_spans<Operands>(list, epilogue, m, n, extent({batch, m, n}, c));
  return list;
}

std::vector<CheckWindow<GemmProblem>> GemmProblem::check_windows() const {
  std::vector<CheckWindow<GemmProblem>> list;
  for (const bool last : {false, true}) {
    CheckWindow<GemmProblem> window{*this};
    GemmProblem& p = window.problem;
    p.batch = 1;
    int64_t size = 4 * kCheckWindow;
    do {
      size /= 2;
      p.m = std::min(m, size), p.n = std::min(n, size);
    } while (size > 1 && p.flops() > kMostWindowFlops);
    const int64_t at = last ? batch - 1 : 0, row = last ? m - p.m : 0, column = last ? n - p.n : 0;
    window.shift.a.offset = at * a[0] + row * a[1];
    window.shift.b.offset = at * b[0] + column * b[2];
    window.shift.c.offset = at * c[0] + row * c[1] + column * c[2];
    window.shift.d.offset = at * d[0] + row * d[1] + column * d[2];
    shift_extras(window.shift, epilogue, row, column, window.shift.c.offset);
    list.push_back(window);
  }
  return list;
}

GemmProblem GemmProblem::reduced() const {
  GemmProblem p = *this;
  p.batch = std::min<int64_t>(batch, 2);
  for (int64_t* size : {&p.m, &p.n, &p.k}) *size = std::min(*size, kReducedSize);
  close_gaps({p.batch, p.m, p.k}, p.a), close_gaps({p.batch, p.k, p.n}, p.b);
  close_gaps({p.batch, p.m, p.n}, p.c), close_gaps({p.batch, p.m, p.n}, p.d);
  p.normalize();
  return p;
}

std::vector<uint64_t> GemmProblem::shape_classes() const {
  GemmProblem p = *this;
  p.batch = batch > 1;
  for (int64_t* strides : {p.a, p.b, p.c, p.d})
    for (int i = 0; i < 3; i++) strides[i] = std::min<int64_t>(strides[i], 2);
  std::vector<uint64_t> list;
  const auto without = [&](int64_t GemmProblem::*size) {
    GemmProblem member = p;
    member.*size = 0;
    list.push_back(hash_of(member));
  };
  without(&GemmProblem::m);  // the rows of a linear layer and of its input's gradient
  without(&GemmProblem::k);  // the rows in the weight's gradient, and what attention reads
  // The columns do not tell a class for every product: a network has layers of several widths with one input.
  if (n <= m || batch > 1) without(&GemmProblem::n);
  return list;
}

uint64_t GemmProblem::size_bucket() const {
  GemmProblem p = *this;
  for (int64_t* size : {&p.batch, &p.m, &p.n, &p.k}) *size = coarse(*size);
  for (int64_t* strides : {p.a, p.b, p.c, p.d})
    for (int i = 0; i < 3; i++) strides[i] = coarse_stride(strides[i]);
  return hash_of(p);
}

}  // namespace dlb::solver
