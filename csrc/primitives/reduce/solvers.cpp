// Large reductions as launch problems: the solvers differ in which way vectors and work-groups walk, and into
// how many parts the reduction is cut.
#include <algorithm>
#include <cstring>

#include "primitives/reduce/plan.h"

namespace dlb {
namespace {

using reduction::Dim;
using reduction::Launch;
using reduction::Shape;
using reduction::Tuning;
using solver::Applicability;
using solver::Config;
using solver::LaunchForm;
using solver::LaunchProblem;
using solver::Op;

constexpr size_t kRank = 5;  // kept and reduced dimensions together
// numbers[] of the problems: sizes, kept ones first, and element strides of the results and the input along
// them. `kept`: how many dimensions are; `aligned`: whether the input begins at a multiple of four elements.
enum : size_t {
  kSizes = 0,
  kOut = kRank,
  kOut2 = 2 * kRank,
  kIn = 3 * kRank,
  kKept = 4 * kRank,
  kDims,
  kAligned
};
constexpr size_t kStrides[] = {kOut, kOut2, kIn};

size_t outputs_of(const LaunchProblem& p) {
  return p.extents[LaunchProblem::kInputs + 1] ? 2 : 1;
}

Shape shape_of(const LaunchProblem& p) {
  Shape shape;
  const size_t outputs = outputs_of(p);
  const auto kept = static_cast<size_t>(p.numbers[kKept]);
  for (size_t d = 0; d < static_cast<size_t>(p.numbers[kDims]); ++d) {
    Dim dim{p.numbers[kSizes + d], {}};
    for (size_t i = 0; i < outputs; ++i) dim.stride[i] = p.numbers[kStrides[i] + d];
    dim.stride[outputs] = p.numbers[kIn + d];
    (d < kept ? shape.kept : shape.reduced).push_back(dim);
    (d < kept ? shape.outputs : shape.count) *= dim.size;
  }
  return shape;
}

// Everything but buffers and their offsets.
Launch launch_of(const LaunchProblem& p, const cl::Device& device, const Shape& shape) {
  Launch launch{};
  codegen::ReduceKey& key = launch.key;
  key.op = codegen::find_reduce(p.variant);
  key.cls = device.cls;
  key.compute = codegen::compute_type(dtype_of(p.dtype, p.variant));
  key.outputs = static_cast<uint8_t>(outputs_of(p));
  for (size_t i = 0; i < key.outputs; ++i)
    key.types[i] = dtype_of(p.types[LaunchProblem::kInputs + i], p.variant);
  key.types[key.outputs] = dtype_of(p.types[0], p.variant);
  launch.params.operand[key.outputs].offset = p.numbers[kAligned] ? 0 : 1;
  fill_sizes(launch, shape);
  return launch;
}

Tuning tuning_of(const Config& config, int32_t walk) {
  return {walk, config.values[0], config.values[1], walk == Tuning::kBySizes};
}

struct Planned {
  Launch launch;
  cl::Range range;
};
template <int32_t walk>
Planned planned(const LaunchProblem& p, const cl::Device& device, const Config& config) {
  const Shape shape = shape_of(p);
  Planned result{launch_of(p, device, shape), {}};
  result.range = plan(result.launch, shape, device, tuning_of(config, walk));
  return result;
}

template <int32_t walk>
uint64_t workspace(const LaunchProblem& p, const cl::Device& device, const Config& config) {
  return workspace_bytes(planned<walk>(p, device, config).launch);
}

template <int32_t walk>
std::unique_ptr<solver::Invoker<LaunchProblem>> invoker(const LaunchProblem& p, cl::Device& device,
                                                        const Config& config) {
  const Planned first = planned<walk>(p, device, config);
  reduce_kernel(first.launch.key, first.launch.form, device);  // built here, not at the first run
  Planned second = first;
  if (first.launch.params.splits > 1) {
    second.range = plan_combine(second.launch, device);
    reduce_kernel(second.launch.key, second.launch.form, device);
  }
  return solver::make_invoker(
      [first, second](Stream& stream, const LaunchProblem::Operands& o, MemRef memory) {
        const auto enqueue_one = [&](const Planned& step) {
          Launch launch = step.launch;
          const size_t outputs = launch.key.outputs;
          const solver::Buffer* buffers[] = {&o.out0, outputs > 1 ? &o.out1 : &o.in0, &o.in0};
          for (size_t i = 0; i <= outputs; ++i) {
            launch.mem[i] = buffers[i]->mem;
            launch.params.operand[i].offset = buffers[i]->offset;
          }
          if (launch.key.op->scalars) launch.scalars[0] = scalar_arg(o.scalar, launch.key.compute);
          launch.params.workspace = static_cast<int64_t>(memory.offset);
          reduction::enqueue(launch, step.range, stream, memory.mem ? memory.mem : o.out0.mem);
        };
        enqueue_one(first);
        if (first.launch.params.splits > 1) enqueue_one(second);
      });
}

Applicability along_applicable(const LaunchProblem& p, const cl::Device&) {
  return codegen::find_reduce(p.variant) ? Applicability::yes()
                                         : Applicability::no("there is no such reduction");
}
Applicability across_applicable(const LaunchProblem& p, const cl::Device& device) {
  if (p.numbers[kKept] == 0) return Applicability::no("there is one result");
  return along_applicable(p, device);
}

// The walk that the sizes suggest is taken for the better one; the other is worth a measurement.
template <int32_t walk>
double estimate(const LaunchProblem& p, const cl::Device& device) {
  const Shape shape = shape_of(p);
  const double rate = device.cls == cl::DeviceClass::kCpu ? 2000.0 * device.compute_units : 2e5;
  const double best = 5 + static_cast<double>(shape.outputs * shape.count) / rate;
  if (walk == Tuning::kBySizes) return 50 * best;
  const bool along = walks_along(launch_of(p, device, shape).key, shape, device);
  return along == (walk == Tuning::kAlong) ? best : 3 * best;
}

template <int32_t walk>
std::vector<Config> configs(const LaunchProblem& p, const cl::Device& device) {
  if (walk == Tuning::kBySizes) return {Config{}};
  if (device.cls == cl::DeviceClass::kCpu) {
    std::vector<Config> list = {{}, {{1}}, {{16}}};
    if (walk == Tuning::kAcross)
      for (const int32_t columns : {64, 256})
        if (p.numbers[kSizes] > columns) list.push_back({{0, columns}});
    return list;
  }
  if (walk == Tuning::kAlong) return {{}, {{2}}, {{32}}, {{0, 32}}, {{0, 256}}};
  return {{}, {{2}}, {{32}}, {{0, 1}}, {{0, 8}}};
}

const LaunchForm kAlong{"along",
                        along_applicable,
                        estimate<Tuning::kAlong>,
                        configs<Tuning::kAlong>,
                        invoker<Tuning::kAlong>,
                        workspace<Tuning::kAlong>};
const LaunchForm kAcross{"across",
                         across_applicable,
                         estimate<Tuning::kAcross>,
                         configs<Tuning::kAcross>,
                         invoker<Tuning::kAcross>,
                         workspace<Tuning::kAcross>};
const LaunchForm kReference{"reference",
                            along_applicable,
                            estimate<Tuning::kBySizes>,
                            configs<Tuning::kBySizes>,
                            invoker<Tuning::kBySizes>,
                            workspace<Tuning::kBySizes>};

const solver::RegisterLaunchFamily kFamily(
    Op::kReduce,
    {{{"size", kRank}, {"out", kRank}, {"out2", kRank}, {"in", kRank}, {"kept"}, {"dims"}, {"aligned"}},
     solver::solvers_of({kAlong, kAcross, kReference}),
     /*parts=*/nullptr,
     /*positive=*/1});

bool can_be_tried(c10::ScalarType type) {
  return type != c10::ScalarType::Bool && type != c10::ScalarType::ComplexDouble;
}

}  // namespace

std::optional<LaunchProblem> reduction::problem_of(const Launch& launch, const Shape& shape,
                                                   const ReduceArguments& a) {
  const size_t outputs = launch.key.outputs, rank = shape.kept.size() + shape.reduced.size();
  if (shape.count == 0 || !solver::is_worth_choosing(Op::kReduce, shape.outputs * shape.count)) return {};
  if (launch.key.inputs != 1 || launch.key.mapped || outputs > 2 || rank > kRank) return {};
  if (codegen::find_reduce(a.op.name) != &a.op) return {};  // a template's: its id names no op of a table
  if (a.op.scalars > 1 || std::strlen(a.op.name) >= sizeof LaunchProblem::variant) return {};
  LaunchProblem p;
  p.what = Op::kReduce;
  p.device = static_cast<int8_t>(a.outputs[0]->device().index());
  p.dtype = a.compute;
  std::strncpy(p.variant, a.op.name, sizeof p.variant - 1);
  p.numbers[kKept] = static_cast<int64_t>(shape.kept.size()), p.numbers[kDims] = static_cast<int64_t>(rank);
  p.numbers[kAligned] = launch.params.operand[outputs].offset % 4 == 0;
  const auto set = [&](size_t operand, size_t slot, size_t strides, c10::ScalarType type) {
    int64_t last = 0;
    for (size_t d = 0; d < rank; ++d) {
      const Dim& dim = d < shape.kept.size() ? shape.kept[d] : shape.reduced[d - shape.kept.size()];
      p.numbers[kSizes + d] = dim.size;
      p.numbers[strides + d] = dim.stride[operand];
      last += (dim.size - 1) * dim.stride[operand];
    }
    p.extents[slot] = last + 1, p.types[slot] = type;
    return can_be_tried(type);
  };
  bool can = can_be_tried(p.dtype) && set(outputs, 0, kIn, a.inputs[0]->scalar_type());
  for (size_t i = 0; i < outputs; ++i)
    can = set(i, LaunchProblem::kInputs + i, kStrides[i], a.outputs[i]->scalar_type()) && can;
  return can ? std::optional(p) : std::nullopt;
}

}  // namespace dlb
