#include <c10/core/DeviceType.h>
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "api/dlbackend.h"
#include "cl/builders.h"
#include "cl/library.h"
#include "cl/stores/driver_cache.h"
#include "cl/stores/paths.h"
#include "cl/tiers.h"
#include "runtime/hooks.h"
#include "runtime/stream.h"
#include "solver/background.h"

namespace dlb {
namespace {

// The folder that holds this library, packs and the compiler's executable: the Python package's.
std::filesystem::path library_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&init), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  return std::filesystem::canonical(info.dli_fname, error).parent_path();
}

struct ShutdownFirst {
  ShutdownFirst() = default;
  ~ShutdownFirst() { shutdown(); }
};

}  // namespace

void init() {
  static std::once_flag once;
  std::call_once(once, [] {
    const std::filesystem::path folder = library_folder();
    if (!folder.empty()) {
      cl::set_package_dir(folder.string());
      // <prefix>/lib/pythonX.Y/site-packages/dlbackend: drivers that pip installed lie below the prefix.
      cl::set_python_prefix((folder / "../../../..").lexically_normal().string());
    }
    c10::register_privateuse1_backend("ocl");
    register_hooks();
    // Destructors of the main thread's objects run before all handlers. A driver's compiler registers some
    // when it first works, and they end what the background thread may use.
    if (::syscall(SYS_gettid) == ::getpid()) {
      static thread_local const ShutdownFirst first;
    }
    std::atexit(shutdown);  // where another thread ends the process
  });
}

void shutdown() {
  static std::atomic<bool> done{false};
  if (done.exchange(true)) return;
  solver::stop_background();
  cl::stop_builders();
  cl::stop_improvements();
  finish_all_queues();
  cl::record_driver_folders();
}

}  // namespace dlb
