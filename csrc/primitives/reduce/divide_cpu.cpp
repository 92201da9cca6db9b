// How a CPU's work-items divide a reduction: vectors along the reduced or the kept dimension, parts, runs.
#include <algorithm>

#include "cl/rounding.h"
#include "primitives/reduce/launch.h"

namespace dlb::reduction {

using codegen::ReduceForm;
using codegen::ReduceKey;
using codegen::ReduceParams;

// Columns where the kept dimension is the contiguous one, or where runs are too short to fill the lanes.
bool suggests_along_kept_cpu(const ReduceKey& key, const Dimensions& dims) {
  if (dims.kept.empty()) return false;
  const auto lanes = static_cast<int64_t>(codegen::reduce_lanes(key.compute));
  const Dim &inner = dims.reduced[0], &kept = dims.kept[0];
  const size_t guide = key.outputs;
  return kept.size >= 4 && !(is_unit(inner, key) && inner.size >= lanes) &&
         (is_unit(kept, key) || dims.count < 2 * lanes ||
          std::abs(kept.stride[guide]) < std::abs(inner.stride[guide]));
}

void divide_work_cpu(Launch& launch, const Dimensions& dims, const cl::Device& device, const Tuning& tuning) {
  constexpr int64_t kItemsPerUnit = 4;                 // evens out cores that are disturbed
  constexpr int64_t kWorthCombining = 12 * kCpuGrain;  // elements that pay for a second launch
  ReduceKey& key = launch.key;
  ReduceParams& p = launch.params;
  const auto lanes = static_cast<int64_t>(codegen::reduce_lanes(key.compute));
  const Dim& inner = dims.reduced[0];
  const Dim* kept = dims.kept.empty() ? nullptr : &dims.kept[0];
  const size_t guide = key.outputs;
  const bool columns = tuning.walk == Walk::kBySizes ? suggests_along_kept_cpu(key, dims)
                                                     : tuning.walk == Walk::kAlongKept && kept;
  const Dim& vector = columns ? *kept : inner;
  const bool unit = is_unit(vector, key) && !tuning.plain;
  if (unit) note_constants(vector, key);
  launch.form = columns ? (unit ? ReduceForm::Columns : ReduceForm::ColumnsStrided)
                        : (unit ? ReduceForm::Rows : ReduceForm::RowsStrided);
  auto widest = static_cast<int64_t>(codegen::reduce_columns(*key.op, key.compute));
  if (tuning.width) widest = std::min<int64_t>(widest, tuning.width);
  p.block = static_cast<uint32_t>(columns ? std::min(widest, kept->size) : 1);
  const int64_t tasks = columns ? ceil_div(kept->size, p.block) * (p.outputs / kept->size) : p.outputs;
  const int64_t most = device.compute_units * (tuning.parts_per_unit ? tuning.parts_per_unit : kItemsPerUnit);
  const int64_t work = p.outputs * std::max<int64_t>(p.count, 1);
  const int64_t useful = std::clamp<int64_t>(work / kCpuGrain, 1, most);  // work-items
  // Several runs, behind each of which lies the next result's: one part per run, so that memory is read in
  // order. That costs an accumulator per run, which pays for shorter runs where a cache does not hold them.
  const bool cached = static_cast<uint64_t>(work) * codegen::size_of(key.types[guide]) <= device.cache;
  const int64_t least_run = cached ? kCpuGrain / 16 : kCpuGrain / 128;
  const int64_t runs = p.count / std::max<int64_t>(inner.size, 1);
  if (tuning.plain) {
    split(p, 1, 1, 1);
  } else if (!columns && unit && kept && dims.reduced.size() > 1 && inner.size >= least_run && runs <= 4096 &&
             kept->stride[guide] == inner.size) {
    p.per_split = inner.size;
    p.splits = static_cast<uint32_t>(runs);
  } else {
    split(p, work < kWorthCombining ? 1 : ceil_div(useful, tasks), kCpuGrain / std::max<int64_t>(p.block, 1),
          lanes);
  }
  const int64_t items = std::min(tasks, ceil_div(useful, p.splits));
  p.per_item = ceil_div(tasks, items);
  launch.range = {2, {static_cast<size_t>(ceil_div(tasks, p.per_item)), p.splits, 1}, {1, 1, 1}};
}

}  // namespace dlb::reduction
