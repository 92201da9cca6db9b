// Tensors made or rearranged by position: arange, linspace, logspace, eye, tril, triu, flip, roll,
// repeat_interleave.
#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/roll_native.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tril_meta.h>
#include <ATen/ops/triu_meta.h>

#include <cmath>

#include "codegen/pointwise.h"
#include "ops/common/structured.h"
#include "ops/index/access.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using codegen::DType;

// The tensor to write for an out= tensor: itself or a contiguous stand-in.
at::Tensor dense_for(const at::Tensor& out) {
  return out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
}
at::Tensor& hand_over(const at::Tensor& dense, at::Tensor& out) {
  if (!dense.is_same(out)) out.copy_(dense);
  return out;
}

// Compute type and kernel options for a sequence of elements of `type`. `exact`: integers stay integers.
struct SequenceForm {
  DType compute;
  const char* options;
};
SequenceForm sequence_form(const cl::Device& device, DType type, bool exact) {
  switch (codegen::class_of(type)) {
    case codegen::DClass::Complex:
      return {type, "-DR=REAL"};
    case codegen::DClass::Float:
      return {device.fp64 ? DType::F64 : DType::F32, "-DR=REAL -DPOWER"};
    default:
      if (exact) return {DType::I64, "-DR=T"};
      return {device.fp64 ? DType::F64 : DType::F32, "-DR=REAL -DPOWER"};
  }
}

void fill_sequence(const char* kernel, at::Tensor& out, bool exact,
                   std::initializer_list<c10::Scalar> values) {
  if (out.numel() == 0) return;
  const c10::DeviceGuard guard(out.device());
  const at::Tensor dense = dense_for(out);
  TORCH_CHECK(out.numel() < (int64_t{1} << 31), kernel + 4,
              ": more than 2^31 - 1 elements are not supported");
  Stream& stream = current_stream(out.device().index());
  cl::Device& device = stream.device();
  const DType type = dtype_of(out.scalar_type(), kernel + 4);
  check_device_supports(device, type, kernel + 4);
  const SequenceForm form = sequence_form(device, type, exact);
  const auto count = static_cast<uint32_t>(out.numel());
  const Split split = split_work(device, count);
  const Buffer to = buffer_of(dense);
  fetch_kernel(device, "range/range.cl", kernel, form.compute, {type}, form.options)
      .launch_with(stream.queue(), split.range, [&](cl::Kernel::Arguments& arguments) {
        arguments.add(to.mem);
        arguments.add(to.offset);
        arguments.add(count);
        arguments.add(split.per_item);
        for (const c10::Scalar& value : values) {
          const ScalarArg arg = scalar_arg(value, form.compute);
          arguments.add_bytes(&arg, arg.size);
        }
      });
  hand_over(dense, out);
}

void check_sequence(const at::Tensor& out, const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(out.scalar_type() != at::kBool && !out.is_complex(), "\"", op,
                              "\" not implemented for '", c10::toString(out.scalar_type()), "'");
}

// Number of elements of arange, as numpy's: computed in double, except where int64 is more precise.
int64_t arange_size(const c10::Scalar& start, const c10::Scalar& end, const c10::Scalar& step, bool is_long) {
  const double first = start.toDouble(), last = end.toDouble(), by = step.toDouble();
  TORCH_CHECK(by > 0 || by < 0, "step must be nonzero");
  TORCH_CHECK(std::isfinite(first) && std::isfinite(last), "unsupported range: ", first, " -> ", last);
  TORCH_CHECK((by > 0 && last >= first) || (by < 0 && last <= first),
              "upper bound and lower bound inconsistent with step sign");
  double size = 0;
  if (is_long) {
    const int64_t a = start.toLong(), b = end.toLong(), s = step.toLong();
    TORCH_CHECK_VALUE(s != 0, "step must be nonzero");
    const int64_t sign = (s > 0) - (s < 0);
    size = std::ceil(static_cast<double>((b - a + s - sign) / s));
  } else {
    size = std::ceil((last - first) / by);
  }
  TORCH_CHECK(size >= 0 && size <= 9.2e18, "invalid size, possible overflow?");
  return static_cast<int64_t>(size);
}

void resize_sequence(at::Tensor& out, int64_t size) {
  if (out.numel() == size) return;
  if (out.numel() > 0)
    TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ", out.numel(),
               " which does not match the computed number of elements ", size,
               ". Note that this may occur as a result of rounding error. The out tensor will be resized to "
               "a tensor "
               "of shape (",
               size, ",).");
  out.resize_({size});
}

at::Tensor& arange_out(const c10::Scalar& start, const c10::Scalar& end, const c10::Scalar& step,
                       at::Tensor& out) {
  check_sequence(out, "arange");
  const bool integral = c10::isIntegralType(out.scalar_type(), false);
  resize_sequence(out, arange_size(start, end, step, out.scalar_type() == at::kLong));
  if (integral)  // each value becomes an integer before the sequence is formed
    fill_sequence("dlb_arange", out, true, {start.toLong(), step.toLong()});
  else
    fill_sequence("dlb_arange", out, true, {start, step});
  return out;
}

// range(): like arange, with the end included.
at::Tensor& range_out(const c10::Scalar& start, const c10::Scalar& end, const c10::Scalar& step,
                      at::Tensor& out) {
  const double first = start.toDouble(), last = end.toDouble(), by = step.toDouble();
  arange_size(start, end, step, false);
  resize_sequence(out, static_cast<int64_t>((last - first) / by + 1));
  fill_sequence("dlb_arange", out, true, {start, step});
  return out;
}

c10::Scalar cast_to(const c10::Scalar& value, at::ScalarType type) {
  if (c10::isComplexType(type)) return value.toComplexDouble();
  if (c10::isIntegralType(type, true)) return static_cast<double>(value.toLong());
  return value.toDouble();
}

// The distance of neighbours. It is rounded as on the CPU, because truncation to integers shows the last bit.
c10::Scalar spacing(const c10::Scalar& start, const c10::Scalar& stop, int64_t steps, at::ScalarType type) {
  const double intervals = static_cast<double>(std::max<int64_t>(1, steps - 1));
  if (start.isComplex()) return (stop.toComplexDouble() - start.toComplexDouble()) / intervals;
  if (c10::isIntegralType(type, true)) return (stop.toDouble() - start.toDouble()) / intervals;
  return stop.toDouble() / intervals - start.toDouble() / intervals;
}

void prepare_steps(at::Tensor& out, int64_t steps) {
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  if (out.numel() != steps) out.resize_({steps});
}

at::Tensor& linspace_out(const c10::Scalar& start, const c10::Scalar& end, int64_t steps, at::Tensor& out) {
  prepare_steps(out, steps);
  const c10::Scalar first = cast_to(start, out.scalar_type()), last = cast_to(end, out.scalar_type());
  if (steps == 1)
    out.fill_(start);
  else
    fill_sequence("dlb_linspace", out, false, {first, last, spacing(first, last, steps, out.scalar_type())});
  return out;
}

at::Tensor& logspace_out(const c10::Scalar& start, const c10::Scalar& end, int64_t steps, double base,
                         at::Tensor& out) {
  if (out.is_complex()) return at::pow_out(out, base, linspace_out(start, end, steps, out));
  prepare_steps(out, steps);
  const c10::Scalar first = cast_to(start, out.scalar_type()), last = cast_to(end, out.scalar_type());
  if (steps == 1)
    out.fill_(std::pow(base, first.toDouble()));
  else
    fill_sequence("dlb_logspace", out, false,
                  {first, last, spacing(first, last, steps, out.scalar_type()), base});
  return out;
}

at::Tensor& eye_m_out(int64_t n, int64_t m, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be greater or equal to 0, got ", n);
  TORCH_CHECK(m >= 0, "m must be greater or equal to 0, got ", m);
  out.resize_({n, m});
  out.zero_();
  if (out.numel() > 0) out.diagonal().fill_(1);
  return out;
}
at::Tensor& eye_out(int64_t n, at::Tensor& out) {
  return eye_m_out(n, n, out);
}

void run_triangle(const at::Tensor& self, const at::Tensor& out, int64_t diagonal, bool upper) {
  if (out.numel() == 0) return;
  TORCH_CHECK(out.numel() < (int64_t{1} << 31),
              "tril and triu of more than 2^31 - 1 elements are not supported");
  const c10::DeviceGuard guard(out.device());
  const int64_t rows = self.size(-2), columns = self.size(-1);
  // Any strides of the matrix; the batch dimensions must be evenly spaced, or are made so by a copy.
  bool even = true;
  for (int64_t d = self.dim() - 4; d >= 0; --d)
    even &= self.stride(d) == self.stride(d + 1) * self.size(d + 1);
  const at::Tensor in =
      even && !self.is_conj() && !self.is_neg() ? self : self.resolve_conj().resolve_neg().contiguous();
  Stream& stream = current_stream(out.device().index());
  cl::Device& device = stream.device();
  const bool cpu = device.cls == cl::DeviceClass::kCpu;
  const auto count = static_cast<uint32_t>(cpu ? out.numel() / columns : out.numel());
  const Split split = split_work(device, count, static_cast<uint32_t>(std::max<int64_t>(1, 8192 / columns)));
  const Buffer from = buffer_of(in), to = buffer_of(out);
  fetch_kernel(device, "range/triangle.cl", "dlb_triangle", DType::U8, {}, width_option(out.itemsize()))
      .launch(stream.queue(), split.range, from.mem, to.mem, from.offset, to.offset, in.stride(-2),
              in.stride(-1), in.dim() > 2 ? in.stride(-3) : int64_t{0},
              codegen::make_divider(static_cast<uint32_t>(rows)),
              codegen::make_divider(static_cast<uint32_t>(columns)), count, split.per_item, diagonal,
              static_cast<int32_t>(upper));
}

template <class Meta, bool kUpper>
at::Tensor& triangle_out(const at::Tensor& self, int64_t diagonal, at::Tensor& out) {
  OutOp<Meta> op(out);
  op.meta(self, diagonal);
  const at::Tensor& result = op.result();
  if (result.is_contiguous()) {
    run_triangle(self, result, diagonal, kUpper);
  } else {
    const at::Tensor dense = at::empty(result.sizes(), result.options());
    run_triangle(self, dense, diagonal, kUpper);
    result.copy_(dense);
  }
  op.finish();
  return out;
}

// [2, n]: rows and columns of a triangle's elements, row by row; found as the nonzero positions of a mask.
template <bool kUpper>
at::Tensor triangle_indices(int64_t rows, int64_t columns, int64_t offset,
                            std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                            std::optional<at::Device> device, std::optional<bool> pin_memory) {
  TORCH_CHECK(rows >= 0, "row must be non-negative, got", rows);
  TORCH_CHECK(columns >= 0, "col must be non-negative, got", columns);
  const at::TensorOptions options = at::TensorOptions().dtype(dtype.value_or(at::kLong)).device(device);
  at::Tensor mask = at::empty({rows, columns}, options.dtype(at::kBool)).fill_(true);
  mask = kUpper ? mask.triu(offset) : mask.tril(offset);
  return mask.nonzero().t().contiguous().to(options.dtype());
}

at::Tensor flip(const at::Tensor& self, at::IntArrayRef dims) {
  const auto flipped = at::dim_list_to_bitset(dims, self.dim());
  at::Tensor out = at::empty_like(self, at::MemoryFormat::Preserve);
  if (out.numel() == 0) return out;
  const c10::DeviceGuard guard(self.device());
  const at::Tensor in = self.resolve_conj().resolve_neg();
  IndexAccess access;
  access.plain = out;
  access.indexed = in;
  access.sizes = self.sizes();
  access.plain_strides = out.strides();
  access.indexed_strides = in.strides();
  for (int64_t d = 0; d < self.dim(); ++d) {
    const auto i = static_cast<size_t>(d);
    if (!flipped[i]) continue;
    access.indexed_offset += (self.size(d) - 1) * in.stride(d);
    access.indexed_strides[i] = -in.stride(d);
  }
  run_index_access(access);
  return out;
}

at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<int64_t> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
              "repeats has to be Long or Int tensor");
  if (repeats.size(0) == 0) return at::empty_like(repeats);
  const at::Tensor ends = repeats.cumsum(0, repeats.scalar_type());
  if (output_size) {
    static const int32_t site =
        register_error_site({"repeat_interleave", "allocated size does not match required size", false});
    check_range(ends.narrow(0, -1, 1).sub(*output_size), 1, site);
  } else {
    TORCH_CHECK(repeats.min().item<int64_t>() >= 0, "repeats can not be negative");
    output_size = ends.select(0, -1).item<int64_t>();
  }
  return at::searchsorted(ends, at::arange(*output_size, repeats.options()),
                          /*out_int32=*/repeats.scalar_type() == at::kInt, /*right=*/true);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("arange.start_out", arange_out);
  m.impl("range.out", range_out);
  m.impl("range.out_", [](const c10::Scalar& start, const c10::Scalar& end, at::Tensor& out) -> at::Tensor& {
    return range_out(start, end, 1, out);
  });
  m.impl("linspace.out", linspace_out);
  m.impl("logspace.out", logspace_out);
  m.impl("eye.out", eye_out);
  m.impl("eye.m_out", eye_m_out);
  m.impl("tril.out", triangle_out<at::meta::structured_tril, false>);
  m.impl("triu.out", triangle_out<at::meta::structured_triu, true>);
  m.impl("tril_indices", triangle_indices<false>);
  m.impl("triu_indices", triangle_indices<true>);
  m.impl("flip", flip);
  m.impl("roll", at::native::roll);
  m.impl("repeat_interleave.Tensor", repeat_interleave);
}

}  // namespace dlb
