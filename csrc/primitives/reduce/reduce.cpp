// From tensors to reduction kernels: a problem for the solvers where it is large, else one or two launches.
#include "primitives/reduce/reduce.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cstring>
#include <optional>

#include "primitives/reduce/solvers.h"
#include "solver/execute.h"

namespace dlb {

using codegen::kMaxReduceOperands;
using codegen::kMaxReduceRank;
using codegen::ReduceKey;
using reduction::Dim;
using reduction::Dimensions;
using reduction::Launch;
using reduction::ReduceProblem;

namespace {

void describe(Launch& launch, const ReduceArguments& a, const cl::Device& device) {
  ReduceKey& key = launch.key;
  key.op = &a.op;
  key.cls = device.cls;
  key.compute = codegen::compute_type(dtype_of(a.compute, a.op.name));
  check_device_supports(device, key.compute, a.op.name);
  key.outputs = static_cast<uint8_t>(a.outputs.size());
  key.mapped = static_cast<uint8_t>(a.mapped.size());
  key.inputs = static_cast<uint8_t>(a.inputs.size());
  TORCH_CHECK_NOT_IMPLEMENTED(has_body(a.op, a.compute), "\"", a.op.name, "\" not implemented for '",
                              c10::toString(a.compute), "'");
  TORCH_INTERNAL_ASSERT(key.operands() <= kMaxReduceOperands && a.scalars.size() == a.op.scalars, a.op.name);
  size_t i = 0;
  for (const auto& group : {a.outputs, a.mapped, a.inputs})
    for (const at::Tensor* tensor : group) {
      key.types[i] = storage_dtype_of(tensor->scalar_type(), a.op.name);
      check_device_supports(device, key.types[i], a.op.name);
      const Buffer buffer = tensor->numel() ? buffer_of(*tensor) : Buffer{};
      launch.mem[i] = buffer.mem;
      launch.params.operand[i++].offset = buffer.offset;
    }
  for (size_t s = 0; s < a.scalars.size(); ++s)
    launch.scalars[s] = scalar_arg(a.scalars[s], codegen::scalar_type(a.op, key.compute, s));
}

// For layouts that do not collapse to what a kernel takes: copies to [kept, reduced] matrices.
void run_flattened(const ReduceArguments& a) {
  const at::Tensor& shape = *a.inputs[0];
  at::DimVector order;
  int64_t kept = 1;
  for (const bool reduced : {false, true})
    for (int64_t d = 0; d < shape.dim(); ++d)
      if (a.reduced[static_cast<size_t>(d)] == reduced) {
        order.push_back(d);
        if (!reduced) kept *= shape.size(d);
      }
  const auto matrix = [&](const at::Tensor& t) { return t.permute(order).reshape({kept, -1}); };
  std::vector<at::Tensor> inputs, mapped, outputs;
  for (const at::Tensor* t : a.inputs) inputs.push_back(matrix(*t).contiguous());
  for (const at::Tensor* t : a.mapped)
    mapped.push_back(at::empty_like(matrix(*t), at::MemoryFormat::Contiguous));
  for (const at::Tensor* t : a.outputs) outputs.push_back(at::empty({kept}, t->options()));
  const auto pointers = [](const std::vector<at::Tensor>& tensors) {
    c10::SmallVector<const at::Tensor*, 8> result;
    for (const at::Tensor& t : tensors) result.push_back(&t);
    return result;
  };
  run_reduce({a.op, pointers(outputs), pointers(mapped), pointers(inputs), DimMask(2), a.compute, a.scalars});
  for (size_t i = 0; i < outputs.size(); ++i) a.outputs[i]->copy_(outputs[i].view(a.outputs[i]->sizes()));
  for (size_t i = 0; i < mapped.size(); ++i) {
    const at::Tensor target = a.mapped[i]->permute(order);
    target.copy_(mapped[i].view(target.sizes()));
  }
}

bool can_be_tried(c10::ScalarType type) {
  return type != c10::ScalarType::Bool && type != c10::ScalarType::ComplexDouble;
}

// The reduction as a problem with solvers, where it is one: large, of a registered op, few dimensions.
std::optional<ReduceProblem> problem_of(const Launch& launch, const Dimensions& dims,
                                        const ReduceArguments& a) {
  const size_t outputs = launch.key.outputs, rank = dims.kept.size() + dims.reduced.size();
  if (dims.count == 0 || !solver::is_worth_choosing(reduction::reduce_op, dims.outputs * dims.count))
    return {};
  if (launch.key.inputs != 1 || launch.key.mapped || outputs > 2 || rank > ReduceProblem::kRank) return {};
  if (codegen::find_reduce(a.op.name) != &a.op) return {};  // a template's: its id names no op of a table
  if (a.op.scalars > 1 || std::strlen(a.op.name) >= sizeof ReduceProblem::variant) return {};
  ReduceProblem p;
  p.op = &reduction::reduce_op;
  p.device = static_cast<int8_t>(a.outputs[0]->device().index());
  p.dtype = a.compute;
  std::strncpy(p.variant, a.op.name, sizeof p.variant - 1);
  p.kept = static_cast<int64_t>(dims.kept.size()), p.dims = static_cast<int64_t>(rank);
  p.aligned = launch.params.operand[outputs].offset % 4 == 0;
  const auto set = [&](size_t operand, size_t slot, int64_t* strides, c10::ScalarType type) {
    int64_t last = 0;
    for (size_t d = 0; d < rank; ++d) {
      const Dim& dim = d < dims.kept.size() ? dims.kept[d] : dims.reduced[d - dims.kept.size()];
      p.sizes[d] = dim.size;
      strides[d] = dim.stride[operand];
      last += (dim.size - 1) * dim.stride[operand];
    }
    p.extents[slot] = last + 1, p.types[slot] = type;
    return can_be_tried(type);
  };
  bool can = can_be_tried(p.dtype) && set(outputs, 0, p.in_strides, a.inputs[0]->scalar_type());
  for (size_t i = 0; i < outputs; ++i)
    can = set(i, ReduceProblem::kInputs + i, p.out_strides[i], a.outputs[i]->scalar_type()) && can;
  return can ? std::optional(p) : std::nullopt;
}

void solve(const ReduceProblem& problem, const Launch& launch, const ReduceArguments& a, Stream& stream) {
  const auto buffer = [&](size_t i) { return Buffer{launch.mem[i], launch.params.operand[i].offset}; };
  ReduceProblem::Operands o;
  o.out0 = buffer(0), o.in0 = buffer(launch.key.outputs);
  if (launch.key.outputs > 1) o.out1 = buffer(1);
  if (!a.scalars.empty()) o.scalar = a.scalars[0].toDouble();
  solver::run(problem, o, stream);
}

}  // namespace

bool has_body(const codegen::ReduceOp& op, c10::ScalarType compute) {
  return op.body(codegen::class_of(codegen::compute_type(dtype_of(compute, op.name)))).step != nullptr;
}

void run_reduce(const ReduceArguments& a) {
  if (a.outputs[0]->numel() == 0) return;
  Stream& stream = current_stream(a.outputs[0]->device().index());
  cl::Device& device = stream.device();
  Launch launch{};
  describe(launch, a, device);
  const size_t operands = launch.key.operands();
  const Dimensions dims = reduction::collapsed_dimensions(a, operands);
  if (dims.kept.size() + dims.reduced.size() > kMaxReduceRank) return run_flattened(a);
  // An empty input has no memory, but kernels need a buffer argument all the same.
  for (size_t i = launch.key.outputs; i < operands; ++i)
    if (!launch.mem[i]) launch.mem[i] = launch.mem[0];
  if (const auto large = problem_of(launch, dims, a)) return solve(*large, launch, a, stream);
  reduction::set_sizes(launch, dims);
  reduction::divide_work(launch, dims, device);
  if (launch.params.splits == 1) return reduction::enqueue(launch, stream, launch.mem[0]);
  const c10::DataPtr workspace =
      allocate_bytes(reduction::workspace_bytes(launch), a.outputs[0]->device().index());
  const MemRef ref = resolve(workspace, workspace.get());
  launch.params.workspace = static_cast<int64_t>(ref.offset);
  reduction::enqueue(launch, stream, ref.mem);
  reduction::make_combining(launch, device);
  reduction::enqueue(launch, stream, ref.mem);
}

}  // namespace dlb
