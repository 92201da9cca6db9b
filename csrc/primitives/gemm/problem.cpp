#include "primitives/gemm/problem.h"

#include <stdexcept>

#include "primitives/common/extent.h"

namespace dlb::solver {
namespace {

constexpr int64_t kReducedSize = 512;  // sizes of a reduced problem, at most

}  // namespace

GemmProblem::GemmProblem() {
  op = &gemm_op;
}

void GemmProblem::check() const {
  const bool groups = b_dtype.is_nibbles();
  const bool right = group >= 32 && group % 32 == 0 && k % group == 0 && group_pitch >= 2 * n && batch == 1 &&
                     (k == 1 || b[1] == 1) && b[2] % 2 == 0 &&
                     (dtype == c10::kFloat || dtype == c10::kHalf || dtype == c10::kBFloat16);
  const bool floats = c10::isFloatingType(dtype);
  if ((a_dtype.is_float8() || b_dtype.is_float8()) && !floats)
    throw std::invalid_argument("problem key: operands of float8 are for problems of floating point");
  if (a_dtype.is_nibbles() || groups != has_groups() || (groups && !right))
    throw std::invalid_argument(
        "problem key: b=u4 takes groups of 32 or more along k of a product that is no batch");
}

void GemmProblem::normalize() {
  for (int64_t* s : {a, b, c, d})
    if (batch == 1) s[0] = 0;
  if (m == 1) a[1] = c[1] = d[1] = 0;
  if (n == 1) b[2] = c[2] = d[2] = 0;
  if (k == 1) a[2] = b[1] = 0;
  if (!has_d) d[0] = d[1] = d[2] = 0;
}

double GemmProblem::b_bytes(double elements) const {
  return b_dtype.is_nibbles() ? elements / 2 : elements * double(c10::elementSize(b_dtype.or_else(dtype)));
}

std::vector<Span> GemmProblem::spans() const {
  std::vector<Span> list = {
      operand_span(&Operands::a, extent({batch, m, k}, a), a_dtype, dtype),
      operand_span(&Operands::b, extent({batch, k, n}, b), b_dtype, dtype),
      span(&Operands::c, extent({batch, m, n}, c), epilogue ? trial_type(epilogue.first_type) : dtype, true)};
  if (has_d) list.push_back(span(&Operands::d, extent({batch, m, n}, d), dtype));
  if (group) list.push_back(span(&Operands::groups, (k / group - 1) * group_pitch + 2 * n, dtype));
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
    window.shift.b.offset = (at * b[0] + column * b[2]) / (b_dtype.is_nibbles() ? 2 : 1);
    window.shift.groups.offset = 2 * column;
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
  if (group) p.k = std::max<int64_t>(p.k / group, 1) * group, p.group_pitch = 2 * p.n;
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
  p.group_pitch = 0;
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
  p.group_pitch = coarse_stride(p.group_pitch);
  return hash_of(p);
}

}  // namespace dlb::solver
