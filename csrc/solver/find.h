// How solvers are found: modes, preferences, what is forced or forbidden, and what the process did so far.
// Modes are MIOpen's, under MIOpen's names.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "solver/problem.h"

namespace dlb::solver {

// What happens to a problem that neither this process nor the find store knows:
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

// What searching may cost a program in modes that search while it runs: a share of the time, in (0, 1]; 1 is
// no limit. Starts as DLBACKEND_FIND_SHARE, else 0.03. Throws std::invalid_argument for another number.
double find_share();
void set_find_share(double share);

// Prefer kernels that take sizes as arguments over those compiled for a problem: for the process, for the
// named ops ("conv_fwd,gemm"), and for the calling thread while a scope lasts.
void set_prefer_reusable(bool everywhere, const std::string& ops);
bool exchange_thread_prefers_reusable(bool prefer) noexcept;

// Choose by estimate alone, so that every process takes the same solvers and gives the same bits. Also in
// force while torch.use_deterministic_algorithms is.
void set_deterministic(bool deterministic);
bool deterministic();

// Forces and forbids solvers: "name" or "-name", or "gemm:name,conv_fwd:-name" per op; empty gives the choice
// back. Starts as DLBACKEND_SOLVER. Throws c10::Error listing what there is for a name that no solver has. A
// forced solver that cannot solve a problem makes run() throw, with the reasons of all.
void force(const std::string& specification);

// Whether products and convolutions of float32 may round their operands to TF32, 10 bits of mantissa, where
// the device has instructions for that: "ieee", never; "tf32", always; "none", as PyTorch's own settings say:
// products where its setting for CUDA's is "tf32" (torch.set_float32_matmul_precision("high") and "medium",
// torch.backends.cuda.matmul.allow_tf32, and what these inherit), convolutions where
// torch.backends.fp32_precision is. Starts as "none". Throws std::invalid_argument for another name.
const char* fp32_precision();
void set_fp32_precision(const std::string& name);
// The calling thread's own, which goes before the process's unless it is "none". Returns what it was.
const char* exchange_thread_fp32_precision(const std::string& name);
// What that comes to for a problem of the op.
bool tf32_allowed(Op op);

// The solvers of every op: "op:name".
std::vector<std::string> solver_names();

// Solver taken for a problem, and for every solver "applicable" or why it is not; one a line. Throws
// std::invalid_argument for a key that no problem prints.
std::string explain(const std::string& key, int device);

// What is known of a problem's solutions, one a line, tab-separated: solver, config, "reusable" or
// "specialised", microseconds (or "-"), workspace bytes, error (or "-"), state. Does not run anything.
std::string solutions(const std::string& key, int device);

// Measures all solvers of a problem now, whatever the mode, on synthetic data; takes and stores the best.
// Unless exhaustive, only those that mode "normal" would measure.
void tune(const std::string& key, int device, bool exhaustive);

// The find store's record of a problem, empty when there is none; and storing one: its text must be one that
// a find record prints, else it is found unusable when it is read. Forgets what was chosen so far.
std::string find_record(const std::string& key, int device);
void store_find_record(const std::string& key, const std::string& text, int device);

// What find records hold for: a device's identity, compute units and class, as text.
std::string find_place(int device);
// Gives this process a find record that goes before the store's, on every device of that place; an empty text
// hides the store's. Throws std::invalid_argument for another text. Opens no driver.
void load_find_record(const std::string& place, const std::string& key, const std::string& text);
void drop_find_records();  // the store's hold again

// Keys of the problems that this process solved.
std::vector<std::string> solved_problems();

// Waits until no kernel is being built or checked in the background.
void wait_for_background();
// Stops the background thread; at process exit.
void stop_background() noexcept;

// Counts since the process started.
struct FindStats {
  std::atomic<uint64_t> hits{0};          // problems that the store knew
  std::atomic<uint64_t> misses{0};        // problems that it did not
  std::atomic<uint64_t> precedents{0};    // sizes that first ran what a like one of their family runs
  std::atomic<uint64_t> searches{0};      // problems whose other solutions were looked at between runs
  std::atomic<uint64_t> measured{0};      // measurements of a solution
  std::atomic<uint64_t> verified{0};      // solutions compared with the reference
  std::atomic<uint64_t> rejected{0};      // solutions found wrong, or that do not build
  std::atomic<uint64_t> swapped{0};       // times a faster solution took over
  std::atomic<uint64_t> specialised{0};   // programs built for one problem
  std::atomic<uint64_t> evicted{0};       // specialised solutions given up because there were too many
  std::atomic<uint64_t> benchmark_ns{0};  // measuring while the caller waited
};
FindStats& find_stats();
// Problems forgotten because the invoker caches were full, and specialised solutions given up.
uint64_t evicted_choices();

}  // namespace dlb::solver
