// Leads from tensors to a reduction's launch: collapses dimensions, chooses the kernel's form and splits the
// work.
#include "primitives/reduce/reduce.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <unordered_map>

#include "cl/rounding.h"
#include "codegen/registry.h"
#include "primitives/reduce/plan.h"

namespace dlb {

using reduction::Dim;
using reduction::Dims;
using reduction::Launch;
using reduction::Shape;
using reduction::Tuning;

namespace {

using codegen::kMaxReduceOperands;
using codegen::kMaxReduceRank;
using codegen::kReduceGroup;
using codegen::ReduceForm;
using codegen::ReduceKey;
using codegen::ReduceParams;

constexpr int64_t kCpuGrain = 16384;  // elements: less does not pay for another work-item
constexpr int64_t kItemsPerUnit = 4;  // evens out cores that are disturbed
constexpr int64_t kGpuGroupsPerUnit = 8;
constexpr int64_t kNarrow = int64_t{1} << 31;

// Sorts by the strides of the operand that moves most, and joins neighbours that are one run in all operands.
void collapse(Dims& dims, size_t operands, bool may_reorder, size_t guide) {
  if (may_reorder)
    std::stable_sort(dims.begin(), dims.end(), [&](const Dim& a, const Dim& b) {
      return std::abs(a.stride[guide]) < std::abs(b.stride[guide]);
    });
  size_t last = 0;
  for (size_t d = 1; d < dims.size(); ++d) {
    bool joins = true;
    for (size_t i = 0; i < operands; ++i)
      joins &= dims[d].stride[i] == dims[last].stride[i] * dims[last].size;
    if (joins)
      dims[last].size *= dims[d].size;
    else
      dims[++last] = dims[d];
  }
  if (!dims.empty()) dims.resize(last + 1);
}

Shape analyse(const ReduceArguments& a, size_t operands) {
  Shape problem;
  const at::Tensor& shape = *a.inputs[0];
  const int64_t rank = shape.dim();
  c10::SmallVector<int64_t, 8> squeezed(a.outputs.size());  // next dimension of each squeezed output
  for (size_t o = 0; o < a.outputs.size(); ++o) squeezed[o] = a.outputs[o]->dim() - 1;
  for (int64_t d = rank - 1; d >= 0; --d) {
    Dim dim{shape.size(d), {}};
    const bool reduced = a.reduced[static_cast<size_t>(d)];
    size_t i = 0;
    for (size_t o = 0; o < a.outputs.size(); ++o, ++i) {
      const bool full = a.outputs[o]->dim() == rank;
      dim.stride[i] = reduced ? 0 : a.outputs[o]->stride(full ? d : squeezed[o]);
      if (!reduced) --squeezed[o];
    }
    for (const at::Tensor* t : a.mapped) dim.stride[i++] = t->stride(d);
    for (const at::Tensor* t : a.inputs) dim.stride[i++] = t->stride(d);
    (reduced ? problem.count : problem.outputs) *= dim.size;
    if (dim.size != 1) (reduced ? problem.reduced : problem.kept).push_back(dim);
  }
  if (problem.outputs == 0 || problem.count == 0) problem.reduced.clear();
  const size_t guide = a.outputs.size();  // the first mapped output or input
  collapse(problem.kept, operands, true, guide);
  collapse(problem.reduced, operands, !a.op.ordered, guide);
  if (problem.reduced.empty()) problem.reduced.push_back({problem.count, {}});
  return problem;
}

// Whether every moving operand advances by one or not at all along `dim`, and one of them by one.
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

// Splits the reduction so that about `parts` work-items share it, none with less than `least` elements.
void split(ReduceParams& p, int64_t parts, int64_t least, int64_t multiple) {
  const int64_t splits = std::clamp<int64_t>(std::min(parts, p.count / std::max<int64_t>(least, 1)), 1, 4096);
  p.per_split = std::max<int64_t>(ceil_div(ceil_div(p.count, splits), multiple) * multiple, 1);
  p.splits = static_cast<uint32_t>(std::max<int64_t>(ceil_div(p.count, p.per_split), 1));
}

// Columns where the kept dimension is the contiguous one, or where runs are too short to fill the lanes.
bool suggests_columns(const ReduceKey& key, const Shape& shape) {
  if (shape.kept.empty()) return false;
  const auto lanes = static_cast<int64_t>(codegen::reduce_lanes(key.compute));
  const Dim &inner = shape.reduced[0], &kept = shape.kept[0];
  const size_t guide = key.outputs;
  return kept.size >= 4 && !(is_unit(inner, key) && inner.size >= lanes) &&
         (is_unit(kept, key) || shape.count < 2 * lanes ||
          std::abs(kept.stride[guide]) < std::abs(inner.stride[guide]));
}

cl::Range plan_cpu(Launch& launch, const Shape& problem, const cl::Device& device, const Tuning& tuning) {
  ReduceKey& key = launch.key;
  ReduceParams& p = launch.params;
  const auto lanes = static_cast<int64_t>(codegen::reduce_lanes(key.compute));
  const Dim& inner = problem.reduced[0];
  const Dim* kept = problem.kept.empty() ? nullptr : &problem.kept[0];
  const size_t guide = key.outputs;
  const bool columns = tuning.walk == Tuning::kBySizes ? suggests_columns(key, problem)
                                                       : tuning.walk == Tuning::kAcross && kept;
  const Dim& vector = columns ? *kept : inner;
  const bool unit = is_unit(vector, key) && !tuning.plain;
  if (unit) note_constants(vector, key);
  launch.form = columns ? (unit ? ReduceForm::Columns : ReduceForm::ColumnsStrided)
                        : (unit ? ReduceForm::Rows : ReduceForm::RowsStrided);
  auto widest = static_cast<int64_t>(codegen::reduce_columns(*key.op, key.compute));
  if (tuning.width) widest = std::min<int64_t>(widest, tuning.width);
  p.block = static_cast<uint32_t>(columns ? std::min(widest, kept->size) : 1);
  const int64_t tasks = columns ? ceil_div(kept->size, p.block) * (p.outputs / kept->size) : p.outputs;
  const int64_t most = device.compute_units * (tuning.parts ? tuning.parts : kItemsPerUnit);
  const int64_t work = p.outputs * std::max<int64_t>(p.count, 1);
  const int64_t useful = std::clamp<int64_t>(work / kCpuGrain, 1, most);  // work-items
  // Several runs, behind each of which lies the next result's: one part per run, so that memory is read in
  // order. That costs an accumulator per run, which pays for shorter runs where a cache does not hold them.
  const bool cached = static_cast<uint64_t>(work) * codegen::size_of(key.types[guide]) <= device.cache;
  const int64_t least_run = cached ? kCpuGrain / 16 : kCpuGrain / 128;
  const int64_t runs = p.count / std::max<int64_t>(inner.size, 1);
  if (tuning.plain) {
    split(p, 1, 1, 1);
  } else if (!columns && unit && kept && problem.reduced.size() > 1 && inner.size >= least_run &&
             runs <= 4096 && kept->stride[guide] == inner.size) {
    p.per_split = inner.size;
    p.splits = static_cast<uint32_t>(runs);
  } else {
    split(p, ceil_div(useful, tasks), kCpuGrain / std::max<int64_t>(p.block, 1), lanes);
  }
  const int64_t items = std::min(tasks, ceil_div(useful, p.splits));
  p.per_item = ceil_div(tasks, items);
  cl::Range range{2, {static_cast<size_t>(ceil_div(tasks, p.per_item)), p.splits, 1}, {1, 1, 1}};
  return range;
}

bool aligned_for_vectors(const Launch& launch, const Shape& problem) {
  const ReduceKey& key = launch.key;
  const Dim& inner = problem.reduced[0];
  if (!codegen::has_vector_form(key) || !is_unit(inner, key) || inner.size % 4 != 0) return false;
  for (size_t i = key.outputs; i < key.operands(); ++i) {
    if (inner.stride[i] == 0) continue;
    if (launch.params.operand[i].offset % 4 != 0) return false;
    for (const Dims* dims : {&problem.kept, &problem.reduced})
      for (const Dim& dim : *dims)
        if (&dim != &inner && dim.stride[i] % 4 != 0) return false;
  }
  return true;
}

bool suggests_along(const ReduceKey& key, const Shape& shape) {
  const size_t guide = key.outputs;
  return shape.kept.empty() ||
         std::abs(shape.reduced[0].stride[guide]) < std::abs(shape.kept[0].stride[guide]) ||
         shape.outputs == 1;
}

cl::Range plan_gpu(Launch& launch, const Shape& problem, const cl::Device& device, const Tuning& tuning) {
  ReduceKey& key = launch.key;
  ReduceParams& p = launch.params;
  const Dim& inner = problem.reduced[0];
  const auto group = static_cast<int64_t>(kReduceGroup);
  p.along = tuning.walk == Tuning::kBySizes ? suggests_along(key, problem) : tuning.walk == Tuning::kAlong;
  const bool vectors = p.along && !tuning.plain && aligned_for_vectors(launch, problem);
  if (vectors) note_constants(inner, key);
  launch.form = !vectors                      ? ReduceForm::Group
                : problem.reduced.size() == 1 ? ReduceForm::GroupVector
                                              : ReduceForm::GroupVectorRuns;
  const auto power = [](int64_t n) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
  };
  const int64_t per_lane = vectors ? 16 : 4;
  if (p.along)
    p.lanes = static_cast<uint32_t>(std::min(group, power(ceil_div(p.count, per_lane))));
  else
    p.lanes = static_cast<uint32_t>(group / std::min(p.count > 64 ? 64 : group, power(p.outputs)));
  if (tuning.width) p.lanes = static_cast<uint32_t>(tuning.width);
  const int64_t groups = ceil_div(p.outputs, group / p.lanes);
  const int64_t wanted =
      tuning.plain ? 1 : device.compute_units * (tuning.parts ? tuning.parts : kGpuGroupsPerUnit);
  split(p, ceil_div(wanted, groups), int64_t{p.lanes} * per_lane * 4, int64_t{p.lanes} * 4);
  key.wide = p.outputs >= kNarrow || p.count >= kNarrow;
  return {2, {static_cast<size_t>(groups * group), p.splits, 1}, {kReduceGroup, 1, 1}};
}

}  // namespace

namespace reduction {

bool walks_along(const ReduceKey& key, const Shape& shape, const cl::Device& device) {
  return device.cls == cl::DeviceClass::kCpu ? !suggests_columns(key, shape) : suggests_along(key, shape);
}

cl::Range plan(Launch& launch, const Shape& shape, const cl::Device& device, const Tuning& tuning) {
  return device.cls == cl::DeviceClass::kCpu ? plan_cpu(launch, shape, device, tuning)
                                             : plan_gpu(launch, shape, device, tuning);
}

uint64_t workspace_bytes(const Launch& launch) {
  if (launch.params.splits == 1) return 0;
  return codegen::accumulator_size(*launch.key.op, launch.key.compute, launch.key.cls) *
         launch.params.splits * static_cast<size_t>(launch.params.outputs);
}

void enqueue(const Launch& launch, const cl::Range& range, Stream& stream, cl_mem workspace) {
  const ReduceKey& key = launch.key;
  reduce_kernel(key, launch.form, stream.device())
      .launch_with(stream.queue(), range, [&](cl::Kernel::Arguments& arguments) {
        for (size_t i = 0; i < key.operands(); ++i) arguments.add(launch.mem[i]);
        arguments.add(workspace);
        arguments.add_bytes(&launch.params, launch.params.bytes(key.operands()));
        for (size_t i = 0; i < key.op->scalars; ++i)
          arguments.add_bytes(&launch.scalars[i], launch.scalars[i].size);
      });
}

cl::Range plan_combine(Launch& launch, const cl::Device& device) {
  ReduceParams& p = launch.params;
  launch.form = ReduceForm::Combine;
  if (launch.key.cls == cl::DeviceClass::kCpu) {
    const int64_t items = std::clamp<int64_t>(p.outputs * p.splits / kCpuGrain, 1, device.compute_units);
    p.per_item = ceil_div(p.outputs, items);
    return cl::Range::linear(static_cast<size_t>(ceil_div(p.outputs, p.per_item)), 1);
  }
  p.along = 0;
  p.lanes = std::min<uint32_t>(std::bit_floor(p.splits), kReduceGroup);
  const auto columns = static_cast<int64_t>(kReduceGroup / p.lanes);
  return cl::Range::linear(static_cast<size_t>(ceil_div(p.outputs, columns)), kReduceGroup);
}

}  // namespace reduction

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
      key.types[i] = dtype_of(tensor->scalar_type(), a.op.name);
      check_device_supports(device, key.types[i], a.op.name);
      const Operand operand = tensor->numel() ? operand_of(*tensor) : Operand{};
      launch.mem[i] = operand.mem;
      launch.params.operand[i++].offset = operand.offset;
    }
  for (size_t s = 0; s < a.scalars.size(); ++s) launch.scalars[s] = scalar_arg(a.scalars[s], key.compute);
}

}  // namespace

void reduction::fill_sizes(Launch& launch, const Shape& problem) {
  ReduceParams& p = launch.params;
  p.outputs = problem.outputs;
  p.count = problem.count;
  p.kept = static_cast<uint32_t>(problem.kept.size());
  p.rank = p.kept + static_cast<uint32_t>(problem.reduced.size());
  for (uint32_t d = 0; d < p.rank; ++d) {
    const Dim& dim = d < p.kept ? problem.kept[d] : problem.reduced[d - p.kept];
    p.size[d] = dim.size;
    p.divider[d] =
        codegen::make_divider(dim.size < kNarrow ? static_cast<uint32_t>(std::max<int64_t>(dim.size, 1)) : 1);
    for (size_t i = 0; i < launch.key.operands(); ++i) p.operand[i].stride[d] = dim.stride[i];
  }
  // The kernels store results along kept dimension 0, also when there is none.
  if (p.kept == 0)
    for (size_t i = 0; i < launch.key.outputs; ++i) p.operand[i].stride[0] = 0;
}

namespace {

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

}  // namespace

cl::Kernel& reduce_kernel(const ReduceKey& key, ReduceForm form, cl::Device& device) {
  struct Slot {
    ReduceKey key;
    cl::Device* device = nullptr;
    ReduceForm form{};
    cl::Kernel* kernel = nullptr;
  };
  constexpr size_t kSlots = 256;
  thread_local auto slots = std::make_unique<std::array<Slot, kSlots>>();
  Slot& slot = (*slots)[(std::hash<ReduceKey>{}(key)*31 + static_cast<size_t>(form)) % kSlots];
  if (slot.device == &device && slot.form == form && slot.key == key) [[likely]]
    return *slot.kernel;
  // Behind the slots, one table of programs' sources per process: text is generated once per key.
  static std::mutex mutex;
  static auto* sources = new std::unordered_map<ReduceKey, std::unique_ptr<std::string>>;
  const std::string* source = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto& text = (*sources)[key];
    codegen::check_is_row(*key.op);
    if (!text) text = std::make_unique<std::string>(codegen::reduce_source(key));
    source = text.get();
  }
  cl::Kernel& kernel = cl::get_kernel(device, *source, "", codegen::name_of(form));
  slot = {key, &device, form, &kernel};
  return kernel;
}

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
  const Shape problem = analyse(a, operands);
  if (problem.kept.size() + problem.reduced.size() > kMaxReduceRank) return run_flattened(a);
  // An empty input has no memory, but kernels need a buffer argument all the same.
  for (size_t i = launch.key.outputs; i < operands; ++i)
    if (!launch.mem[i]) launch.mem[i] = launch.mem[0];
  if (const auto large = reduction::problem_of(launch, problem, a)) {
    const auto buffer = [&](size_t i) {
      return solver::Buffer{launch.mem[i], launch.params.operand[i].offset};
    };
    solver::LaunchProblem::Operands o;
    o.out0 = buffer(0), o.in0 = buffer(launch.key.outputs);
    if (launch.key.outputs > 1) o.out1 = buffer(1);
    if (!a.scalars.empty()) o.scalar = a.scalars[0].toDouble();
    return solver::run(*large, o, stream);
  }
  reduction::fill_sizes(launch, problem);
  const cl::Range range = reduction::plan(launch, problem, device);
  if (launch.params.splits == 1) return reduction::enqueue(launch, range, stream, launch.mem[0]);
  const c10::DataPtr workspace =
      allocate_bytes(reduction::workspace_bytes(launch), a.outputs[0]->device().index());
  const MemRef ref = resolve(workspace, workspace.get());
  launch.params.workspace = static_cast<int64_t>(ref.offset);
  reduction::enqueue(launch, range, stream, ref.mem);
  const cl::Range second = reduction::plan_combine(launch, device);
  reduction::enqueue(launch, second, stream, ref.mem);
}

}  // namespace dlb
