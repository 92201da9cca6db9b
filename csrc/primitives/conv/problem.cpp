#include "primitives/conv/problem.h"

#include <stdexcept>

#include "primitives/common/extent.h"

namespace dlb::solver {

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

void ConvProblem::check() const {
  const bool mixed = x_dtype || w_dtype;
  const bool right = x_dtype.is_byte() && w_dtype.is_byte() && dtype == c10::ScalarType::Int &&
                     direction == ConvDirection::kForward;
  if (mixed && !right)
    throw std::invalid_argument("problem key: x and w are of 8 bits in forward convolutions of int32 alone");
}

std::vector<Span> ConvProblem::spans() const {
  std::vector<Span> list = {
      span(&Operands::x, extent({n, c, in[0], in[1], in[2]}, xs), x_dtype.or_else(dtype),
           direction == ConvDirection::kInputGrad),
      span(&Operands::w, extent({k, c / groups, filter[0], filter[1], filter[2]}, ws), w_dtype.or_else(dtype),
           direction == ConvDirection::kWeightGrad),
      span(&Operands::y, extent({n, k, out[0], out[1], out[2]}, ys),
           epilogue ? trial_type(epilogue.first_type) : dtype, direction == ConvDirection::kForward)};
  if (has_bias) list.push_back(span(&Operands::bias, direction == ConvDirection::kInputGrad ? c : k, dtype));
  add_spans<Operands>(list, epilogue, 1, k, extent({n, k, out[0], out[1], out[2]}, ys));
  return list;
}

namespace {

// Keeps `most` of `size`, at its begin or at its end; returns where that begins.
int32_t crop(int32_t& size, int32_t most, bool last) {
  const int32_t begin = last && size > most ? size - most : 0;
  size = std::min(size, most);
  return begin;
}

// Takes one of the groups, and of it and of the images as many channels and images as fit a window.
void crop_channels(CheckWindow<ConvProblem>& window, const ConvProblem& whole, bool last, int32_t size) {
  ConvProblem& p = window.problem;
  const bool weight_grad = whole.direction == ConvDirection::kWeightGrad;
  const int32_t group = last ? whole.groups - 1 : 0;
  p.groups = 1, p.c = whole.c / whole.groups, p.k = whole.k / whole.groups;
  int64_t c0 = group * p.c, k0 = group * p.k;
  const int64_t w_c0 = c0;  // a filter has the channels of its group alone
  const int32_t channels = weight_grad ? std::max(1, size / 2) : size;
  if (whole.direction != ConvDirection::kInputGrad) k0 += crop(p.k, channels, last);
  if (whole.direction != ConvDirection::kForward) c0 += crop(p.c, channels, last);
  const int64_t n0 = weight_grad ? 0 : crop(p.n, 1, last);
  window.shift.x.offset = n0 * whole.xs[0] + c0 * whole.xs[1];
  window.shift.y.offset = n0 * whole.ys[0] + k0 * whole.ys[1];
  window.shift.w.offset = k0 * whole.ws[0] + (c0 - w_c0) * whole.ws[1];
  window.shift.bias.offset = whole.direction == ConvDirection::kInputGrad ? c0 : k0;
}

// The first or the last results, with at most `size` along each dimension of the result. A window of an image
// or of a filter is the whole of one with another padding.
CheckWindow<ConvProblem> window_of(const ConvProblem& whole, bool last, int32_t size) {
  CheckWindow<ConvProblem> window{whole};
  crop_channels(window, whole, last, size);
  ConvProblem& p = window.problem;
  for (int i = 0; i < 3; i++) {
    if (whole.direction == ConvDirection::kForward) {
      const int32_t begin = crop(p.out[i], size, last);
      p.padding[i] = whole.padding[i] - begin * whole.stride[i];
      window.shift.y.offset += begin * whole.ys[2 + i];
    } else if (whole.direction == ConvDirection::kInputGrad) {
      const int32_t begin = crop(p.in[i], size, last);
      p.padding[i] = whole.padding[i] + begin;
      window.shift.x.offset += begin * whole.xs[2 + i];
    } else {
      const int32_t begin = crop(p.filter[i], size, last);
      p.padding[i] = whole.padding[i] - begin * whole.dilation[i];
      window.shift.w.offset += begin * whole.ws[2 + i];
    }
  }
  shift_extras(window.shift, whole.epilogue, 0, window.shift.bias.offset, window.shift.y.offset);
  return window;
}

}  // namespace

std::vector<CheckWindow<ConvProblem>> ConvProblem::check_windows() const {
  std::vector<CheckWindow<ConvProblem>> list;
  for (const bool last : {false, true}) {
    int32_t window = kCheckWindow;
    while (window > 1 && window_of(*this, last, window).problem.flops() > kMostWindowFlops) window /= 2;
    list.push_back(window_of(*this, last, window));
  }
  return list;
}

ConvProblem ConvProblem::in_direction(ConvDirection other) const {
  ConvProblem p = *this;
  p.direction = other;
  p.op = &conv_op(other);
  p.epilogue = {};
  return p;
}

ConvProblem ConvProblem::reduced() const {
  constexpr int32_t kPixels = 32;  // in each direction
  ConvProblem p = *this;
  p.n = std::min(n, 2);
  for (int i = 0; i < 3; i++) {
    p.out[i] = std::min(out[i], kPixels);
    const int32_t reached = (p.out[i] - 1) * stride[i] - padding[i] + dilation[i] * (filter[i] - 1) + 1;
    p.in[i] = std::clamp(reached, 1, in[i]);
  }
  close_gaps({p.n, p.c, p.in[0], p.in[1], p.in[2]}, p.xs);
  close_gaps({p.k, p.c / p.groups, p.filter[0], p.filter[1], p.filter[2]}, p.ws);
  close_gaps({p.n, p.k, p.out[0], p.out[1], p.out[2]}, p.ys);
  p.normalize();
  return p;
}

std::vector<uint64_t> ConvProblem::shape_classes() const {
  ConvProblem p = *this;
  p.n = 0;
  for (int i = 0; i < 3; i++) p.in[i] = in[i] > 1, p.out[i] = out[i] > 1;
  for (int64_t* strides : {p.xs, p.ws, p.ys})
    for (int i = 0; i < 5; i++) strides[i] = std::min<int64_t>(strides[i], 2);
  return {hash_of(p)};
}

uint64_t ConvProblem::size_bucket() const {
  ConvProblem p = *this;
  p.n = static_cast<int32_t>(coarse(n));
  for (int i = 0; i < 3; i++) p.in[i] = in[i] > 1, p.out[i] = out[i] > 1;
  p.in[0] += static_cast<int32_t>(2 * coarse(in_pixels()));
  p.out[0] += static_cast<int32_t>(2 * coarse(out_pixels()));
  for (int64_t* strides : {p.xs, p.ws, p.ys})
    for (int i = 0; i < 5; i++) strides[i] = coarse_stride(strides[i]);
  return hash_of(p);
}

}  // namespace dlb::solver
