// segment_reduce and its gradient: segments of a dimension, given by their lengths or by where they begin.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <array>
#include <limits>

#include "kernels/reduce/segment.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using OptionalScalar = std::optional<c10::Scalar>;
using params::SegmentParams;

int32_t reduction_of(std::string_view name) {
  struct Row {
    std::string_view name;
    int32_t reduction;
  };
  constexpr std::array<Row, 7> kRows = {{{"sum", params::SEGMENT_SUM},
                                         {"mean", params::SEGMENT_MEAN},
                                         {"prod", params::SEGMENT_PROD},
                                         {"max", params::SEGMENT_MAX},
                                         {"amax", params::SEGMENT_MAX},
                                         {"min", params::SEGMENT_MIN},
                                         {"amin", params::SEGMENT_MIN}}};
  for (const Row& row : kRows)
    if (row.name == name) return row.reduction;
  TORCH_CHECK(false, "reduce argument must be either sum, prod, mean, amax or amin, got ", name);
}

double initial_of(int32_t reduction, const OptionalScalar& given) {
  if (given) return given->toDouble();
  constexpr double inf = std::numeric_limits<double>::infinity();
  switch (reduction) {
    case params::SEGMENT_PROD:
      return 1;
    case params::SEGMENT_MAX:
      return -inf;
    case params::SEGMENT_MIN:
      return inf;
    default:
      return 0;
  }
}

// The operands of both directions.
struct Segments {
  at::Tensor data, bounds;
  at::DimVector shape;  // of the results
  SegmentParams p{};
  Stream& stream;
  codegen::DType type;

  Segments(const at::Tensor& given, std::string_view reduce, const OptionalTensor& lengths,
           const OptionalTensor& offsets, int64_t axis, const OptionalScalar& initial)
      : data(given.contiguous()),
        stream(current_stream(given.device().index())),
        type(dtype_of(given.scalar_type(), "segment_reduce")) {
    axis = at::maybe_wrap_dim(axis, data.dim());
    const bool by_length = lengths && lengths->defined();
    const at::Tensor& numbers = by_length ? *lengths : *offsets;
    TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(data.scalar_type()),
                                "\"segment_reduce\" not implemented for '", c10::toString(data.scalar_type()),
                                "'");
    TORCH_CHECK_NOT_IMPLEMENTED(numbers.scalar_type() == at::kLong || numbers.scalar_type() == at::kInt,
                                "\"segment_reduce\" not implemented for lengths or offsets of '",
                                c10::toString(numbers.scalar_type()), "'");
    TORCH_CHECK(numbers.device() == data.device(),
                "segment_reduce(): Expected all tensors to be on the same device, but found ",
                numbers.device(), " and ", data.device());
    TORCH_CHECK(axis == numbers.dim() - 1, "segment_reduce(): Expected axis to be the last dimension of ",
                by_length ? "lengths" : "offsets", " but got ", axis, ".");
    check_device_supports(stream.device(), type, "segment_reduce");
    bounds = numbers.to(at::kLong);
    if (by_length) {
      auto first = bounds.sizes().vec();
      first.back() = 1;
      bounds = at::cat({at::zeros(first, bounds.options()), at::cumsum(bounds, -1)}, -1);
    }
    bounds = bounds.contiguous();
    shape = at::DimVector(data.sizes());
    const auto d = static_cast<size_t>(axis);
    shape[d] = std::max<int64_t>(0, bounds.size(-1) - 1);
    TORCH_CHECK(data.numel() < (int64_t{1} << 31),
                "segment_reduce of 2^31 or more elements is not supported");
    p.outer = p.inner = 1;
    for (size_t i = 0; i < shape.size(); ++i)
      if (i != d) (i < d ? p.outer : p.inner) *= static_cast<uint32_t>(shape[i]);
    p.n = static_cast<uint32_t>(data.size(axis));
    p.segments = static_cast<uint32_t>(shape[d]);
    p.reduction = reduction_of(reduce);
    p.has_initial = initial.has_value();
    if (data.numel() > 0) p.data = buffer_of(data).offset;
    p.bounds = buffer_of(bounds).offset;
  }

  Split split() {
    const Split work = split_work(stream.device(), uint64_t{p.outer} * p.segments * p.inner, 512);
    p.per_item = work.per_item;
    return work;
  }
  cl::Kernel& kernel(const char* name) const {
    return fetch_kernel(stream.device(), "reduce/segment.cl", name, codegen::compute_type(type), {type});
  }
  // Calls `launch` with the initial value as the kernels take it.
  template <class Launch>
  void with(double initial, const Launch& launch) const {
    if (type == codegen::DType::F64)
      launch(initial);
    else
      launch(static_cast<float>(initial));
  }
};

// Waits for the device, as on CUDA.
void check_lengths(const at::Tensor& data, const at::Tensor& lengths, int64_t axis) {
  if (lengths.numel() == 0) return;
  TORCH_CHECK(lengths.min().item<int64_t>() >= 0, "lengths contains negative value!");
  TORCH_CHECK(
      lengths.sum(-1).eq(data.size(axis)).all().item<bool>(),
      "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) "
      "when !unsafe.");
}

at::Tensor segment_reduce(const at::Tensor& data, std::string_view reduce, const OptionalTensor& lengths,
                          const OptionalTensor& indices, const OptionalTensor& offsets, int64_t axis,
                          bool unsafe, const OptionalScalar& initial) {
  TORCH_CHECK(!indices || !indices->defined(),
              "segment_reduce(): indices based reduction is not supported yet.");
  const bool by_length = lengths && lengths->defined();
  TORCH_CHECK(by_length || (offsets && offsets->defined()),
              "segment_reduce(): Either lengths or offsets must be defined.");
  const c10::DeviceGuard guard(data.device());
  Segments segments(data, reduce, lengths, offsets, axis, initial);
  if (by_length && !unsafe) check_lengths(data, *lengths, axis);
  const at::Tensor out = at::empty(segments.shape, data.options().memory_format(std::nullopt));
  if (out.numel() == 0) return out;
  const Split split = segments.split();
  const Buffer to = buffer_of(out), bounds = buffer_of(segments.bounds),
               in = data.numel() ? buffer_of(segments.data) : to;
  segments.p.out = to.offset;
  segments.with(initial_of(segments.p.reduction, initial), [&](auto start) {
    segments.kernel("dlb_segment_reduce")
        .launch(segments.stream.queue(), split.range, in.mem, bounds.mem, to.mem, segments.p, start);
  });
  return out;
}

at::Tensor segment_reduce_backward(const at::Tensor& grad, const at::Tensor& output, const at::Tensor& data,
                                   std::string_view reduce, const OptionalTensor& lengths,
                                   const OptionalTensor& offsets, int64_t axis,
                                   const OptionalScalar& initial) {
  TORCH_CHECK((lengths && lengths->defined()) || (offsets && offsets->defined()),
              "segment_reduce(): Either lengths or offsets must be defined.");
  const c10::DeviceGuard guard(data.device());
  Segments segments(data, reduce, lengths, offsets, axis, initial);
  const at::Tensor result = at::zeros(data.sizes(), data.options().memory_format(std::nullopt));
  if (result.numel() == 0 || output.numel() == 0) return result;
  const at::Tensor values = output.contiguous(), grads = grad.contiguous();
  const Split split = segments.split();
  const Buffer to = buffer_of(result), from = buffer_of(grads), value = buffer_of(values),
               bounds = buffer_of(segments.bounds), in = buffer_of(segments.data);
  segments.p.out = value.offset, segments.p.grad = from.offset, segments.p.result = to.offset;
  segments.with(initial_of(segments.p.reduction, initial), [&](auto start) {
    segments.kernel("dlb_segment_backward")
        .launch(segments.stream.queue(), split.range, in.mem, bounds.mem, value.mem, from.mem, to.mem,
                segments.p, start);
  });
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("segment_reduce", segment_reduce);
  m.impl("_segment_reduce_backward", segment_reduce_backward);
}

}  // namespace dlb
