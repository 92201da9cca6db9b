#include "solver/execute.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cstdio>

#include "cl/kernel.h"
#include "cl/queue.h"
#include "cl/recording.h"
#include "runtime/graph.h"
#include "solver/candidates.h"
#include "solver/choice.h"
#include "solver/prepared.h"
#include "solver/search.h"
#include "solver/select.h"
#include "solver/settings.h"

namespace dlb::solver {
namespace {

// Elements below which choosing would cost more than it gains.
constexpr int64_t kWorthChoosing = 64 * 1024;

void run_with_workspace(const Solution& solution, const Problem& problem, const Operands& operands,
                        Stream& stream) {
  if (solution.workspace == 0) {
    solution.invoker->run_any(stream, operands, MemRef{});
    return;
  }
  // Freed when this returns: later allocations of the stream come after the kernels that use it.
  const c10::DataPtr workspace =
      allocate_bytes(solution.workspace, static_cast<c10::DeviceIndex>(problem.device));
  solution.invoker->run_any(stream, operands, resolve(workspace, workspace.get()));
}

// In a capture weights are prepared in each replay, because they may change between two.
void capture_with_prepared(const Solution& solution, const Problem& problem, const Operands& operands,
                           Stream& stream) {
  const c10::DataPtr memory =
      allocate_bytes(solution.prepared, static_cast<c10::DeviceIndex>(problem.device));
  const MemRef to = resolve(memory, memory.get());
  solution.invoker->prepare_any(stream, operands, to);
  StoredOperands ready(operands, problem.op->operand_bytes());
  ready->prepared = {to.mem, static_cast<int64_t>(to.offset)};
  run_with_workspace(solution, problem, *ready, stream);
}

void run_solution(const Solution& solution, const Problem& problem, const Operands& operands,
                  Stream& stream) {
  if (solution.prepared > 0 && stream.graph())
    return capture_with_prepared(solution, problem, operands, stream);
  if (solution.prepared > 0)
    return run_with_workspace(solution, problem, *with_prepared(problem, solution, operands, stream), stream);
  run_with_workspace(solution, problem, operands, stream);
}

void run_timed(const Solution& solution, const Problem& problem, const Operands& operands, Stream& stream) {
  stream.synchronize();
  const auto start = std::chrono::steady_clock::now();
  run_solution(solution, problem, operands, stream);
  stream.synchronize();
  const double us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  char time[32];
  std::snprintf(time, sizeof time, "%.1f us", us);
  log(2, "run,ocl:" + std::to_string(problem.device) + "," + solution.solver->name() + "," +
             describe(solution.config, solution.solver->config_names()) + "," + key(problem) + "," + time);
}

// The choice to run now, `known` being the one that was found already. Null where a search has computed the
// problem as a measurement.
ChoicePtr choice_for(const Problem& problem, const Operands& operands, Stream& stream, bool reusable_only,
                     const ChoicePtr& known = nullptr) {
  cl::Device& device = stream.device();
  if (deterministic_now()) [[unlikely]]
    return choose_deterministic(problem, device);
  if (stream.graph()) [[unlikely]]
    return choose_for_capture(problem, device);
  ChoicePtr choice = known ? known : known_choice(problem);
  if (!choice) [[unlikely]]
    choice = choose(problem, device);
  if (choice->runs_to_search.load(std::memory_order_relaxed) > 0 && --choice->runs_to_search == 0)
      [[unlikely]]
    choice = reconsider(problem, device, choice);
  if (choice->search) {
    // A run that fails because of its operands says nothing about a candidate.
    for (const Span& span : problem.op->spans(problem)) cl::check_buffer(device, (operands.*span.buffer).mem);
    const auto step = choice->search->step(operands, stream, reusable_only);
    if (step.changed) adopt_search(problem, choice);
    if (step.ran) return nullptr;
  }
  return choice;
}

// The solution that a choice runs; it counts as used from now on.
const Solution& note_run(const Choice& choice, bool reusable_only) {
  const uint32_t round = run_round();
  if (choice.last_run.load(std::memory_order_relaxed) != round) [[unlikely]]
    choice.last_run.store(round, std::memory_order_relaxed);
  return reusable_only ? *choice.reusable : *choice.taken;
}

// Names the solver in PyTorch's profiles and in ours.
class RunScope {
 public:
  RunScope(const Problem& problem, const Solution& solution, Stream& stream)
      : profiled_(at::RecordScope::FUNCTION), scope_(stream.queue(), solution.solver->name()) {
    if (profiled_.isActive()) [[unlikely]]
      profiled_.before(std::string("ocl::") + problem.op->name() + "::" + solution.solver->name() +
                       behind(problem));
  }

 private:
  // " then f32|y0=relu.f32(x0)" of a problem with an epilogue.
  static std::string behind(const Problem& problem) {
    const std::string variant = problem.op->kernel_variant(problem);
    const size_t at = variant.find(" then ");
    return at == std::string::npos ? "" : variant.substr(at);
  }

  at::RecordFunction profiled_;
  const cl::SolverScope scope_;
};

void run_choice(const Choice& choice, const Problem& problem, const Operands& operands, Stream& stream,
                bool reusable_only) {
  const Solution& solution = note_run(choice, reusable_only);
  const RunScope scope(problem, solution, stream);
  try {
    if (verbosity() >= 2 && !stream.graph()) [[unlikely]]
      run_timed(solution, problem, operands, stream);
    else
      run_solution(solution, problem, operands, stream);
  } catch (const c10::OutOfMemoryError&) {
    const SolutionPtr smaller =
        least_memory(problem, stream.device(), solution.workspace + solution.prepared);
    if (!smaller) throw;
    log(1, "too little memory," + key(problem) + ",runs a solver that needs less");
    run_solution(*smaller, problem, operands, stream);
  }
}

}  // namespace

void run(const Problem& problem, const Operands& operands, Stream& stream) {
  cl::Device& device = stream.device();
  if (cl::Recording::current()) [[unlikely]]
    return ask_for_programs(problem, device);
  const bool reusable_only = prefers_reusable(*problem.op);
  if (const ChoicePtr choice = choice_for(problem, operands, stream, reusable_only))
    run_choice(*choice, problem, operands, stream, reusable_only);
}

bool run_with_rows(const Problem& problem, const Problem& plain, c10::function_ref<uint64_t()> bytes,
                   const Operands& operands, Stream& stream) {
  if (cl::Recording::current()) [[unlikely]] {
    ask_for_programs(problem, stream.device());
    return false;
  }
  if (has_preference(*problem.op) && ranking_of(problem, stream.device()).empty()) [[unlikely]]
    return false;
  const bool reusable_only = prefers_reusable(*problem.op);
  const ChoicePtr known = known_choice(problem);
  if (known && !deterministic_now() && gains_apart(problem, *known, plain, bytes, stream.device()))
    return false;
  const ChoicePtr choice = choice_for(problem, operands, stream, reusable_only, known);
  if (choice && choice->taken->solver == &problem.op->reference()) return false;
  if (choice) run_choice(*choice, problem, operands, stream, reusable_only);
  return true;
}

bool run_settled(const Problem& problem, Stream& stream, c10::function_ref<bool(const Solution&)> enqueue) {
  if (cl::Recording::current() || deterministic_now() || verbosity() >= 2 || stream.graph()) return false;
  const ChoicePtr choice = known_choice(problem);
  if (!choice || !is_settled(*choice)) return false;
  const Solution& solution = note_run(*choice, prefers_reusable(*problem.op));
  const RunScope scope(problem, solution, stream);
  return enqueue(solution);
}

bool is_worth_choosing(const Op& op, int64_t elements) {
  return elements >= kWorthChoosing || has_preference(op);
}

void allow_tf32(Problem& problem, const cl::Device& device) {
  problem.tf32 = problem.dtype == c10::ScalarType::Float && device.tensor_cores != cl::TensorCores::kNone &&
                 tf32_allowed(*problem.op);
}

}  // namespace dlb::solver
