// How solvers are found: modes, preferences, what is forced or forbidden. Modes are MIOpen's, under MIOpen's
// names.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cl/log.h"
#include "solver/op.h"

namespace dlb::solver {

// The find mode: how to choose for a problem that neither this process nor the find store knows.
//   kNormal         every applicable solver and config is measured before the first run
//   kFast           the lowest estimate runs; nothing is measured
//   kHybrid         the lowest estimate runs; the others are measured between later runs, and compiled for
//                   the problem's sizes when they pay
//   kDynamicHybrid  as kHybrid, but nothing is ever compiled for a problem's sizes
//   kTrustVerify    as kHybrid, and what the store knows is measured once more
enum class FindMode : uint8_t { kNormal, kFast, kHybrid, kDynamicHybrid, kTrustVerify };

// The process's mode; starts as DLBACKEND_FIND_MODE, else hybrid. Setting it forgets what was chosen so far.
// Throws std::invalid_argument that lists the modes for another name.
FindMode find_mode();
const char* find_mode_name();
void set_find_mode(const std::string& name);
// Whether a mode measures between runs.
inline bool searches(FindMode mode) {
  return mode != FindMode::kFast;
}
// Whether a mode may compile an op's kernels for a problem's sizes.
bool specialises(FindMode mode, const Op& op);

// The cost that searching may have for a program in modes that search while it runs: a share of the time, in
// (0, 1]; 1 is no limit. Starts as DLBACKEND_FIND_SHARE, else 0.03. Throws std::invalid_argument for another
// number.
double find_share();
void set_find_share(double share);

// Prefers kernels that take sizes as arguments over those compiled for a problem: for the process, for the
// named ops ("conv_fwd,gemm"), and for the calling thread while a scope lasts.
void set_prefer_reusable(bool everywhere, const std::string& ops);
bool exchange_thread_prefers_reusable(bool prefer) noexcept;
// Whether runs of the op on this thread are to use kernels that take sizes as arguments.
bool prefers_reusable(const Op& op) noexcept;
// Whether specialised kernels of the op may be built at all.
bool may_specialise(const Op& op) noexcept;

// Chooses by estimate alone, so that every process takes the same solvers and gives the same bits. Also in
// force while torch.use_deterministic_algorithms is.
void set_deterministic(bool deterministic);
bool deterministic();
// Whether this setting or PyTorch's asks for deterministic choices.
bool deterministic_now();

// Forces and forbids solvers: "name" or "-name", or "gemm:name,conv_fwd:-name" per op; empty gives the choice
// back. Starts as DLBACKEND_SOLVER. Throws c10::Error listing what there is for a name that no solver has. A
// forced solver that cannot solve a problem makes run() throw, with the reasons of all.
void force(const std::string& specification);

struct Preference {
  std::string forced;                  // a solver's name, or empty
  std::vector<std::string> forbidden;  // solvers' names
  bool allows(const AnySolver& solver) const;
};
// For one op. Reads DLBACKEND_SOLVER on first use; throws c10::Error for a name in it that no solver has.
Preference preference_of(const Op& op);
// Whether a solver of the op is forced or forbidden; cheap.
bool has_preference(const Op& op);

// Whether products and convolutions of float32 may round their operands to TF32, 10 bits of mantissa, where
// the device has instructions for that: "ieee", never; "tf32", always; "none", as PyTorch's own settings say:
// products where its setting for CUDA's is "tf32" (torch.set_float32_matmul_precision("high") and "medium",
// torch.backends.cuda.matmul.allow_tf32, and what these inherit), convolutions where
// torch.backends.fp32_precision is. Starts as "none". Throws std::invalid_argument for another name.
const char* fp32_precision();
void set_fp32_precision(const std::string& name);
// Sets the calling thread's own, which overrides the process's unless it is "none". Returns the previous one.
const char* exchange_thread_fp32_precision(const std::string& name);
// Whether these settings allow TF32 for problems of the op.
bool tf32_allowed(const Op& op);

// The solvers of every op: "op:name".
std::vector<std::string> solver_names();

using cl::log;
using cl::verbosity;

}  // namespace dlb::solver
