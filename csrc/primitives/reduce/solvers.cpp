// The ordered list of reduction solvers, and what they share.
#include "primitives/reduce/solvers.h"

#include <algorithm>

#include "solver/solver_row.h"

namespace dlb::reduction {

using solver::Applicability;
using solver::Config;

namespace {

std::vector<const solver::Solver<ReduceProblem>*> solvers() {
  return {
      along(),      // neighbours walk the reduced dimension
      across(),     // neighbours walk the kept dimension, where there is one
      reference(),  // one part, any strides; what the others are checked against
  };
}

Dimensions dimensions_of(const ReduceProblem& p) {
  Dimensions dims;
  const size_t results = p.results();
  for (size_t d = 0; d < static_cast<size_t>(p.dims); ++d) {
    const bool kept = d < static_cast<size_t>(p.kept);
    Dim dim{p.sizes[d], {}};
    for (size_t i = 0; i < results; ++i) dim.stride[i] = p.out_strides[i][d];
    dim.stride[results] = p.in_strides[d];
    (kept ? dims.kept : dims.reduced).push_back(dim);
    (kept ? dims.outputs : dims.count) *= dim.size;
  }
  return dims;
}

// Everything but buffers, their offsets, and how the work is divided.
Launch undivided_launch(const ReduceProblem& p, const cl::Device& device, const Dimensions& dims) {
  Launch launch{};
  codegen::ReduceKey& key = launch.key;
  key.op = p.reduce_op();
  key.cls = device.cls;
  key.compute = codegen::compute_type(dtype_of(p.dtype, p.variant));
  key.outputs = static_cast<uint8_t>(p.results());
  for (size_t i = 0; i < key.outputs; ++i) key.types[i] = dtype_of(p.result_type(i), p.variant);
  key.types[key.outputs] = storage_dtype_of(p.types[0], p.variant);
  launch.params.operand[key.outputs].offset = p.aligned ? 0 : 1;
  set_sizes(launch, dims);
  return launch;
}

void enqueue_with(Launch launch, Stream& stream, const ReduceProblem::Operands& o, MemRef workspace) {
  const size_t outputs = launch.key.outputs;
  const Buffer* buffers[] = {&o.out0, outputs > 1 ? &o.out1 : &o.in0, &o.in0};
  for (size_t i = 0; i <= outputs; ++i) {
    launch.mem[i] = buffers[i]->mem;
    launch.params.operand[i].offset = buffers[i]->offset;
  }
  if (launch.key.op->scalars) launch.scalars[0] = scalar_arg(o.scalar, launch.key.compute);
  launch.params.workspace = static_cast<int64_t>(workspace.offset);
  enqueue(launch, stream, workspace.mem ? workspace.mem : o.out0.mem);
}

}  // namespace

const solver::OpOf<ReduceProblem> reduce_op("reduce", solvers);

const codegen::ReduceOp* ReduceProblem::reduce_op() const {
  return codegen::find_reduce(variant);
}

Applicability ReduceSolver::applicable(const ReduceProblem& p, const cl::Device&) const {
  return p.reduce_op() ? Applicability::yes() : Applicability::no("there is no such reduction");
}

Launch ReduceSolver::launch(const ReduceProblem& p, const cl::Device& device, const Config& config) const {
  const Dimensions dims = dimensions_of(p);
  Launch launch = undivided_launch(p, device, dims);
  divide_work(launch, dims, device, tuning(config));
  return launch;
}

uint64_t ReduceSolver::workspace(const ReduceProblem& p, const cl::Device& device,
                                 const Config& config) const {
  return workspace_bytes(launch(p, device, config));
}

std::unique_ptr<solver::Invoker<ReduceProblem>> ReduceSolver::invoker(const ReduceProblem& p,
                                                                      cl::Device& device,
                                                                      const Config& config) const {
  const Launch first = launch(p, device, config);
  reduce_kernel(first.key, first.form, device);  // built here, not at the first run
  Launch second = first;
  if (first.params.splits > 1) {
    make_combining(second, device);
    reduce_kernel(second.key, second.form, device);
  }
  return solver::make_invoker<ReduceProblem>(
      [first, second](Stream& stream, const ReduceProblem::Operands& o, MemRef workspace) {
        enqueue_with(first, stream, o, workspace);
        if (first.params.splits > 1) enqueue_with(second, stream, o, workspace);
      });
}

double WalkingSolver::estimate(const ReduceProblem& p, const cl::Device& device) const {
  const Dimensions dims = dimensions_of(p);
  const bool suggested = walk_ == suggested_walk(undivided_launch(p, device, dims).key, dims, device);
  return (suggested ? 1 : 3) * solver::streaming_microseconds(p, device);
}

}  // namespace dlb::reduction
