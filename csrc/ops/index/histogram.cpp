// Counting into bins: bincount, histc, histogram, histogramdd.
#include <ATen/native/Resize.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "kernels/index/params.h"
#include "ops/index/access.h"
#include "ops/index/accumulate.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Ranges = std::optional<c10::ArrayRef<double>>;

// The least and the greatest value in one read from the device.
struct Extremes {
  c10::Scalar low, high;
};
Extremes extremes_of(const at::Tensor& x) {
  const at::Tensor both = at::empty({2}, x.options().memory_format(std::nullopt));
  at::Tensor low = both.select(0, 0), high = both.select(0, 1);
  at::aminmax_out(low, high, x);
  const at::Tensor here = both.cpu();
  return {here[0].item(), here[1].item()};
}

// Counts of the elements of `x` per bin into `out` [bins]: elements are bin numbers, or lie between low and
// high where `linear`.
void count_into(const at::Tensor& out, const at::Tensor& x, bool linear, double low, double high) {
  const at::Tensor flat = x.contiguous();
  const auto type = dtype_of(flat.scalar_type(), linear ? "histc" : "bincount");
  const bool integer = codegen::class_of(type) == codegen::DClass::Int;
  Stream& stream = current_stream(flat.device().index());
  cl::Device& device = stream.device();
  check_device_supports(device, type, "histc");
  TORCH_CHECK(flat.numel() < (int64_t{1} << 31) && out.numel() < (int64_t{1} << 31),
              "counting 2^31 or more elements or bins is not supported");
  const auto n = static_cast<uint64_t>(flat.numel());
  const auto bins = static_cast<uint32_t>(out.numel());
  const bool cpu = device.cls == cl::DeviceClass::kCpu;
  uint64_t items = 1;
  if (cpu) items = std::clamp<uint64_t>(std::min(n / 8192, n / bins), 1, device.compute_units);
  const auto per_item = static_cast<uint32_t>((n + items - 1) / items);
  const auto copies = static_cast<int64_t>(cpu ? (n + per_item - 1) / per_item : 1);
  const auto ints = out.options().dtype(at::kInt);
  const at::Tensor counts = cpu ? at::empty({copies * bins}, ints) : at::zeros({bins}, ints);
  const Buffer in = buffer_of(flat), between = buffer_of(counts), to = buffer_of(out);
  const char* options = !linear ? "" : integer ? "-DLINEAR -DINTEGER" : "-DLINEAR";
  const cl::Range range =
      cpu ? cl::Range::linear(static_cast<size_t>(copies), 1)
          : cl::Range::linear(std::min<size_t>((n + 255) / 256, size_t{device.compute_units} * 8), 256);
  const auto launch = [&](auto from, auto until) {
    fetch_kernel(device, "index/count.cl", "dlb_count", codegen::compute_type(type), {type}, options)
        .launch(stream.queue(), range, in.mem, in.offset, between.mem, between.offset, n, per_item, bins,
                from, until);
  };
  if (!linear || integer)
    launch(static_cast<int64_t>(low), static_cast<int64_t>(high));
  else if (type == codegen::DType::F64)
    launch(low, high);
  else
    launch(static_cast<float>(low), static_cast<float>(high));
  const Split split = split_work(device, bins);
  fetch_kernel(device, "index/count.cl", "dlb_count_merge", codegen::compute_type(type), {type}, options)
      .launch(stream.queue(), split.range, between.mem, between.offset, to.mem, to.offset, bins,
              static_cast<uint32_t>(copies), split.per_item);
}

at::Tensor bincount(const at::Tensor& self, const OptionalTensor& weights, int64_t minlength) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isIntegralType(self.scalar_type(), /*includeBool=*/false),
                              "\"bincount\" not implemented for '", c10::toString(self.scalar_type()), "'");
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  const bool weighted = weights && weights->defined();
  TORCH_CHECK(self.dim() == 1, "bincount only supports 1-d non-negative integral inputs.");
  TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->size(0) == self.size(0)),
              "weights should be 1-d and have the same length as input");
  const at::TensorOptions options = self.options();
  if (self.numel() == 0) return at::zeros({minlength}, options.dtype(at::kLong));
  const c10::DeviceGuard guard(self.device());
  const Extremes seen = extremes_of(self);
  TORCH_CHECK(seen.low.toLong() >= 0, "bincount only supports 1-d non-negative integral inputs.");
  const int64_t bins = std::max(minlength, seen.high.toLong() + 1);
  if (!weighted) {
    at::Tensor counts = at::empty({bins}, options.dtype(at::kLong));
    count_into(counts, self, false, 0, 0);
    return counts;
  }
  const at::Tensor values = weights->scalar_type() == at::kFloat ? *weights : weights->to(at::kDouble);
  static const int32_t site = index_error_site("bincount");
  at::Tensor counts = at::zeros({bins}, values.options());
  const bool index = self.scalar_type() == at::kLong || self.scalar_type() == at::kInt;
  accumulate(counts, 0, index ? self : self.to(at::kInt), values, {.site = site});
  return counts;
}

double rounded(double value, at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return c10::Half(static_cast<float>(value));
    case at::kBFloat16:
      return c10::BFloat16(static_cast<float>(value));
    case at::kFloat:
      return static_cast<float>(value);
    default:
      return value;
  }
}

// Integers count as on CUDA; the CPU refuses them.
at::Tensor& histc_out(const at::Tensor& self, int64_t bins, const c10::Scalar& min, const c10::Scalar& max,
                      at::Tensor& out) {
  TORCH_CHECK(bins > 0, "histc(): bins must be > 0, but got ", bins);
  const at::ScalarType type = self.scalar_type();
  TORCH_CHECK(type == out.scalar_type(),
              "torch.histogram: input tensor and hist tensor should have the same dtype, but got input ",
              type, " and hist ", out.scalar_type());
  const bool integer = c10::isIntegralType(type, /*includeBool=*/false);
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(type) || integer, "\"histc\" not implemented for '",
                              c10::toString(type), "'");
  check_same_device(self, out, "histc");
  const c10::DeviceGuard guard(self.device());
  const at::Tensor flat = self.reshape({-1});
  at::native::resize_output(out, {bins});
  double low = min.toDouble(), high = max.toDouble();
  if (integer) low = std::trunc(low), high = std::trunc(high);
  if (low == high && self.numel() > 0) {
    const Extremes seen = extremes_of(self);
    low = seen.low.toDouble(), high = seen.high.toDouble();
  }
  if (low == high) low -= 1, high += 1;
  TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "torch.histc: range of [", low, ", ", high,
              "] is not finite");
  TORCH_CHECK(low <= high, "torch.histc: max must be larger than min");
  low = rounded(low, type), high = rounded(high, type);
  // The CPU clears the result before it counts, so where the two share memory it counts the zeros.
  if (flat.numel() == 0 || flat.is_alias_of(out)) out.zero_();
  if (flat.numel() == 0) return out;
  const at::Tensor dense = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
  count_into(dense, flat, true, low, high);
  if (!dense.is_same(out)) out.copy_(dense);
  return out;
}

at::Tensor histc(const at::Tensor& self, int64_t bins, const c10::Scalar& min, const c10::Scalar& max) {
  at::Tensor out = at::empty({0}, self.options().memory_format(std::nullopt));
  histc_out(self, bins, min, max, out);
  return out;
}

// The points [n, dimensions] and their weights [n] of a histogram, checked.
struct Points {
  at::Tensor at, weight;

  Points(const at::Tensor& input, const OptionalTensor& given, size_t dimensions) {
    TORCH_CHECK(input.dim() >= 2,
                "torch.histogramdd: input tensor should have at least 2 dimensions, but got ", input.dim());
    const int64_t width = input.size(-1);
    TORCH_CHECK(static_cast<int64_t>(dimensions) == width, "torch.histogramdd: expected ", width,
                " sequences of bin edges for a ", width, "-dimensional histogram but got ", dimensions);
    TORCH_CHECK_NOT_IMPLEMENTED(input.is_floating_point(), "\"histogramdd\" not implemented for '",
                                c10::toString(input.scalar_type()), "'");
    at = input.reshape({-1, width});
    if (!given || !given->defined()) return;
    TORCH_CHECK(input.dtype() == given->dtype(),
                "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor should have "
                "the same dtype, but got input(",
                input.dtype(), "), and weight(", given->dtype(), ")");
    auto shape = input.sizes().vec();
    shape.pop_back();
    auto weights = given->sizes().vec();
    if (weights.empty()) weights = {1};
    TORCH_CHECK(shape == weights,
                "torch.histogramdd: if weight tensor is provided it should have the same shape as the input "
                "tensor excluding its innermost dimension, but got input with shape ",
                input.sizes(), " and weight with shape ", given->sizes());
    check_same_device(input, *given, "histogramdd");
    weight = given->reshape({-1});
  }
};

// Adds the weights up in the bins between ascending edges; the last edge belongs to the last bin.
at::Tensor histogram_of(const Points& points, at::TensorList edges, bool density) {
  const at::Tensor& at = points.at;
  at::DimVector shape;
  int64_t total = 1;
  for (const at::Tensor& edge : edges) shape.push_back(edge.numel() - 1), total *= edge.numel() - 1;
  const auto options = at.options().memory_format(std::nullopt);
  at::Tensor hist = at::zeros({total}, options);
  if (at.numel() > 0 && total > 0) {
    const auto type = dtype_of(at.scalar_type(), "histogramdd");
    Stream& stream = current_stream(at.device().index());
    check_device_supports(stream.device(), type, "histogramdd");
    TORCH_CHECK(at.size(0) < (int64_t{1} << 31) && total < (int64_t{1} << 31),
                "histogramdd of 2^31 or more points or bins is not supported");
    const at::Tensor index = at::empty({at.size(0)}, options.dtype(at::kInt)),
                     values = at::empty({at.size(0)}, options);
    const auto n = static_cast<uint32_t>(at.size(0));
    const Split split = split_work(stream.device(), n, 2048);
    const Buffer x = buffer_of(at), to = buffer_of(index), value = buffer_of(values);
    const bool weighted = points.weight.defined();
    const Buffer weight = weighted ? buffer_of(points.weight) : x;
    for (size_t d = 0; d < edges.size(); ++d) {
      const Buffer edge = buffer_of(edges[d]);
      fetch_kernel(stream.device(), "index/histogram.cl", "dlb_histogram_place", codegen::compute_type(type),
                   {type})
          .launch(stream.queue(), split.range, x.mem, x.offset + static_cast<int64_t>(d) * at.stride(1),
                  at.stride(0), edge.mem, edge.offset, static_cast<uint32_t>(edges[d].numel()), to.mem,
                  to.offset, weight.mem, weight.offset, weighted ? points.weight.stride(0) : 0,
                  static_cast<int32_t>(weighted), value.mem, value.offset, static_cast<int32_t>(d == 0),
                  static_cast<int32_t>(d + 1 == edges.size()), n, split.per_item);
    }
    static const int32_t site = index_error_site("histogram");
    accumulate(hist, 0, index, values, {.site = site});
  }
  hist = hist.view(shape);
  if (!density) return hist;
  hist.div_(hist.sum());
  for (size_t d = 0; d < edges.size(); ++d) {
    at::DimVector lengths(shape.size(), 1);
    lengths[d] = shape[d];
    hist.div_(edges[d].diff().reshape(lengths));
  }
  return hist;
}

std::vector<at::Tensor> given_edges(const at::Tensor& input, at::TensorList bins) {
  std::vector<at::Tensor> edges;
  for (const at::Tensor& bin : bins) {
    TORCH_CHECK(input.dtype() == bin.dtype(),
                "torch.histogramdd: input tensor and bins tensors should have the same dtype, but got input "
                "with dtype ",
                input.dtype(), " and bins with dtype ", bin.dtype());
    TORCH_CHECK(bin.dim() == 1, "torch.histogramdd: bins tensor should have one dimension, but got ",
                bin.dim(), " dimensions in the bins tensor for dimension ", edges.size());
    TORCH_CHECK(bin.numel() > 0, "torch.histogramdd: bins tensor should have at least 1 element, but got ",
                bin.numel(), " elements in the bins tensor for dimension ", edges.size());
    check_same_device(input, bin, "histogramdd");
    edges.push_back(bin.clone(at::MemoryFormat::Contiguous));
  }
  return edges;
}

// Evenly spaced edges: in the range that is given, or between the least and the greatest coordinate.
std::vector<at::Tensor> even_edges(const Points& points, at::IntArrayRef bins, const Ranges& range) {
  const auto width = bins.size();
  TORCH_CHECK(!range || range->size() == 2 * width, "torch.histogramdd: for a ", width,
              "-dimensional histogram range should have ", 2 * width, " elements, but got ",
              range ? range->size() : 0);
  at::Tensor extremes;
  if (!range && points.at.numel() > 0) {
    const auto [low, high] = at::aminmax(points.at, 0);
    extremes = at::stack({low, high}).cpu().to(at::kDouble);
  }
  std::vector<at::Tensor> edges;
  for (size_t d = 0; d < width; ++d) {
    TORCH_CHECK(bins[d] > 0, "torch.histogramdd: bins must be > 0, but got ", bins[d], " for dimension ", d);
    double low = 0, high = 1;
    if (range)
      low = (*range)[2 * d], high = (*range)[2 * d + 1];
    else if (extremes.defined())
      low = extremes[0][static_cast<int64_t>(d)].item<double>(),
      high = extremes[1][static_cast<int64_t>(d)].item<double>();
    TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "torch.histogramdd: dimension ", d, "'s range [",
                low, ", ", high, "] is not finite");
    TORCH_CHECK(low <= high, "torch.histogramdd: min should not exceed max, but got min ", low, " max ", high,
                " for dimension ", d);
    if (low == high) low -= 0.5, high += 0.5;
    edges.push_back(at::linspace(low, high, bins[d] + 1, points.at.options().memory_format(std::nullopt)));
  }
  return edges;
}

std::vector<at::Tensor> histogramdd_edges(const at::Tensor& self, at::IntArrayRef bins, Ranges range,
                                          const OptionalTensor& weight, bool density) {
  const c10::DeviceGuard guard(self.device());
  return even_edges(Points(self, weight, bins.size()), bins, range);
}
at::Tensor histogramdd_counts(const at::Tensor& self, at::IntArrayRef bins, Ranges range,
                              const OptionalTensor& weight, bool density) {
  const c10::DeviceGuard guard(self.device());
  const Points points(self, weight, bins.size());
  return histogram_of(points, even_edges(points, bins, range), density);
}
at::Tensor histogramdd_tensors(const at::Tensor& self, at::TensorList bins, const OptionalTensor& weight,
                               bool density) {
  const c10::DeviceGuard guard(self.device());
  const Points points(self, weight, bins.size());
  return histogram_of(points, given_edges(self, bins), density);
}

// histogram() is the histogram of points with one coordinate.
Points points_on_line(const at::Tensor& self, const OptionalTensor& weight) {
  OptionalTensor flat;
  if (weight && weight->defined()) flat = weight->reshape({weight->numel()});
  return Points(self.reshape({self.numel(), 1}), flat, 1);
}

std::tuple<at::Tensor, at::Tensor> histogram_tensor(const at::Tensor& self, const at::Tensor& bins,
                                                    const OptionalTensor& weight, bool density) {
  const c10::DeviceGuard guard(self.device());
  const Points points = points_on_line(self, weight);
  const auto edges = given_edges(self, {bins});
  return {histogram_of(points, edges, density), edges[0]};
}
std::tuple<at::Tensor, at::Tensor> histogram_count(const at::Tensor& self, int64_t bins, Ranges range,
                                                   const OptionalTensor& weight, bool density) {
  const c10::DeviceGuard guard(self.device());
  const Points points = points_on_line(self, weight);
  const auto edges = even_edges(points, {bins}, range);
  return {histogram_of(points, edges, density), edges[0]};
}

std::tuple<at::Tensor&, at::Tensor&> give(const at::Tensor& self,
                                          const std::tuple<at::Tensor, at::Tensor>& results, at::Tensor& hist,
                                          at::Tensor& edges) {
  TORCH_CHECK(self.dtype() == hist.dtype(),
              "torch.histogram: input tensor and hist tensor should have the same dtype, but got input ",
              self.dtype(), " and hist ", hist.dtype());
  TORCH_CHECK(self.dtype() == edges.dtype(),
              "torch.histogram: input tensor and bin_edges tensor should have the same dtype, but got input ",
              self.dtype(), " and bin_edges ", edges.dtype());
  at::native::resize_output(hist, std::get<0>(results).sizes());
  at::native::resize_output(edges, std::get<1>(results).sizes());
  hist.copy_(std::get<0>(results));
  edges.copy_(std::get<1>(results));
  return {hist, edges};
}
std::tuple<at::Tensor&, at::Tensor&> histogram_tensor_out(const at::Tensor& self, const at::Tensor& bins,
                                                          const OptionalTensor& weight, bool density,
                                                          at::Tensor& hist, at::Tensor& edges) {
  return give(self, histogram_tensor(self, bins, weight, density), hist, edges);
}
std::tuple<at::Tensor&, at::Tensor&> histogram_count_out(const at::Tensor& self, int64_t bins, Ranges range,
                                                         const OptionalTensor& weight, bool density,
                                                         at::Tensor& hist, at::Tensor& edges) {
  return give(self, histogram_count(self, bins, range, weight, density), hist, edges);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("bincount", bincount);
  m.impl("histc", histc);
  m.impl("histc.out", histc_out);
  m.impl("histogram.bins_tensor", histogram_tensor);
  m.impl("histogram.bins_tensor_out", histogram_tensor_out);
  m.impl("histogram.bin_ct", histogram_count);
  m.impl("histogram.bin_ct_out", histogram_count_out);
  m.impl("_histogramdd_bin_edges", histogramdd_edges);
  m.impl("_histogramdd_from_bin_cts", histogramdd_counts);
  m.impl("_histogramdd_from_bin_tensors", histogramdd_tensors);
}

}  // namespace dlb
