// Collects the programs that a recording thread asks for.
#include "cl/recording.h"

#include "cl/library.h"

namespace dlb::cl {

constinit thread_local Recording* Recording::current_ = nullptr;

Recording::Recording(Wanted wanted) : wanted_(wanted) {
  if (current_) throw Error(CL_INVALID_OPERATION, "this thread records already");
  current_ = this;
}
Recording::~Recording() {
  current_ = nullptr;
}
void Recording::note(const std::string& source, const std::string& options) {
  unbuilt_ = true;
  if (wanted_ == kWhether) return;
  if (known_.insert(options + "\n" + source).second) programs_.push_back({source, options});
}

}  // namespace dlb::cl
