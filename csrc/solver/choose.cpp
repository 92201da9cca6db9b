// Choosing a solver: forced by name, else the applicable one with the lowest estimate; and running it.
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "solver/invoker_cache.h"
#include "solver/solver.h"

namespace dlb::solver {
namespace {

template <class Problem>
const std::vector<const Solver<Problem>*>& solvers();
template <>
const std::vector<const GemmSolver*>& solvers<GemmProblem>() {
  return gemm_solvers();
}
template <>
const std::vector<const ConvSolver*>& solvers<ConvProblem>() {
  return conv_solvers();
}

template <class Problem>
InvokerCache<Problem>& cache() {
  static auto* instance =
      new InvokerCache<Problem>;  // never destroyed: threads may run ops while the process exits
  return *instance;
}

template <class Problem>
std::string names() {
  std::string text;
  for (const auto* solver : solvers<Problem>())
    text += (text.empty() ? "" : ", ") + std::string(solver->name());
  return text;
}

bool exists(Op op, const std::string& name) {
  const auto has = [&](const auto& list) {
    return std::any_of(list.begin(), list.end(), [&](const auto* solver) { return name == solver->name(); });
  };
  return op == Op::kGemm ? has(gemm_solvers()) : has(conv_solvers());
}

using Forced = std::array<std::string, kOps>;

void force_one(Forced& forced, const std::string& item) {
  const size_t colon = item.find(':');
  const std::string name = colon == std::string::npos ? item : item.substr(colon + 1);
  const std::string op = colon == std::string::npos ? "" : item.substr(0, colon);
  bool op_known = op.empty(), name_known = false;
  for (int i = 0; i < kOps; i++) {
    if (!op.empty() && op != op_name(static_cast<Op>(i))) continue;
    op_known = true;
    if (exists(static_cast<Op>(i), name)) forced[i] = name, name_known = true;
  }
  TORCH_CHECK(op_known, "DLBACKEND_SOLVER: there is no op '", op,
              "'. Ops: gemm, conv_fwd, conv_bwd_data, conv_bwd_weight.");
  TORCH_CHECK(name_known, "DLBACKEND_SOLVER: no solver", op.empty() ? "" : " of " + op, " is named '", name,
              "'. gemm: ", names<GemmProblem>(), "; conv_*: ", names<ConvProblem>(), ".");
}

Forced parse_forced(const std::string& specification) {
  Forced forced;
  std::istringstream in(specification);
  for (std::string item; std::getline(in, item, ',');)
    if (!item.empty()) force_one(forced, item);
  return forced;
}

std::mutex forced_mutex;

Forced& forced_locked() {
  static Forced forced = [] {
    const char* text = std::getenv("DLBACKEND_SOLVER");
    return parse_forced(text ? text : "");
  }();
  return forced;
}

std::string forced_solver(Op op) {
  std::lock_guard<std::mutex> lock(forced_mutex);
  return forced_locked()[static_cast<int>(op)];
}

template <class Problem>
std::string reasons(const Problem& problem, const cl::Device& device) {
  std::string text;
  for (const auto* solver : solvers<Problem>()) {
    const Applicability can = solver->applicable(problem, device);
    text += std::string("\n  ") + solver->name() + ": " + (can ? "applicable" : can.reason);
  }
  return text;
}

template <class Problem>
const Solver<Problem>& choose_any(const Problem& problem, const cl::Device& device) {
  const std::string forced = forced_solver(problem.op());
  const Solver<Problem>* best = nullptr;
  double best_estimate = 0;
  for (const auto* solver : solvers<Problem>()) {
    if (!forced.empty() && forced != solver->name()) continue;
    if (!solver->applicable(problem, device)) continue;
    const double estimate = solver->estimate(problem, device);
    if (!best || estimate < best_estimate) best = solver, best_estimate = estimate;
  }
  TORCH_CHECK(best,
              forced.empty() ? "no solver" : "DLBACKEND_SOLVER: solver '" + forced + "' is not applicable",
              " for ", key(problem), " on ", device.name, ". Solvers:", reasons(problem, device));
  return *best;
}

template <class Problem>
Solution<Problem> solve_any(const Problem& problem, cl::Device& device) {
  const Solver<Problem>& solver = choose_any(problem, device);
  const Config config = solver.configs(problem, device).front();
  return {&solver, solver.invoker(problem, device, config), solver.workspace(problem, device, config)};
}

template <class Problem>
void run_any(const Problem& problem, const typename Problem::Operands& operands, Stream& stream) {
  auto solution = cache<Problem>().find(problem);
  if (!solution) [[unlikely]] {
    solution = std::make_shared<Solution<Problem>>(solve_any(problem, stream.device()));
    cache<Problem>().insert(problem, solution);
  }
  if (solution->workspace == 0) {
    solution->invoker->run(stream, operands, MemRef{});
    return;
  }
  // Freed when this returns: later allocations of the stream come after the kernels that use it.
  const c10::DataPtr workspace =
      allocate_bytes(solution->workspace, static_cast<c10::DeviceIndex>(problem.device));
  solution->invoker->run(stream, operands, resolve(workspace, workspace.get()));
}

template <class Problem>
std::string explain_any(const Problem& problem) {
  const cl::Device& device = device_of(problem.device);
  return std::string(choose_any(problem, device).name()) + " for " + key(problem) + reasons(problem, device);
}

}  // namespace

const GemmSolver& choose(const GemmProblem& problem, const cl::Device& device) {
  return choose_any(problem, device);
}
const ConvSolver& choose(const ConvProblem& problem, const cl::Device& device) {
  return choose_any(problem, device);
}
Solution<GemmProblem> solve(const GemmProblem& problem, cl::Device& device) {
  return solve_any(problem, device);
}
Solution<ConvProblem> solve(const ConvProblem& problem, cl::Device& device) {
  return solve_any(problem, device);
}
void run(const GemmProblem& problem, const GemmProblem::Operands& operands, Stream& stream) {
  run_any(problem, operands, stream);
}
void run(const ConvProblem& problem, const ConvProblem::Operands& operands, Stream& stream) {
  run_any(problem, operands, stream);
}
std::string explain(const GemmProblem& problem) {
  return explain_any(problem);
}
std::string explain(const ConvProblem& problem) {
  return explain_any(problem);
}

std::string explain(const std::string& key, int device) {
  if (key.rfind("gemm:", 0) == 0) return explain(parse_gemm_key(key, device));
  return explain(parse_conv_key(key, device));
}

void force(const std::string& specification) {
  Forced forced = parse_forced(specification);
  {
    std::lock_guard<std::mutex> lock(forced_mutex);
    forced_locked() = std::move(forced);
  }
  cache<GemmProblem>().clear();
  cache<ConvProblem>().clear();
}

}  // namespace dlb::solver
