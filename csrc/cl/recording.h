// Finding out which programs a computation needs, without computing.
#pragma once
#include <string>
#include <unordered_set>
#include <vector>

namespace dlb::cl {

struct ProgramSource {
  std::string source, options;  // as for get_kernel()
};

// While it lives, its thread only finds out which programs it needs: get_kernel() notes what is not built yet
// instead of building it, launches and copies of tensors do nothing, and a transfer to the host throws. What
// is uploaded for kernels' own use still is: it may be kept for later launches. No two on one thread.
class Recording {
 public:
  // kWhether only finds out whether something is not built: programs() stays empty.
  enum Wanted { kPrograms, kWhether };
  explicit Recording(Wanted wanted = kPrograms);
  ~Recording();
  Recording(const Recording&) = delete;
  static Recording* current() noexcept { return current_; }

  void note(const std::string& source, const std::string& options);
  void note_unbuilt() { unbuilt_ = true; }
  Wanted wanted() const { return wanted_; }
  bool unbuilt() const { return unbuilt_; }
  // In the order in which they were first asked for, each once.
  const std::vector<ProgramSource>& programs() const { return programs_; }

 private:
  static constinit thread_local Recording* current_;  // constinit: read at every launch without a guard
  const Wanted wanted_;
  bool unbuilt_ = false;
  std::vector<ProgramSource> programs_;
  std::unordered_set<std::string> known_;
};

}  // namespace dlb::cl
