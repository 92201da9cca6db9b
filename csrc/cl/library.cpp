// Finds and loads the OpenCL library, guards against use after fork, and names OpenCL's status codes.
#include "cl/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "cl/log.h"
#include "cl/settings.h"
#include "cl/stores/paths.h"

namespace dlb::cl {
namespace {

struct Library {
  Api api;
  void* handle = nullptr;
  std::string name;
  std::string failure;
};

std::atomic<bool> g_used{false};
std::atomic<bool> g_bad_fork{false};
void (*g_throw_out_of_memory)(const std::string&) = nullptr;

bool resolve(void* handle, Api& api, std::string& missing) {
#define DLB_CL_RESOLVE(f)                                      \
  api.f = reinterpret_cast<decltype(&::f)>(dlsym(handle, #f)); \
  if (!api.f) missing += std::string(missing.empty() ? "" : ", ") + #f;
  DLB_CL_FUNCTIONS(DLB_CL_RESOLVE)
#undef DLB_CL_RESOLVE
  return missing.empty();
}

// Intel's pip runtime declares no search path of its own: its helper libraries must be in the process first.
void preload_intel_runtime(const std::string& dir) {
  for (const char* lib : {"libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so"})
    dlopen((dir + "/" + lib).c_str(), RTLD_NOW | RTLD_GLOBAL);
}

std::vector<std::string> candidates() {
  if (const std::string chosen = settings::opencl_library(); !chosen.empty()) return {chosen};
  const std::string prefix = python_prefix();
  if (!prefix.empty() && ::access((prefix + "/lib/libintelocl.so").c_str(), R_OK) == 0)
    preload_intel_runtime(prefix + "/lib");
  std::vector<std::string> names{"libOpenCL.so.1", "libOpenCL.so"};
  if (!prefix.empty()) {
    names.push_back(prefix + "/lib/libOpenCL.so.1");
    names.push_back(prefix + "/lib/libintelocl.so");
  }
  names.emplace_back("libintelocl.so");
  return names;
}

// Whether the library has a platform. One without any is taken only when no other candidate has one.
bool has_platform(const Api& api) {
  cl_uint n = 0;
  return api.clGetPlatformIDs(0, nullptr, &n) == CL_SUCCESS && n > 0;
}

// For each context NVIDIA's driver makes as many connections to the device as CUDA_DEVICE_MAX_CONNECTIONS
// says, by default eight. They take 110 of the 335 ms of a process's first operation. With two connections
// that takes 295 ms, and copies overlap with kernels, and kernels of two streams with each other, as well as
// with eight. With one it would take 270 ms, but nothing would overlap.
void limit_connections() {
  settings::set_default_cuda_connections(2);
}

// PoCL starts a thread for each core of the machine. Where the process may use fewer of them (taskset, a
// container's or a batch system's set of cores), more threads than cores only take turns, and work that is
// divided among as many parts is done more often than needed.
void limit_threads() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return;  // also with more than 1024 cores
  const int usable = CPU_COUNT(&set);
  if (usable < ::sysconf(_SC_NPROCESSORS_ONLN)) settings::set_default_pocl_threads(usable);
}

Library load() {
  prepare_driver_caches();
  limit_connections();
  limit_threads();
  Library first;
  std::string failure;
  for (const std::string& name : candidates()) {
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      failure += "\n  " + name + ": " + dlerror();
      continue;
    }
    Library library{{}, handle, name, {}};
    std::string missing;
    if (!resolve(handle, library.api, missing)) {
      failure += "\n  " + name + ": lacks " + missing;
      continue;
    }
    if (has_platform(library.api)) return library;
    failure += "\n  " + name + ": has no OpenCL platform";
    if (!first.handle) first = library;
  }
  first.failure = failure;
  return first;
}

Library& library() {
  static Library* loaded = [] {
    auto* result = new Library(load());
    if (result->handle) {
      g_used = true;
      pthread_atfork(nullptr, nullptr, [] { g_bad_fork = g_used.load(); });
    }
    return result;
  }();
  return *loaded;
}

// One entry point of the table, called under a lock that all of them share. Recursive, since a driver may
// call an event's callback inside of another call.
template <auto member, class Function = std::remove_reference_t<decltype(std::declval<Api>().*member)>>
struct Serialized;
std::recursive_mutex& serialized_mutex() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}
template <auto member, class Result, class... Args>
struct Serialized<member, Result (*)(Args...)> {
  static inline Result (*driver)(Args...) = nullptr;
  static Result call(Args... args) {
    const std::lock_guard<std::recursive_mutex> lock(serialized_mutex());
    return driver(args...);
  }
  static void install(Api& api) {
    if (!driver) driver = std::exchange(api.*member, &call);
  }
};

const char* advice(cl_int code) {
  switch (code) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_RESOURCES:
    case CL_OUT_OF_HOST_MEMORY:
      return " The device may be out of memory: free tensors, call torch.ocl.empty_cache(), or use smaller "
             "batches.";
    case CL_BUILD_PROGRAM_FAILURE:
      return " If this kernel is the library's own, please report it with your driver's name and version "
             "(python "
             "-m dlbackend info).";
    case -1001:
    case CL_DEVICE_NOT_FOUND:
      return " No OpenCL driver is installed; see `python -m dlbackend doctor`.";
    default:
      return "";
  }
}

// Whether a command found no memory. Other calls do not count: freeing tensors gives a compiler no memory.
// Nor does CL_OUT_OF_RESOURCES, with which some drivers also report kernels that fail for other reasons.
bool is_want_of_memory(cl_int code, std::string_view call) {
  return (code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_HOST_MEMORY) &&
         (call.starts_with("clEnqueue") || call == "clFinish" || call == "clWaitForEvents");
}

}  // namespace

const Api& api() {
  if (g_bad_fork.load(std::memory_order_relaxed)) [[unlikely]]
    throw Error(
        CL_INVALID_OPERATION,
        "Cannot re-initialize the ocl device in a forked subprocess: OpenCL drivers do not survive fork. Use "
        "the 'spawn' start method (torch.multiprocessing.set_start_method('spawn')), or touch the device "
        "only after forking.");
  static const Library& loaded = library();
  if (!loaded.handle) [[unlikely]]
    throw Error(
        CL_DEVICE_NOT_FOUND,
        "No OpenCL library could be loaded, so there is no ocl device. Install a driver for your GPU, or "
        "one for the CPU: `apt-get install pocl-opencl-icd` or `pip install 'dlbackend[cpu]'`; `python -m "
        "dlbackend doctor` says more. Tried:" +
            loaded.failure);
  return loaded.api;
}

void serialize_commands() {
  Api& api = library().api;
#define DLB_CL_SERIALIZE(f) Serialized<&Api::f>::install(api);
  DLB_CL_COMMANDS(DLB_CL_SERIALIZE)
#undef DLB_CL_SERIALIZE
}

bool library_available() noexcept {
  try {
    return !in_bad_fork() && library().handle != nullptr;
  } catch (...) {
    log_dropped("loading OpenCL");
    return false;
  }
}

std::string library_name() {
  return g_used ? library().name : std::string();
}

bool in_bad_fork() noexcept {
  return g_bad_fork.load(std::memory_order_relaxed);
}

const char* status_name(cl_int code) {
  static constexpr std::pair<cl_int, const char*> kNames[] = {
      {CL_SUCCESS, "CL_SUCCESS"},
      {CL_DEVICE_NOT_FOUND, "CL_DEVICE_NOT_FOUND"},
      {CL_DEVICE_NOT_AVAILABLE, "CL_DEVICE_NOT_AVAILABLE"},
      {CL_COMPILER_NOT_AVAILABLE, "CL_COMPILER_NOT_AVAILABLE"},
      {CL_MEM_OBJECT_ALLOCATION_FAILURE, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
      {CL_OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES"},
      {CL_OUT_OF_HOST_MEMORY, "CL_OUT_OF_HOST_MEMORY"},
      {CL_PROFILING_INFO_NOT_AVAILABLE, "CL_PROFILING_INFO_NOT_AVAILABLE"},
      {CL_MEM_COPY_OVERLAP, "CL_MEM_COPY_OVERLAP"},
      {CL_BUILD_PROGRAM_FAILURE, "CL_BUILD_PROGRAM_FAILURE"},
      {CL_MAP_FAILURE, "CL_MAP_FAILURE"},
      {CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
      {CL_INVALID_VALUE, "CL_INVALID_VALUE"},
      {CL_INVALID_DEVICE, "CL_INVALID_DEVICE"},
      {CL_INVALID_CONTEXT, "CL_INVALID_CONTEXT"},
      {CL_INVALID_COMMAND_QUEUE, "CL_INVALID_COMMAND_QUEUE"},
      {CL_INVALID_MEM_OBJECT, "CL_INVALID_MEM_OBJECT"},
      {CL_INVALID_BINARY, "CL_INVALID_BINARY"},
      {CL_INVALID_BUILD_OPTIONS, "CL_INVALID_BUILD_OPTIONS"},
      {CL_INVALID_PROGRAM_EXECUTABLE, "CL_INVALID_PROGRAM_EXECUTABLE"},
      {CL_INVALID_KERNEL_NAME, "CL_INVALID_KERNEL_NAME"},
      {CL_INVALID_KERNEL, "CL_INVALID_KERNEL"},
      {CL_INVALID_ARG_INDEX, "CL_INVALID_ARG_INDEX"},
      {CL_INVALID_ARG_VALUE, "CL_INVALID_ARG_VALUE"},
      {CL_INVALID_ARG_SIZE, "CL_INVALID_ARG_SIZE"},
      {CL_INVALID_KERNEL_ARGS, "CL_INVALID_KERNEL_ARGS"},
      {CL_INVALID_WORK_DIMENSION, "CL_INVALID_WORK_DIMENSION"},
      {CL_INVALID_WORK_GROUP_SIZE, "CL_INVALID_WORK_GROUP_SIZE"},
      {CL_INVALID_WORK_ITEM_SIZE, "CL_INVALID_WORK_ITEM_SIZE"},
      {CL_INVALID_EVENT_WAIT_LIST, "CL_INVALID_EVENT_WAIT_LIST"},
      {CL_INVALID_EVENT, "CL_INVALID_EVENT"},
      {CL_INVALID_OPERATION, "CL_INVALID_OPERATION"},
      {CL_INVALID_BUFFER_SIZE, "CL_INVALID_BUFFER_SIZE"},
      {CL_INVALID_GLOBAL_WORK_SIZE, "CL_INVALID_GLOBAL_WORK_SIZE"},
      {-1001, "CL_PLATFORM_NOT_FOUND_KHR"},
      {-9999, "illegal memory access reported by NVIDIA's driver"}};
  for (const auto& [value, name] : kNames)
    if (value == code) return name;
  return "unknown OpenCL status";
}

void throw_error(cl_int code, const char* call, const std::string& context) {
  std::string message = std::string("OpenCL: ") + call + " failed with " + status_name(code) + " (" +
                        std::to_string(code) + ")";
  if (!context.empty()) message += " for " + context;
  message += "." + std::string(advice(code));
  if (g_throw_out_of_memory && is_want_of_memory(code, call)) g_throw_out_of_memory(message);
  throw Error(code, message);
}

void on_out_of_memory(void (*throws)(const std::string& message)) noexcept {
  g_throw_out_of_memory = throws;
}

}  // namespace dlb::cl
