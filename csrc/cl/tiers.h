// Tiers of compiling, as a JIT has them. PoCL's optimiser takes most of the time that a program's first
// launches wait for. So what a launch waits for is built without it first, in a fraction of the time, and
// runs at a part of the speed; another process (cl/compile_process.h) meanwhile compiles the program as it
// should be, with the machine code of the launches that were seen, what takes longest first, and it takes
// over.
//
// A program of the first tier is a program of the table like others, with an option more and kernels of its
// own, so that nothing of it changes under launches. Kernels that get_kernel() gives out launch those of the
// first tier (Kernel::stand_in()) until the program has taken over.
//
// What measures or checks never runs the first tier (may_run_first_tier()). A solver that was checked by the
// first tier, because an op waits for it, is checked again before its programs take over.
#pragma once
#include <functional>
#include <vector>

#include "cl/device.h"

namespace dlb::cl {

class Kernel;
struct ProgramEntry;

// Whether programs of the device are built in tiers: it is a CPU whose driver is made of clang and compiles
// machine code at first launches, other processes may compile for it, and the stores keep what they do.
// DLBACKEND_EMULATE=tiers=0 says no, tiers=1 says so of any device.
bool has_tiers(const Device& device);

// Whether launches of the calling thread may run the first tier of the program, as its build mode says.
bool may_run_first_tier(const ProgramEntry& program) noexcept;

// Sets the condition under which no launch runs a first tier: results of the tiers may differ by rounding.
void no_first_tier_while(bool (*condition)()) noexcept;

// Builds the first tier of a program that is not built and that no store has, and has the kernel's launches
// go to it. False where there is none: the program itself is to be built.
bool start_in_first_tier(ProgramEntry& program, Kernel& kernel);

// A launch of a first tier was noted: the program is compiled for it too.
void ask_for_improvement(ProgramEntry& first_tier) noexcept;

// A kernel was made: its launches no longer go to the first tier, or later where a check is to come.
void take_over(Kernel& kernel) noexcept;

// Lives while a solver is checked for an op that waits, and notes which programs ran in the first tier. While
// it lives, no program of a solver takes over.
class FirstTierUse {
 public:
  FirstTierUse();
  ~FirstTierUse();
  FirstTierUse(const FirstTierUse&) = delete;
  // Whether a program of a solver ran in the first tier.
  bool any() const noexcept;
  // Has the solver checked again by the threads of this file when those of the programs that belong to
  // solvers are optimised. They take over when check() returns true, and do not where it returns false or
  // throws. It runs nothing of them in the first tier, but may run others' so.
  void check_again(std::function<bool()> check);

 private:
  friend Kernel;
  static constinit thread_local FirstTierUse* current_;
  FirstTierUse* const before_;
  std::vector<ProgramEntry*> programs_;
};

// Waits until all programs are optimised and checked again, or stop() is true.
void wait_for_improvements(const std::function<bool()>& stop);
// Begins no more of them, and waits for what cannot be left; at process exit.
void stop_improvements() noexcept;

}  // namespace dlb::cl
