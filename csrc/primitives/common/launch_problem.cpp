// The families of launch problems that ops registered.
#include "primitives/common/launch_problem.h"

#include <array>

#include "solver/settings.h"

namespace dlb::solver {
namespace {

std::array<LaunchFamily, kOps>& families() {
  static auto* table = new std::array<LaunchFamily, kOps>;
  return *table;
}
const LaunchFamily& family_of(Op op) {
  return families()[static_cast<size_t>(op)];
}

constexpr Buffer LaunchProblem::Operands::*kBuffers[LaunchProblem::kOperands] = {
    &LaunchProblem::Operands::in0,  &LaunchProblem::Operands::in1, &LaunchProblem::Operands::in2,
    &LaunchProblem::Operands::in3,  &LaunchProblem::Operands::in4, &LaunchProblem::Operands::out0,
    &LaunchProblem::Operands::out1, &LaunchProblem::Operands::out2};

}  // namespace

RegisterLaunchFamily::RegisterLaunchFamily(Op op, LaunchFamily family) {
  int count = 0;
  for (const LaunchField& field : family.fields) count += field.count;
  TORCH_INTERNAL_ASSERT(count <= LaunchProblem::kNumbers && !family.solvers.empty(), op_name(op));
  families()[static_cast<size_t>(op)] = std::move(family);
}

std::vector<const LaunchSolver*> solvers_of(std::initializer_list<LaunchForm> forms) {
  std::vector<const LaunchSolver*> list;
  for (const LaunchForm& form : forms) list.push_back(new LaunchFormSolver(form));
  return list;
}

const std::vector<const LaunchSolver*>& launch_solvers(Op op) {
  return family_of(op).solvers;
}

bool is_worth_choosing(Op op, int64_t elements) {
  return elements >= kWorthChoosing || has_preference(op);
}

const std::vector<LaunchField>& launch_fields(Op op) {
  return family_of(op).fields;
}

std::vector<Span<LaunchProblem::Operands>> LaunchProblem::spans() const {
  std::vector<Span<Operands>> list;
  const unsigned positive = family_of(what).positive;
  for (int i = 0; i < kOperands; i++)
    if (extents[i] > 0)
      list.push_back({kBuffers[i], extents[i], types[i], i >= kInputs, (positive >> i & 1) != 0});
  return list;
}

std::vector<Part<LaunchProblem>> LaunchProblem::parts() const {
  if (const auto parts = family_of(what).parts) return parts(*this);
  return {{*this, {}}};
}

void LaunchProblem::prepare(const Operands& operands, Stream& stream) const {
  if (const auto prepare = family_of(what).prepare) prepare(*this, operands, stream);
}

std::vector<uint64_t> LaunchProblem::families() const {
  LaunchProblem p;
  p.what = what, p.dtype = dtype;
  return {hash(p)};
}

uint64_t LaunchProblem::neighbourhood() const {
  LaunchProblem p = *this;
  for (int64_t& number : p.numbers) number = coarse(number);
  for (int64_t& extent : p.extents) extent = (extent > 0) + (extent > INT32_MAX);
  return hash(p);
}

}  // namespace dlb::solver
