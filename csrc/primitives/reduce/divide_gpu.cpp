// How a GPU's work-groups divide a reduction: work-items of a result, vectors of four, parts.
#include <algorithm>
#include <bit>

#include "cl/rounding.h"
#include "primitives/reduce/launch.h"

namespace dlb::reduction {

using codegen::kReduceGroup;
using codegen::ReduceForm;
using codegen::ReduceKey;
using codegen::ReduceParams;

namespace {

bool aligned_for_vectors(const Launch& launch, const Dimensions& dimensions) {
  const ReduceKey& key = launch.key;
  const Dim& inner = dimensions.reduced[0];
  if (!codegen::has_vector_form(key) || !is_unit(inner, key) || inner.size % 4 != 0) return false;
  for (size_t i = key.outputs; i < key.operands(); ++i) {
    if (inner.stride[i] == 0) continue;
    if (launch.params.operand[i].offset % 4 != 0) return false;
    for (const Dims* dims : {&dimensions.kept, &dimensions.reduced})
      for (const Dim& dim : *dims)
        if (&dim != &inner && dim.stride[i] % 4 != 0) return false;
  }
  return true;
}

// The least power of two that is not below n, or 1.
int64_t power(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}

}  // namespace

bool suggests_along_reduced_gpu(const ReduceKey& key, const Dimensions& dims) {
  const size_t guide = key.outputs;
  return dims.kept.empty() || dims.outputs == 1 ||
         std::abs(dims.reduced[0].stride[guide]) < std::abs(dims.kept[0].stride[guide]);
}

void divide_work_gpu(Launch& launch, const Dimensions& dims, const cl::Device& device, const Tuning& tuning) {
  constexpr int64_t kGroupsPerUnit = 8;
  ReduceKey& key = launch.key;
  ReduceParams& p = launch.params;
  const Dim& inner = dims.reduced[0];
  const auto group = static_cast<int64_t>(kReduceGroup);
  p.along = tuning.walk == Walk::kBySizes ? suggests_along_reduced_gpu(key, dims)
                                          : tuning.walk == Walk::kAlongReduced;
  const bool vectors = p.along && !tuning.plain && aligned_for_vectors(launch, dims);
  if (vectors) note_constants(inner, key);
  launch.form = !vectors                   ? ReduceForm::Group
                : dims.reduced.size() == 1 ? ReduceForm::GroupVector
                                           : ReduceForm::GroupVectorRuns;
  const int64_t per_lane = vectors ? 16 : 4;
  if (p.along)
    p.lanes = static_cast<uint32_t>(std::min(group, power(ceil_div(p.count, per_lane))));
  else
    p.lanes = static_cast<uint32_t>(group / std::min(p.count > 64 ? 64 : group, power(p.outputs)));
  if (tuning.width) p.lanes = static_cast<uint32_t>(tuning.width);
  const int64_t groups = ceil_div(p.outputs, group / p.lanes);
  const int64_t wanted =
      tuning.plain ? 1
                   : device.compute_units * (tuning.parts_per_unit ? tuning.parts_per_unit : kGroupsPerUnit);
  split(p, ceil_div(wanted, groups), int64_t{p.lanes} * per_lane * 4, int64_t{p.lanes} * 4);
  key.wide = p.outputs >= kNarrow || p.count >= kNarrow;
  launch.range = {2, {static_cast<size_t>(groups * group), p.splits, 1}, {kReduceGroup, 1, 1}};
}

}  // namespace dlb::reduction
