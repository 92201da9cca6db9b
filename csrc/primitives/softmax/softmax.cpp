// Code that the solvers of softmax share, and the first choice for small problems.
#include "primitives/softmax/softmax.h"

#include <algorithm>

#include "kernels/softmax/params.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"
#include "solver/execute.h"

namespace dlb::softmax {
namespace {

Launch first_choice(const SoftmaxProblem& p, const cl::Device& device) {
  if (p.inner != 1) return columns_launch(p, device, {});
  if (!p.is_backward() && rows_held_applicable(p, device)) return rows_held_launch(p, device, {});
  return rows_launch(p, device, {});
}

}  // namespace

bool SoftmaxProblem::is_backward() const {
  return op == &softmax_backward_op;
}

std::vector<CheckWindow<SoftmaxProblem>> SoftmaxProblem::check_windows() const {
  constexpr int64_t kElements = 64 * 1024, kMostElements = 16 << 20, kMostRow = 256 * 1024;
  const int64_t row = dim * inner;
  if (dim > kMostRow || row > kMostElements) return {};
  std::vector<CheckWindow<SoftmaxProblem>> list;
  for (const bool last : {false, true}) {
    CheckWindow<SoftmaxProblem> window{*this};
    const int64_t rows = std::min(outer, std::max<int64_t>(1, kElements / row));
    window.problem.outer = rows;
    for (int64_t& extent : window.problem.extents)
      if (extent) extent = rows * row;
    const int64_t begin = last ? (outer - rows) * row : 0;
    window.shift.in0.offset = window.shift.in1.offset = window.shift.out0.offset = begin;
    list.push_back(window);
  }
  return list;
}

codegen::DType compute_of(const SoftmaxProblem& p) {
  const auto from = dtype_of(p.types[0], "softmax"), to = dtype_of(p.result_type(), "softmax");
  return codegen::compute_type(to == codegen::DType::F64 ? to : from);
}

Team team_of(const cl::Device& device, int64_t rows, int64_t work, int32_t items, uint32_t gpu_lanes) {
  Team team = make_team(device, rows, work, gpu_lanes);
  if (items == 0) return team;
  const int64_t all_items = items * int64_t{device.compute_units};
  if (is_cpu(device))
    team.per_item = static_cast<uint32_t>(std::max<int64_t>(1, (rows + all_items - 1) / all_items));
  else
    team.lanes = static_cast<uint32_t>(items);
  return team;
}

cl::Kernel& kernel_of(const SoftmaxProblem& p, cl::Device& device, const Launch& launch) {
  return fetch_kernel(device, launch.file, launch.kernel, compute_of(p),
                      {dtype_of(p.types[0], "softmax"), dtype_of(p.result_type(), "softmax")});
}

void enqueue(const SoftmaxProblem& p, const Launch& launch, cl::Kernel& kernel, const MemoryOperands& o,
             Stream& stream) {
  const auto i32 = [](int64_t size) { return static_cast<int32_t>(size); };
  const params::SoftmaxParams params{o.in0.offset, o.out0.offset, o.in1.offset, i32(p.dim),
                                     i32(p.inner), i32(p.log),    launch.block};
  if (p.is_backward())
    kernel.launch(stream.queue(), launch.range, o.in0.mem, o.in1.mem, o.out0.mem, params, launch.team);
  else
    kernel.launch(stream.queue(), launch.range, o.in0.mem, o.out0.mem, params, launch.team);
}

void run(const SoftmaxProblem& p, const MemoryOperands& operands, Stream& stream) {
  if (is_worth_choosing(*p.op, p.elements())) return solver::run(p, operands, stream);
  const Launch launch = first_choice(p, stream.device());
  enqueue(p, launch, kernel_of(p, stream.device(), launch), operands, stream);
}

}  // namespace dlb::softmax
