// A program of the process's table, for the files of this folder.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cl/device.h"
#include "cl/hash.h"
#include "cl/kernel.h"
#include "cl/recording.h"

namespace dlb::cl {

// A program that is built or being built, with its kernels. Entries live as long as the process; what the
// driver has of them is released and made again. The entry's own lock makes other threads wait for the one
// build.
struct ProgramEntry {
  Device& device;
  const Hash128 key;
  const ProgramSource source;  // with all options
  // Count of the process's launches when one of the kernels was last launched; the smallest is evicted first.
  std::atomic<uint64_t> used;
  std::atomic<bool> held{false};       // the driver has the program
  std::atomic<bool> failed{false};     // it does not build, and is not built again
  std::atomic<bool> under_way{false};  // another thread builds it, or will (cl/builders.h)
  std::atomic<bool> ahead{false};      // build_ahead() was called, and the build has not ended
  // Of programs that are built in tiers (cl/tiers.h).
  std::atomic<ProgramEntry*> first_tier{nullptr};  // what runs until the program is made
  std::atomic<ProgramEntry*> last_tier{nullptr};   // of a first tier: the program
  std::atomic<bool> improving{false};              // another process compiles it, or will
  std::atomic<bool> checked{false};                // it is a solver's that is checked before it is used
  int checks_to_come = 0;                          // before which it must not take over; guarded by tiers.cpp
  std::mutex mutex;                                // guards the two that follow, for as long as a build takes
  cl_program program = nullptr;
  std::unique_ptr<Error> failure;

  ProgramEntry(Device& device, const Hash128& key, ProgramSource source);

  // Builds or loads the program unless it is made already. Throws Error. Where it is not `counted`,
  // kernel_stats() has counted it as its first tier.
  void make(bool counted = true);
  // Makes the driver's kernel unless it exists, or those of all kernels that were asked for. The program must
  // be made. Throws Error.
  void make(Kernel& kernel);
  // Of kernels that have a stand-in, only those named, where names are given.
  void make_kernels(const std::set<std::string>* stood_for = nullptr);
  // The kernel of that name, which may not be made. Never waits. Where it is new, its launches are noted if
  // they shall be `sampled`.
  Kernel& kernel(const std::string& name, bool sampled = false);
  // Of the kernels whose launches are noted. Never waits. They live as long as the process.
  std::vector<const LaunchSampler*> samplers();
  // Whether the program of a kernel has a first tier, which the kernel may not run yet.
  static bool has_first_tier(const Kernel& kernel);
  // Releases the driver's program and kernels. The driver keeps what commands in its queues need, and the
  // next launch makes the program again.
  void release();

 private:
  std::vector<Kernel*> all_kernels();

  std::mutex kernels_mutex_;
  std::unordered_map<std::string, std::unique_ptr<Kernel>> kernels_;
};

// The table's entry of a program with all its options.
ProgramEntry& entry_for(Device& device, const std::string& source, const std::string& all_options);

// Releases the programs that were used least recently, an eighth at once, where there are more than
// DLBACKEND_MAX_PROGRAMS; never `wanted`, whose kernel is about to be launched. The caller holds no entry's
// lock.
void make_room(const ProgramEntry& wanted);

}  // namespace dlb::cl
