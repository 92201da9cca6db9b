#include "solver/build_failures.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <set>
#include <utility>

#include "solver/settings.h"

namespace dlb::solver {
namespace {

struct Failures {
  std::mutex mutex;
  std::set<std::pair<int, const AnySolver*>> solvers;  // by the device's index
};
Failures& failures() {
  static auto* instance = new Failures;
  return *instance;
}

}  // namespace

bool does_not_build(const cl::Device& device, const AnySolver& solver) {
  std::lock_guard<std::mutex> lock(failures().mutex);
  return failures().solvers.contains({device.index, &solver});
}

bool note_build_failure(const Problem& problem, const cl::Device& device, const AnySolver& solver,
                        const std::exception& error) {
  const auto* refused = dynamic_cast<const cl::Error*>(&error);
  if (!refused || refused->code != CL_BUILD_PROGRAM_FAILURE || &solver == &problem.op->reference() ||
      !preference_of(*problem.op).forced.empty())
    return false;
  bool is_new = false;
  {
    std::lock_guard<std::mutex> lock(failures().mutex);
    is_new = failures().solvers.insert({device.index, &solver}).second;
  }
  if (is_new)
    TORCH_WARN("dlbackend: solver ", solver.name(),
               " is not used, its kernel does not build: ", error.what());
  return true;
}

}  // namespace dlb::solver
