// Threads that have programs built while those who asked for them go on. A first iteration consists of
// building one program after the other; where launches have a thread of their own (cl/submitter.h), that can
// wait for them in place of the program's, which then asks for all that an iteration needs within
// milliseconds, and where other processes compile (cl/compile_process.h), they compile many at once.
#pragma once
#include <cstdint>

#include "cl/device.h"

namespace dlb::cl {

struct ProgramEntry;

// Whether a program's first launches can wait for it in place of their caller: a thread launches, and
// processes compile.
bool can_defer_builds(const Device& device);

// Has a program built by another thread, in the order of the calls; does nothing where that is under way.
// False where there is no such thread: its caller must build it. Never waits. A build that fails is left to
// the program's first launch, which reports it late.
bool build_behind(ProgramEntry& entry) noexcept;

// What a program that no launch waits for is wanted for.
enum class AheadFor : uint8_t {
  kProblem,  // for which something slower runs meanwhile
  kSearch    // for something faster than what runs
};

// Has a program built by threads of their own, behind those that launches wait for: problems' first, each
// kind in the order of the calls. Does nothing where that was asked for already, or where there are no such
// threads. ProgramEntry::ahead is true until the build has ended, or failed, which is left to the first use
// of the program to report. Never waits.
void build_ahead(ProgramEntry& entry, AheadFor what) noexcept;

// Waits until the builds that launches wait for and that were asked for before have ended.
void wait_for_builders() noexcept;

// Forgets what is not begun, and waits for what is; at process exit. Launches that need a program which was
// not built build it.
void stop_builders() noexcept;

}  // namespace dlb::cl
