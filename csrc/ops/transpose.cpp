// A transposing copy for CPUs: a walk along either side's rows would touch a line of memory of the other for
// each element.
#include "ops/transpose.h"

#include "ops/common/paired_dims.h"
#include "ops/index/access.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

// Dimensions with neighbours merged, innermost first.
c10::SmallVector<PairedDim, 6> dims_of(const at::Tensor& source, const at::Tensor& destination) {
  c10::SmallVector<PairedDim, 6> dims;
  for (int64_t d = source.dim(); d-- > 0;)
    if (source.size(d) != 1)
      append_merged(dims, PairedDim{source.size(d), source.stride(d), destination.stride(d)});
  return dims;
}

}  // namespace

bool copy_transposed(const at::Tensor& source, const at::Tensor& destination) {
  constexpr int64_t kLeast = 4096, kSmallSide = 8;  // elements; of either side of the matrix
  if (source.dim() < 2 || source.numel() < kLeast || source.scalar_type() != destination.scalar_type() ||
      source.is_conj() != destination.is_conj() || source.is_neg() != destination.is_neg() ||
      source.is_alias_of(destination))
    return false;
  Stream& stream = current_stream(destination.device().index());
  if (stream.device().cls != cl::DeviceClass::kCpu) return false;
  const auto dims = dims_of(source, destination);
  if (dims.size() < 2 || dims.size() > 3) return false;
  // The source as a matrix: elements of a row lie together in the source, those of a column in the
  // destination.
  PairedDim row{}, column{}, batch{1, 0, 0};
  for (const PairedDim& dim : dims) {
    if (dim.in < 1 || dim.out < 1) return false;
    if (dim.in == 1 && row.size == 0)
      row = dim;
    else if (dim.out == 1 && column.size == 0)
      column = dim;
    else
      batch = dim;
  }
  if (row.size < kSmallSide || column.size < kSmallSide || row.out < column.size || column.in < row.size)
    return false;
  if (source.numel() >= (int64_t{1} << 31)) return false;
  const size_t bytes = source.itemsize();
  const int64_t block = bytes >= 4 ? 16 : static_cast<int64_t>(64 / bytes);
  const auto strips = static_cast<uint32_t>((column.size + block - 1) / block);
  const auto count = strips * static_cast<uint32_t>(batch.size);
  const Split split = split_work(stream.device(), count,
                                 static_cast<uint32_t>(std::max<int64_t>(1, 16384 / (block * row.size))));
  const Buffer from = buffer_of(source), to = buffer_of(destination);
  fetch_kernel(stream.device(), "common/transpose.cl", "dlb_transpose", codegen::DType::U8, {},
               width_option(bytes))
      .launch(stream.queue(), split.range, from.mem, from.offset, to.mem, to.offset, column.in, row.out,
              batch.in, batch.out, static_cast<uint32_t>(column.size), static_cast<uint32_t>(row.size),
              strips, count, split.per_item);
  return true;
}

}  // namespace dlb
