// Puts commands on a tape, and replays it.
#include "cl/tape.h"

#include <algorithm>

#include "cl/build_mode.h"
#include "cl/kernel.h"
#include "cl/rounding.h"
#include "cl/statistics.h"

namespace dlb::cl {
namespace {

constexpr size_t kHeldPiece = 256 * 1024, kHeldAlign = 64;  // bytes

void set_kernel_argument(cl_kernel kernel, uint32_t argument, size_t size, const void* value) {
  DLB_CL(clSetKernelArg, kernel, argument, size, value);
}

}  // namespace

Tape::Tape(Device& device, cl_mem errors)
    : LaunchSink(LaunchSink::Kind::kTape), device_(device), errors_(errors), errors_set_(errors) {}

Tape::~Tape() {
  if (in_bad_fork()) return;
  // Commands that are still in a queue keep what they need of these alive.
  for (const Node& node : nodes_)
    if (node.kernel) api().clReleaseKernel(node.kernel);
  for (cl_mem buffer : kept_) release_scratch_buffer(buffer);
  for (cl_mem buffer : held_) release_scratch_buffer(buffer);
}

// --- Capturing

void Tape::Launch::finish() {
  const LaunchRecord* const record = written();
  if (!record) throw Error(CL_INVALID_ARG_SIZE, "a launch has more arguments than a graph can hold");
  tape_.put(*record);
}

void Tape::put(const LaunchRecord& record) {
  // What is captured runs often: no launch of it runs a first tier, and none waits for a build.
  const WithBuildMode mode(optimised_mode());
  const cl_kernel kernel = record.kernel->duplicate();
  Node& node = nodes_.emplace_back(Node{.kind = Kind::kLaunch});
  node.kernel = kernel, node.name = &record.kernel->name(), node.range = record.range;
  try {
    set_arguments(kernel, record);
  } catch (...) {
    api().clReleaseKernel(kernel);
    nodes_.pop_back();
    throw;
  }
  launches_++;
}

void Tape::set_arguments(cl_kernel kernel, const LaunchRecord& record) {
  uint32_t position = 0;
  for_each_argument(record, [&](const void* value, size_t size, bool is_buffer) {
    set_kernel_argument(kernel, position, size, value);
    if (value && is_buffer) {
      const cl_mem buffer = *static_cast<const cl_mem*>(value);
      if (buffer == errors_)
        error_arguments_.push_back({kernel, position});
      else if (buffer)
        keep(buffer);
    }
    if (value) note_live(kernel, position, value, size);
    position++;
  });
}

void Tape::note_live(cl_kernel kernel, uint32_t argument, const void* value, size_t size) {
  LiveArgument live{kernel, argument, {}, {}};
  for (const LivePlace& place : places_) {
    if (place.argument != argument) continue;
    uint64_t added = 0;
    std::memcpy(&added, static_cast<const std::byte*>(value) + place.offset, sizeof added);
    live.words.emplace_back(place, added);
  }
  if (live.words.empty()) return;
  const auto* bytes = static_cast<const std::byte*>(value);
  live.value.assign(bytes, bytes + size);
  live_.push_back(std::move(live));
}

void Tape::keep(cl_mem buffer) {
  if (kept_.insert(buffer).second) DLB_CL(clRetainMemObject, buffer);
}

void Tape::add_copy(cl_mem from, size_t from_offset, cl_mem to, size_t to_offset, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  keep(from), keep(to);
  nodes_.push_back({.kind = Kind::kCopy,
                    .from = from,
                    .to = to,
                    .from_offset = from_offset,
                    .to_offset = to_offset,
                    .bytes = bytes});
}

void Tape::add_write(const void* from, cl_mem to, size_t offset, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  keep(to);
  nodes_.push_back(
      {.kind = Kind::kWrite, .to = to, .to_offset = offset, .bytes = bytes, .host = const_cast<void*>(from)});
}

void Tape::add_read(cl_mem from, size_t offset, void* to, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  keep(from);
  nodes_.push_back({.kind = Kind::kRead, .from = from, .from_offset = offset, .bytes = bytes, .host = to});
}

Tape::Place Tape::hold(const void* data, size_t bytes, cl_command_queue queue) {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t at = round_up(held_used_, kHeldAlign);
  if (held_.empty() || at + bytes > held_size_) {
    cl_int status = CL_SUCCESS;
    held_size_ = std::max(kHeldPiece, bytes), at = 0;
    const cl_mem mem =
        api().clCreateBuffer(device_.context(), CL_MEM_READ_WRITE, held_size_, nullptr, &status);
    check(status, "clCreateBuffer");
    held_.push_back(mem);
  }
  DLB_CL(clEnqueueWriteBuffer, queue, held_.back(), CL_TRUE, at, bytes, data, 0, nullptr, nullptr);
  held_used_ = at + bytes;
  return {held_.back(), at};
}

// --- Replaying

void Tape::set_errors(cl_mem errors) {
  if (errors == errors_set_) return;
  for (const ErrorArgument& place : error_arguments_)
    set_kernel_argument(place.kernel, place.argument, sizeof(cl_mem), &errors);
  errors_set_ = errors;
}

void Tape::set_live() {
  for (LiveArgument& live : live_) {
    for (const auto& [place, added] : live.words) {
      const uint64_t word = added + *place.source;
      std::memcpy(live.value.data() + place.offset, &word, sizeof word);
    }
    set_kernel_argument(live.kernel, live.argument, live.value.size(), live.value.data());
  }
}

void Tape::enqueue(Queue& queue, const Node& node) {
  if (node.kind == Kind::kLaunch) [[likely]] {
    enqueue_kernel(queue, node.kernel, *node.name, node.range);
    return throttle(queue);
  }
  if (node.kind == Kind::kCopy) {
    Command command(queue, CommandKind::kCopy, "Memcpy DtoD", node.bytes);
    DLB_CL(clEnqueueCopyBuffer, command.queue(), node.from, node.to, node.from_offset, node.to_offset,
           node.bytes, 0, nullptr, command.event());
  } else if (node.kind == Kind::kWrite) {
    Command command(queue, CommandKind::kWrite, "Memcpy HtoD", node.bytes);
    DLB_CL(clEnqueueWriteBuffer, command.queue(), node.to, CL_FALSE, node.to_offset, node.bytes, node.host, 0,
           nullptr, command.event());
  } else {
    Command command(queue, CommandKind::kRead, "Memcpy DtoH", node.bytes);
    DLB_CL(clEnqueueReadBuffer, command.queue(), node.from, CL_FALSE, node.from_offset, node.bytes, node.host,
           0, nullptr, command.event());
  }
}

void Tape::replay(Queue& queue, cl_mem errors) {
  std::lock_guard<std::mutex> lock(mutex_);
  set_errors(errors);
  set_live();
  for (const Node& node : nodes_) enqueue(queue, node);
  g_counters.launches.fetch_add(launches_, std::memory_order_relaxed);
}

std::string Tape::describe() const {
  std::string text;
  for (const Node& node : nodes_) {
    if (node.kind == Kind::kLaunch) {
      text += *node.name;
      for (cl_uint d = 0; d < node.range.dims; ++d)
        text += (d ? " x " : " ") + std::to_string(node.range.global[d]) + "/" +
                std::to_string(node.range.local[d]);
    } else {
      text += node.kind == Kind::kCopy    ? "copy on the device, "
              : node.kind == Kind::kWrite ? "copy from the host, "
                                          : "copy to the host, ";
      text += std::to_string(node.bytes) + " bytes";
    }
    text += "\n";
  }
  return text;
}

}  // namespace dlb::cl
