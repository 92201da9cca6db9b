#include "solver/op.h"

#include <c10/util/Exception.h>

#include <stdexcept>

namespace dlb::solver {
namespace {

std::vector<const Op*>& registered() {
  static auto* list = new std::vector<const Op*>;
  return *list;
}

}  // namespace

Op::Op(const char* name, Tf32Setting tf32, size_t problem_bytes, size_t operand_bytes)
    : name_(name),
      tf32_setting_(tf32),
      problem_bytes_(problem_bytes),
      operand_bytes_(operand_bytes),
      index_(registered().size()) {
  registered().push_back(this);
}

const std::vector<const AnySolver*>& Op::solvers() const {
  std::call_once(made_, [this] {
    solvers_ = added_;
    const auto own = make_solvers();
    solvers_.insert(solvers_.end(), own.begin(), own.end());
  });
  return solvers_;
}

void add_solver(const Op& op, const AnySolver& solver) {
  TORCH_CHECK(op.solvers_.empty(), "a solver of ", op.name(), " must be added before the op's first use");
  op.added_.push_back(&solver);
}

const std::vector<const Op*>& ops() {
  return registered();
}

const Op* find_op(const std::string& name) {
  for (const Op* op : registered())
    if (name == op->name()) return op;
  return nullptr;
}

const Op& op_of_key(const std::string& key) {
  const std::string name = key.substr(0, key.find(':'));
  const Op* op = find_op(name);
  if (!op) throw std::invalid_argument("problem key: no op is named '" + name + "'");
  return *op;
}

StoredProblem::StoredProblem(const Problem& problem) : Copied(problem, problem.op->problem_bytes()) {}

size_t problem_bytes(const Problem& problem) noexcept {
  return problem.op->problem_bytes();
}

}  // namespace dlb::solver
