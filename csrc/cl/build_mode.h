// The build mode of a thread: whether callers or launches wait for its programs, and where they may be
// compiled.
#pragma once
namespace dlb::cl {

enum class WaitedBy {
  kNobody,
  kLaunches,  // the caller goes on, and its launches wait (cl/builders.h)
  kCaller
};

struct BuildMode {
  WaitedBy waited_by = WaitedBy::kCaller;
  // Other processes may compile the programs (cl/compile_process.h). Starting those pays when there are many.
  bool elsewhere = false;
  // Where that can be (cl/builders.h), get_kernel() does not wait for them: the launches do.
  bool deferred = false;
  // What is launched must be optimised, as what is measured (cl/tiers.h).
  bool optimised = false;
  // Of a thread that nobody waits for: only what solvers launch that are checked must be.
  bool only_checked_optimised = false;
  // The program belongs to a solver whose results are checked before it is used (cl/tiers.h).
  bool checked = false;
};
// The calling thread's mode; of one that set none, callers wait and builds are deferred.
BuildMode build_mode() noexcept;

// The calling thread's mode, but that what it launches must be optimised.
BuildMode optimised_mode() noexcept;

// Sets the calling thread's mode while it lives.
class WithBuildMode {
 public:
  explicit WithBuildMode(BuildMode mode) noexcept;
  ~WithBuildMode();
  WithBuildMode(const WithBuildMode&) = delete;

 private:
  const BuildMode before_;
};

// Lives while a program is built or loaded. Where somebody waits for the program, as the thread's mode says,
// it keeps seconds_since_urgent_build() at 0.
class UrgentBuild {
 public:
  UrgentBuild() noexcept;
  ~UrgentBuild();
  UrgentBuild(const UrgentBuild&) = delete;

 private:
  const bool urgent_;
};

// Seconds since the last build or load that somebody waited for ended; 0 while one goes on.
double seconds_since_urgent_build() noexcept;

}  // namespace dlb::cl
