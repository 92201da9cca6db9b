// The programs of this process: each is built once however many threads ask.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cl/builders.h"
#include "cl/device.h"
#include "cl/kernel.h"
#include "cl/recording.h"

namespace dlb::cl {

// The kernel `name` of the program with this source and these build options (added to the device's own),
// built or loaded on the first request. Thread-safe, never holds a global lock while building. Throws Error
// with the build log, and the name of a file that holds the numbered source, when the program does not build;
// where the thread's mode is deferred and the build can be (cl/builders.h), the kernel's launches report
// that, late. The kernel lives as long as the process. The driver's part of its program may be released when
// others are used more (DLBACKEND_MAX_PROGRAMS); the next launch loads it again.
Kernel& get_kernel(Device& device, const std::string& source, const std::string& options,
                   const std::string& name);

// Of a kernel that get_kernel() returned before it was built, for a recording or because its build was
// deferred, or of one whose first tier is there: whether it may be used as it is. If not, get_kernel() is to
// be called again, which builds it now or notes it in this thread's recording.
bool may_stay_unbuilt(Kernel& kernel);
// Whether a kernel that get_kernel() returned may be used without calling that again.
inline bool is_settled(Kernel& kernel) {
  return kernel.is_made() || may_stay_unbuilt(kernel);
}

// Builds or loads programs ahead of their first use, in up to `threads` threads (0: as many as the host has
// cores), and returns how many are ready. One that does not build is left for its first use to report.
// `progress(done)` is called after each program, by one thread at a time; where it returns false, no more are
// started.
size_t prefetch(Device& device, const std::vector<ProgramSource>& programs, unsigned threads = 0,
                const std::function<bool(size_t)>& progress = {});

// As prefetch(), by the threads of build_ahead() (cl/builders.h), without waiting. Returns what tells whether
// all builds have ended; where there are no such threads none began, and the programs' first uses build them.
std::function<bool()> prefetch_behind(Device& device, const std::vector<ProgramSource>& programs,
                                      AheadFor what);

// As get_kernel(), for a program that few will want: the kernel belongs to the caller, and its program goes
// with it. Only the disk cache remembers it.
std::shared_ptr<Kernel> get_own_kernel(Device& device, const std::string& source, const std::string& options,
                                       const std::string& name);

}  // namespace dlb::cl
