// The three ops that all of torch.fft, stft and istft are made of.
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "ops/common/paired_dims.h"
#include "primitives/fft/problem.h"
#include "runtime/new_tensor.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using at::IntArrayRef;
using at::Tensor;
using fft::FftProblem;

// As torch/csrc/api counts them: nothing, 1 / sqrt(n), 1 / n.
enum Normalization : int64_t { kNone, kByRoot, kByN };

double scale_of(int64_t normalization, IntArrayRef sizes, IntArrayRef dims) {
  double n = 1;
  for (const int64_t d : dims) n *= static_cast<double>(sizes[static_cast<size_t>(d)]);
  return normalization == kByRoot ? 1 / std::sqrt(n) : normalization == kByN ? 1 / n : 1;
}

// A dimension of the batch on both sides.
// Dimensions of the batch with neighbours merged where both sides allow it, the innermost of the result
// first.
c10::SmallVector<PairedDim, 8> batch_of(const Tensor& in, const Tensor& out, int64_t dim) {
  c10::SmallVector<PairedDim, 8> list, merged;
  for (int64_t d = in.dim() - 1; d >= 0; d--)
    if (d != dim && in.size(d) != 1) list.push_back({in.size(d), in.stride(d), out.stride(d)});
  std::stable_sort(list.begin(), list.end(),
                   [](const PairedDim& a, const PairedDim& b) { return a.out < b.out; });
  for (const PairedDim& d : list) append_merged(merged, d);
  return merged;
}

// Transforms one dimension of `in` into `out`; `n` is the number of points.
void transform(const Tensor& in, const Tensor& out, int64_t dim, int64_t n, fft::Kind kind, bool inverse,
               double scale) {
  if (out.numel() == 0) return;
  if (kind == fft::kFromReal && in.stride(dim) == 0 && in.size(dim) > 1)
    return transform(in.contiguous(), out, dim, n, kind, inverse, scale);  // pairs of numbers are two places
  const auto batch = batch_of(in, out, dim);
  if (static_cast<int64_t>(batch.size()) > fft::kMostBatchDims) {
    // more gaps than kernels know: one slice of the outermost dimension at a time
    int64_t outermost = dim == 0 ? 1 : 0;
    for (int64_t d = 0; d < in.dim(); d++)
      if (d != dim && out.stride(d) > out.stride(outermost)) outermost = d;
    for (int64_t i = 0; i < in.size(outermost); i++)
      transform(in.select(outermost, i), out.select(outermost, i), dim - (outermost < dim), n, kind, inverse,
                scale);
    return;
  }
  Stream& stream = current_stream(out.device().index());
  FftProblem p = fft::fft_op.make();
  p.device = static_cast<int8_t>(out.device().index());
  p.dtype = kind == fft::kToReal ? in.scalar_type() : out.scalar_type();
  p.n = n, p.kind = kind, p.inverse = inverse, p.outputs = out.size(dim);
  p.in_step = in.size(dim) == 1 ? 1 : in.stride(dim), p.out_step = out.size(dim) == 1 ? 1 : out.stride(dim);
  for (size_t d = 0; d < batch.size(); d++)
    p.batch[d] = batch[d].size, p.in_batch[d] = batch[d].in, p.out_batch[d] = batch[d].out;
  p.finish();
  solver::MemoryOperands operands;
  operands.in0 = buffer_of(in), operands.out0 = buffer_of(out), operands.scalar = scale;
  fft::run(p, operands, stream);
}

// torch.fft's functions pass dimensions counted from the first; others that call these ops need not.
at::DimVector wrapped(const Tensor& self, IntArrayRef dims) {
  at::DimVector result(dims.begin(), dims.end());
  at::maybe_wrap_dims(result, self.dim());
  return result;
}

void check_type(const Tensor& t, const char* op, bool complex) {
  const auto type = t.scalar_type();
  TORCH_CHECK(complex ? t.is_complex() : t.is_floating_point(), op, " expects a ",
              complex ? "complex" : "floating point", " tensor as input, but got ", type);
  check_device_supports(device_of(t.device().index()), dtype_of(type, op), op);
  TORCH_CHECK_NOT_IMPLEMENTED(type != at::kHalf && type != at::kBFloat16, "\"", op,
                              "\" is not implemented for '", c10::toString(type),
                              "' on ocl; convert to float32");
}

Tensor empty_like_of(const Tensor& self, IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, self.options().dtype(type).memory_format(std::nullopt));
}

// `dims` from the largest stride to the smallest, but for the last one where that shall stay.
at::DimVector sorted_by_stride(const Tensor& self, IntArrayRef dims, bool keep_last = false) {
  at::DimVector sorted(dims.begin(), dims.end());
  std::stable_sort(sorted.begin(), sorted.end() - keep_last,
                   [&](int64_t a, int64_t b) { return self.stride(a) > self.stride(b); });
  return sorted;
}

// A new result in the layout of PyTorch's own kernels, which its tracers take for granted: dense, the
// dimensions of the batch as they lie in `self`, then `dims`.
Tensor new_result(const Tensor& self, IntArrayRef sizes, at::ScalarType type, IntArrayRef dims) {
  at::DimVector others;
  for (int64_t d = 0; d < self.dim(); d++)
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) others.push_back(d);
  at::DimVector order = sorted_by_stride(self, others);
  order.append(dims.begin(), dims.end());
  at::DimVector strides(order.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const auto d = static_cast<size_t>(order[i]);
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return new_strided_tensor(sizes, strides, type, self.device());
}

// Computes into `out`, or into a new tensor that is copied to it where that has gaps that kernels would have
// to keep.
void transform_complex(const Tensor& self, const Tensor& out, IntArrayRef dims, double scale, bool forward) {
  if (dims.empty()) {
    out.copy_(self);
    return;
  }
  // Contiguous dimensions first: their passes read what others have not scattered. The result is transformed
  // in place from the second on.
  Tensor from = self;
  for (size_t i = dims.size(); i-- > 0;) {
    transform(from, out, dims[i], self.size(dims[i]), fft::kComplex, !forward, i == 0 ? scale : 1);
    from = out;
  }
}

// A tensor that kernels may write: `out` itself where it has their dtype, its elements do not overlap, and it
// does not overlap the input.
Tensor writable(const Tensor& out, const Tensor& self, IntArrayRef sizes, at::ScalarType type) {
  TORCH_CHECK(out.device() == self.device(), "Expected out tensor to have device ", self.device(),
              ", but got ", out.device(), " instead");
  at::native::resize_output(out, sizes);
  const bool plain = out.scalar_type() == type && !out.is_conj() && !out.is_neg() &&
                     at::has_internal_overlap(out) == at::MemOverlap::No &&
                     at::get_overlap_status(out, self) == at::MemOverlapStatus::No;
  return plain ? out : empty_like_of(out, sizes, type);
}

Tensor& complex_out(const Tensor& self, IntArrayRef given, int64_t normalization, bool forward, Tensor& out) {
  check_type(self, "_fft_c2c", true);
  const at::DimVector dims = wrapped(self, given);
  const Tensor target = writable(out, self, self.sizes(), self.scalar_type());
  transform_complex(self, target, dims, scale_of(normalization, self.sizes(), dims), forward);
  if (!target.is_same(out)) out.copy_(target);
  return out;
}

Tensor fft_c2c(const Tensor& self, c10::SymIntArrayRef dims, int64_t normalization, bool forward) {
  check_type(self, "_fft_c2c", true);
  const auto sorted = sorted_by_stride(self, wrapped(self, C10_AS_INTARRAYREF_SLOW(dims)));
  if (sorted.empty()) return self.clone();
  Tensor out = new_result(self, self.sizes(), self.scalar_type(), sorted);
  transform_complex(self, out, sorted, scale_of(normalization, self.sizes(), sorted), forward);
  return out;
}

Tensor& fft_c2c_out(const Tensor& self, c10::SymIntArrayRef dims, int64_t normalization, bool forward,
                    Tensor& out) {
  return complex_out(self, C10_AS_INTARRAYREF_SLOW(dims), normalization, forward, out);
}

c10::SmallVector<int64_t, 6> with_size(IntArrayRef sizes, int64_t dim, int64_t size) {
  c10::SmallVector<int64_t, 6> result(sizes.begin(), sizes.end());
  result[static_cast<size_t>(dim)] = size;
  return result;
}

void transform_from_real(const Tensor& self, const Tensor& out, IntArrayRef dims, double scale) {
  const IntArrayRef others = dims.slice(0, dims.size() - 1);
  transform(self, out, dims.back(), self.size(dims.back()), fft::kFromReal, false,
            others.empty() ? scale : 1);
  if (!others.empty()) transform_complex(out, out, others, scale, true);
}

c10::SmallVector<int64_t, 6> from_real_sizes(const Tensor& self, IntArrayRef dims, bool onesided) {
  TORCH_CHECK(!dims.empty(), "_fft_r2c needs a dimension");
  const int64_t n = self.size(dims.back());
  return with_size(self.sizes(), dims.back(), onesided ? n / 2 + 1 : n);
}

Tensor fft_r2c(const Tensor& self, IntArrayRef given, int64_t normalization, bool onesided) {
  check_type(self, "_fft_r2c", false);
  const at::DimVector dims = wrapped(self, given);
  const auto sizes = from_real_sizes(self, dims, onesided);
  const auto sorted = sorted_by_stride(self, dims, true);
  Tensor out = new_result(self, sizes, c10::toComplexType(self.scalar_type()), sorted);
  transform_from_real(self, out, sorted, scale_of(normalization, self.sizes(), dims));
  return out;
}

Tensor& fft_r2c_out(const Tensor& self, IntArrayRef given, int64_t normalization, bool onesided,
                    Tensor& out) {
  check_type(self, "_fft_r2c", false);
  const at::DimVector dims = wrapped(self, given);
  const Tensor target =
      writable(out, self, from_real_sizes(self, dims, onesided), c10::toComplexType(self.scalar_type()));
  transform_from_real(self, target, dims, scale_of(normalization, self.sizes(), dims));
  if (!target.is_same(out)) out.copy_(target);
  return out;
}

// Transforms all dimensions but the last; the result is left to be transformed along that one.
Tensor but_last(const Tensor& self, IntArrayRef dims, int64_t n) {
  TORCH_CHECK(!dims.empty(), "_fft_c2r needs a dimension");
  TORCH_CHECK(self.size(dims.back()) >= n / 2 + 1, "_fft_c2r of ", n, " points needs ", n / 2 + 1,
              " numbers of their spectrum, but got ", self.size(dims.back()));
  if (dims.size() == 1) return self;
  const auto sorted = sorted_by_stride(self, dims.slice(0, dims.size() - 1));
  Tensor from = new_result(self, self.sizes(), self.scalar_type(), sorted);
  transform_complex(self, from, sorted, 1, false);
  return from;
}

Tensor fft_c2r(const Tensor& self, IntArrayRef given, int64_t normalization, c10::SymInt last_dim_size) {
  check_type(self, "_fft_c2r", true);
  const at::DimVector dims = wrapped(self, given);
  const int64_t n = last_dim_size.guard_int(__FILE__, __LINE__);
  const Tensor from = but_last(self, dims, n);
  Tensor out = new_result(from, with_size(self.sizes(), dims.back(), n),
                          c10::toRealValueType(self.scalar_type()), IntArrayRef(dims).slice(dims.size() - 1));
  transform(from, out, dims.back(), n, fft::kToReal, true, scale_of(normalization, out.sizes(), dims));
  return out;
}

Tensor& fft_c2r_out(const Tensor& self, IntArrayRef given, int64_t normalization, c10::SymInt last_dim_size,
                    Tensor& out) {
  check_type(self, "_fft_c2r", true);
  const at::DimVector dims = wrapped(self, given);
  const int64_t n = last_dim_size.guard_int(__FILE__, __LINE__);
  const Tensor from = but_last(self, dims, n);
  const Tensor target =
      writable(out, self, with_size(self.sizes(), dims.back(), n), c10::toRealValueType(self.scalar_type()));
  transform(from, target, dims.back(), n, fft::kToReal, true, scale_of(normalization, target.sizes(), dims));
  if (!target.is_same(out)) out.copy_(target);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fft_c2c", fft_c2c);
  m.impl("_fft_c2c.out", fft_c2c_out);
  m.impl("_fft_r2c", fft_r2c);
  m.impl("_fft_r2c.out", fft_r2c_out);
  m.impl("_fft_c2r", fft_c2r);
  m.impl("_fft_c2r.out", fft_c2r_out);
}

}  // namespace dlb
