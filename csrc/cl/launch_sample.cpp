// Notes launches, and repeats them with zeros.
#include "cl/launch_sample.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "cl/compile.h"
#include "cl/log.h"

namespace dlb::cl {
namespace {

using Kind = LaunchSampler::Kind;

constexpr size_t kMostShapes = 16;     // of one kernel
constexpr size_t kLargeGrid = 65536;   // work-groups in a dimension from which on PoCL makes other code
constexpr size_t kBytes = 1 << 20;     // of the buffer of zeros; kernels that load what they do not use fit
constexpr unsigned kMostSeconds = 60;  // that a launch takes, which includes compiling

// The parts of a noted launch, one after the other.
class Writer {
 public:
  template <class T>
  void add(T value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add_bytes(const std::string& bytes) {
    add(static_cast<uint64_t>(bytes.size()));
    text += bytes;
  }
  std::string text;
};

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}
  bool at_end() const { return at_ == text_.size(); }
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, bytes(sizeof value), sizeof value);
    return value;
  }
  std::string take_bytes() {
    const auto size = take<uint64_t>();
    return {bytes(size), size};
  }

 private:
  const char* bytes(size_t size) {
    if (size > text_.size() - at_) throw Error(CL_INVALID_VALUE, "a noted launch is cut");
    return text_.data() + std::exchange(at_, at_ + size);
  }
  const std::string& text_;
  size_t at_ = 0;
};

size_t groups_of(const Range& range, cl_uint dimension) {
  return range.global[dimension] / std::max<size_t>(range.local[dimension], 1);
}

bool is_small(const Range& range) {
  for (cl_uint i = 0; i < range.dims; i++)
    if (groups_of(range, i) >= kLargeGrid) return false;
  return true;
}

// The fewest work-groups for which the driver makes the same code.
Range shortened(Range range) {
  for (cl_uint i = 0; i < range.dims; i++)
    range.global[i] = range.local[i] * (groups_of(range, i) >= kLargeGrid ? kLargeGrid : 1);
  return range;
}

}  // namespace

void LaunchSampler::set(cl_uint position, size_t size, Kind kind) {
  if (arguments_.size() <= position) arguments_.resize(position + 1);
  arguments_[position] = {kind, size};
}

bool LaunchSampler::launch(const Range& range) {
  launches_.fetch_add(1, std::memory_order_relaxed);
  const Shape shape{{range.local[0], range.local[1], range.local[2]}, is_small(range)};
  if (known_.size() >= kMostShapes || std::find(known_.begin(), known_.end(), shape) != known_.end())
    return false;
  known_.push_back(shape);
  try {
    note(range);
    return true;
  } catch (...) {
    log_dropped("noting a launch");  // its machine code is then compiled here
    return false;
  }
}

namespace {

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// A launch that is timed, until it ends.
struct Timed {
  LaunchSampler::Time* time;  // of a sampler, which lives as long as the process; null if it does not count
  uint64_t enqueued;
};

void CL_CALLBACK end_of_launch(cl_event, cl_int, void* data) {
  static std::atomic<uint64_t> last_end{0};
  const std::unique_ptr<Timed> timed(static_cast<Timed*>(data));
  const uint64_t end = now_ns(), begin = std::max(timed->enqueued, last_end.exchange(end));
  if (!timed->time || end < begin) return;
  timed->time->launches.fetch_add(1, std::memory_order_relaxed);
  timed->time->ns.fetch_add(end - begin, std::memory_order_relaxed);
}

}  // namespace

void LaunchSampler::time(cl_event event, bool counts) {
  auto timed = std::make_unique<Timed>(Timed{counts ? &time_ : nullptr, now_ns()});
  if (api().clSetEventCallback(event, CL_COMPLETE, end_of_launch, timed.get()) == CL_SUCCESS)
    static_cast<void>(timed.release());
  api().clReleaseEvent(event);
}

void LaunchSampler::note(const Range& range) {
  Writer out;
  out.add_bytes(kernel_);
  out.add(shortened(range));
  out.add(static_cast<uint32_t>(arguments_.size()));
  for (const Argument& argument : arguments_) {
    out.add(argument.kind);
    out.add(static_cast<uint64_t>(argument.size));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  noted_ += out.text;
}

std::string LaunchSampler::noted() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return noted_;
}

namespace {

// A launch as read: all of it, before anything of it can fail.
struct NotedLaunch {
  struct Argument {
    Kind kind;
    uint64_t size;
  };
  std::string kernel;
  Range range;
  std::vector<Argument> arguments;
};

NotedLaunch take_launch(Reader& in) {
  NotedLaunch launch;
  launch.kernel = in.take_bytes();
  launch.range = in.take<Range>();
  launch.arguments.resize(in.take<uint32_t>());
  for (auto& argument : launch.arguments)
    argument.kind = in.take<Kind>(), argument.size = in.take<uint64_t>();
  return launch;
}

// What a repeated launch needs, released at its end.
class Repeater {
 public:
  Repeater(Device& device, cl_program program) : program_(program) {
    cl_int status = CL_SUCCESS;
    queue_ = api().clCreateCommandQueue(device.context(), device.id, 0, &status);
    check(status, "clCreateCommandQueue");
    zeros_ = api().clCreateBuffer(device.context(), CL_MEM_READ_WRITE, kBytes, nullptr, &status);
    if (status != CL_SUCCESS) api().clReleaseCommandQueue(queue_);
    check(status, "clCreateBuffer");
  }
  ~Repeater() {
    api().clReleaseMemObject(zeros_);
    api().clReleaseCommandQueue(queue_);
  }
  Repeater(const Repeater&) = delete;

  void repeat(const NotedLaunch& launch) {
    const cl_uint zero = 0;
    DLB_CL(clEnqueueFillBuffer, queue_, zeros_, &zero, sizeof zero, 0, kBytes, 0, nullptr, nullptr);
    const std::unique_ptr<std::remove_pointer_t<cl_kernel>, cl_int (*)(cl_kernel)> kernel(
        kernel_of(program_, launch.kernel), api().clReleaseKernel);
    cl_uint position = 0;
    for (const auto& argument : launch.arguments) set(kernel.get(), position++, argument);
    const Range& range = launch.range;
    ::alarm(kMostSeconds);
    const cl_int status = api().clEnqueueNDRangeKernel(queue_, kernel.get(), range.dims, nullptr,
                                                       range.global, range.local, 0, nullptr, nullptr);
    if (status == CL_SUCCESS) api().clFinish(queue_);
    ::alarm(0);
    check(status, "clEnqueueNDRangeKernel");
  }

 private:
  void set(cl_kernel kernel, cl_uint position, const NotedLaunch::Argument& argument) {
    if (argument.kind == Kind::kLocal) {
      DLB_CL(clSetKernelArg, kernel, position, argument.size, nullptr);
    } else if (argument.kind == Kind::kBuffer) {
      DLB_CL(clSetKernelArg, kernel, position, sizeof(cl_mem), &zeros_);
    } else {
      const std::vector<char> value(argument.size);
      DLB_CL(clSetKernelArg, kernel, position, value.size(), value.data());
    }
  }

  const cl_program program_;
  cl_command_queue queue_ = nullptr;
  cl_mem zeros_ = nullptr;
};

}  // namespace

void repeat_launches(Device& device, cl_program program, const std::string& noted) {
  Repeater repeater(device, program);
  for (Reader in(noted); !in.at_end();) {
    const NotedLaunch launch = take_launch(in);
    try {
      repeater.repeat(launch);
    } catch (const Error&) {
      log_dropped("repeating a launch");  // its machine code is compiled where it is needed
    }
  }
}

}  // namespace dlb::cl
