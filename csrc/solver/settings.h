// What find.h's setters decided, as choosing reads it.
#pragma once
#include <ATen/Context.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "cl/log.h"
#include "solver/find.h"
#include "solver/problem.h"

namespace dlb::solver {

struct Preference {
  std::string forced;                  // a solver's name, or empty
  std::vector<std::string> forbidden;  // solvers' names
  bool allows(std::string_view name) const;
};

// Of one op. Reads DLBACKEND_SOLVER on first use; throws c10::Error for a name in it that no solver has.
Preference preference_of(Op op);
// Whether a solver of the op is forced or forbidden; cheap.
bool has_preference(Op op);

// Whether runs of the op on this thread are to use kernels that take sizes as arguments.
bool prefers_reusable(Op op) noexcept;
// Whether specialised kernels of the op may be built at all.
bool may_specialise(Op op) noexcept;

inline bool deterministic_now() {
  return deterministic() || at::globalContext().deterministicAlgorithms();
}

// Forgets what every family of problems chose; defined where the caches are.
void forget_choices();

using cl::say;
using cl::verbosity;

}  // namespace dlb::solver
