// The common part of launches of reductions on all devices: sizes, parts, the second pass, the kernel's call.
#include "primitives/reduce/launch.h"

#include <algorithm>
#include <bit>

#include "cl/rounding.h"

namespace dlb::reduction {

using codegen::kReduceGroup;
using codegen::ReduceKey;
using codegen::ReduceParams;

bool is_unit(const Dim& dim, const ReduceKey& key) {
  bool moves = false;
  for (size_t i = key.outputs; i < key.operands(); ++i) {
    if (dim.stride[i] != 0 && dim.stride[i] != 1) return false;
    moves |= dim.stride[i] == 1;
  }
  return moves;
}

void note_constants(const Dim& dim, ReduceKey& key) {
  for (size_t i = key.outputs; i < key.operands(); ++i)
    if (dim.stride[i] == 0) key.constants = static_cast<uint16_t>(key.constants | 1u << i);
}

void split(ReduceParams& p, int64_t parts, int64_t least, int64_t multiple) {
  const int64_t splits = std::clamp<int64_t>(std::min(parts, p.count / std::max<int64_t>(least, 1)), 1, 4096);
  p.per_split = std::max<int64_t>(ceil_div(ceil_div(p.count, splits), multiple) * multiple, 1);
  p.splits = static_cast<uint32_t>(std::max<int64_t>(ceil_div(p.count, p.per_split), 1));
}

Walk suggested_walk(const ReduceKey& key, const Dimensions& dims, const cl::Device& device) {
  const bool along = device.cls == cl::DeviceClass::kCpu ? !suggests_along_kept_cpu(key, dims)
                                                         : suggests_along_reduced_gpu(key, dims);
  return along ? Walk::kAlongReduced : Walk::kAlongKept;
}

void divide_work(Launch& launch, const Dimensions& dims, const cl::Device& device, const Tuning& tuning) {
  device.cls == cl::DeviceClass::kCpu ? divide_work_cpu(launch, dims, device, tuning)
                                      : divide_work_gpu(launch, dims, device, tuning);
}

void set_sizes(Launch& launch, const Dimensions& dims) {
  ReduceParams& p = launch.params;
  p.outputs = dims.outputs;
  p.count = dims.count;
  p.kept = static_cast<uint32_t>(dims.kept.size());
  p.rank = p.kept + static_cast<uint32_t>(dims.reduced.size());
  for (uint32_t d = 0; d < p.rank; ++d) {
    const Dim& dim = d < p.kept ? dims.kept[d] : dims.reduced[d - p.kept];
    p.size[d] = dim.size;
    p.divider[d] =
        codegen::make_divider(dim.size < kNarrow ? static_cast<uint32_t>(std::max<int64_t>(dim.size, 1)) : 1);
    for (size_t i = 0; i < launch.key.operands(); ++i) p.operand[i].stride[d] = dim.stride[i];
  }
  // The kernels store results along kept dimension 0, also when there is none.
  if (p.kept == 0)
    for (size_t i = 0; i < launch.key.outputs; ++i) p.operand[i].stride[0] = 0;
}

void make_combining(Launch& launch, const cl::Device& device) {
  ReduceParams& p = launch.params;
  launch.form = codegen::ReduceForm::Combine;
  if (launch.key.cls == cl::DeviceClass::kCpu) {
    const int64_t items = std::clamp<int64_t>(p.outputs * p.splits / kCpuGrain, 1, device.compute_units);
    p.per_item = ceil_div(p.outputs, items);
    launch.range = cl::Range::linear(static_cast<size_t>(ceil_div(p.outputs, p.per_item)), 1);
    return;
  }
  p.along = 0;
  p.lanes = std::min<uint32_t>(std::bit_floor(p.splits), kReduceGroup);
  const auto columns = static_cast<int64_t>(kReduceGroup / p.lanes);
  launch.range = cl::Range::linear(static_cast<size_t>(ceil_div(p.outputs, columns)), kReduceGroup);
}

uint64_t workspace_bytes(const Launch& launch) {
  if (launch.params.splits == 1) return 0;
  return codegen::accumulator_size(*launch.key.op, launch.key.compute, launch.key.cls) *
         launch.params.splits * static_cast<size_t>(launch.params.outputs);
}

void enqueue(const Launch& launch, Stream& stream, cl_mem workspace) {
  const ReduceKey& key = launch.key;
  reduce_kernel(key, launch.form, stream.device())
      .launch_with(stream.queue(), launch.range, [&](cl::Kernel::Arguments& arguments) {
        for (size_t i = 0; i < key.operands(); ++i) arguments.add(launch.mem[i]);
        arguments.add(workspace);
        arguments.add_bytes(&launch.params, codegen::params_bytes(key.operands()));
        for (size_t i = 0; i < key.op->scalars; ++i)
          arguments.add_bytes(&launch.scalars[i], launch.scalars[i].size);
      });
}

}  // namespace dlb::reduction
