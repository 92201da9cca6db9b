// Sets arguments, enqueues, and bounds how far the host runs ahead.
#include "cl/kernel.h"

#include <algorithm>
#include <unordered_set>

#include "cl/builders.h"
#include "cl/launch_sample.h"
#include "cl/program_entry.h"
#include "cl/statistics.h"
#include "cl/tiers.h"

namespace dlb::cl {

namespace {

constexpr uint32_t kFlushEvery = 16;  // launches, so that the device is busy and few launches pay for a flush

std::atomic<uint64_t> g_buffer_epoch{1};

const std::string& interned(const std::string& name) {
  static std::mutex mutex;
  static auto* names = new std::unordered_set<std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  return *names->insert(name).first;
}

}  // namespace

void release_buffer(cl_mem buffer) noexcept {
  Submitter::drain_all();
  release_scratch_buffer(buffer);
}

void release_scratch_buffer(cl_mem buffer) noexcept {
  g_buffer_epoch++;
  api().clReleaseMemObject(buffer);
}

Kernel::Kernel(Device& device, cl_kernel handle, const std::string& name)
    : device_(device), name_(interned(name)) {
  attach(handle);
}
Kernel::Kernel(Device& device, ProgramEntry& program, const std::string& name)
    : device_(device), program_(&program), name_(interned(name)) {}

void Kernel::attach(cl_kernel handle) {
  DLB_CL(clGetKernelWorkGroupInfo, handle, device_.id, CL_KERNEL_WORK_GROUP_SIZE, sizeof max_work_group_,
         &max_work_group_, nullptr);
  handle_.store(handle, std::memory_order_release);
}

void Kernel::detach() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (const cl_kernel handle = handle_.exchange(nullptr)) api().clReleaseKernel(handle);
  for (Shadow& shadow : shadows_) shadow.size = 0;
}

bool Kernel::will_be_made() noexcept {
  return program_ && !program_->failed && can_defer_builds(device_) && build_behind(*program_);
}

void Kernel::make() {
  try {
    std::lock_guard<std::mutex> lock(program_->mutex);
    program_->make();
    program_->make(*this);
  } catch (const Error& error) {  // which may be reported late
    throw Error(error.code, "kernel " + name_ + ": " + error.what());
  }
  make_room(*program_);
}

// Commands that are still in a queue keep the driver's kernel alive.
Kernel::~Kernel() {
  if (in_bad_fork()) return;
  Submitter::drain_all();
  if (const cl_kernel handle = handle_.load()) api().clReleaseKernel(handle);
}

void check_buffer(Device& device, cl_mem buffer) {
  static const bool several = device_count() > 1;
  if (!several || !buffer) return;
  cl_context context = nullptr;
  DLB_CL(clGetMemObjectInfo, buffer, CL_MEM_CONTEXT, sizeof(cl_context), &context, nullptr);
  if (context == device.context()) [[likely]]
    return;
  int other = 0;
  while (other < device_count() && cl::device(other).context() != context) ++other;
  throw Error(CL_INVALID_MEM_OBJECT,
              "Expected all tensors to be on the same device, but found at least two devices, ocl:" +
                  std::to_string(device.index) + " and ocl:" + std::to_string(other) + "!");
}

void Kernel::begin_arguments() {
  const uint64_t epoch = g_buffer_epoch.load(std::memory_order_relaxed);
  if (epoch == buffer_epoch_) return;
  for (Shadow& shadow : shadows_) shadow.size = 0;
  buffer_epoch_ = epoch;
}

void Kernel::set_argument(cl_uint position, size_t size, const void* value, bool is_buffer) {
  if (is_buffer) check_buffer(device_, *static_cast<const cl_mem*>(value));
  const cl_int status = api().clSetKernelArg(handle_.load(std::memory_order_relaxed), position, size, value);
  if (status != CL_SUCCESS) [[unlikely]]
    throw_error(status, "clSetKernelArg", "argument " + std::to_string(position) + " of kernel " + name_);
  if (sampler_) [[unlikely]]
    sampler_->set(position, size,
                  !value      ? LaunchSampler::Kind::kLocal
                  : is_buffer ? LaunchSampler::Kind::kBuffer
                              : LaunchSampler::Kind::kValue);
}

namespace {

// Whether the launch that the calling thread timed last is the one before this in the queue.
bool follows_timed(const Queue& queue, uint32_t number) {
  thread_local const Queue* last_queue = nullptr;
  thread_local uint32_t last_number = 0;
  const bool follows = last_queue == &queue && last_number + 1 == number;
  last_queue = &queue, last_number = number;
  return follows;
}

}  // namespace

uint32_t enqueue_kernel(Queue& queue, cl_kernel kernel, const std::string& name, const Range& range,
                        cl_event* end) {
  Command command(queue, CommandKind::kKernel, name.c_str());
  command.set_range(range);
  cl_event* const logged = command.event();
  const cl_int status =
      api().clEnqueueNDRangeKernel(command.queue(), kernel, range.dims, nullptr, range.global, range.local, 0,
                                   nullptr, logged ? logged : end);
  if (status != CL_SUCCESS) [[unlikely]]
    throw_error(status, "clEnqueueNDRangeKernel", "kernel " + name + " on " + queue.device->name);
  const uint32_t number = queue.launches.fetch_add(1, std::memory_order_relaxed);
  queue.recent[number % queue.recent.size()].store(name.c_str(), std::memory_order_relaxed);
  if (queue.device->flush_needed && number % kFlushEvery == 0) DLB_CL(clFlush, command.queue());
  return number;
}

void Kernel::enqueue(Queue& queue, const Range& range) {
  const bool noted = sampler_ && sampler_->launch(range);
  if (noted) [[unlikely]]
    ask_for_improvement(*program_);
  cl_event end = nullptr;
  const uint32_t number =
      enqueue_kernel(queue, handle_.load(std::memory_order_relaxed), name_, range, sampler_ ? &end : nullptr);
  if (end) [[unlikely]]
    sampler_->time(end,
                   follows_timed(queue, number) && !noted);  // the first launch, which is noted, compiles
  const uint64_t launch = g_counters.launches.fetch_add(1, std::memory_order_relaxed);
  if (program_) program_->used.store(launch, std::memory_order_relaxed);
}

cl_kernel Kernel::duplicate() {
  const std::unique_lock<std::mutex> lock = lock_made();
  cl_program program = nullptr;
  DLB_CL(clGetKernelInfo, handle_.load(std::memory_order_relaxed), CL_KERNEL_PROGRAM, sizeof(cl_program),
         &program, nullptr);
  cl_int status = CL_SUCCESS;
  const cl_kernel made = api().clCreateKernel(program, name_.c_str(), &status);
  if (status != CL_SUCCESS) throw_error(status, "clCreateKernel", "kernel " + name_);
  return made;
}

void pass_milestone(Queue& queue) {
  cl_event marker = nullptr;
  const cl_command_queue handle = queue.handle;
  DLB_CL(clEnqueueMarkerWithWaitList, handle, 0, nullptr, &marker);
  DLB_CL(clFlush, handle);
  const cl_event previous = queue.milestone.exchange(marker);
  if (!previous) return;
  const cl_int status = api().clWaitForEvents(1, &previous);
  api().clReleaseEvent(previous);
  if (status != CL_SUCCESS)
    throw_error(
        status, "clWaitForEvents",
        queue.device->name +
            ", reported late: it belongs to one of the last kernels, oldest first: " + recent_kernels(queue));
}

std::string recent_kernels(const Queue& queue) {
  std::string names;
  const uint32_t size = static_cast<uint32_t>(queue.recent.size());
  const uint32_t end = queue.launches.load(), count = std::min(end, size);
  for (uint32_t i = end - count; i != end; ++i)
    if (const char* name = queue.recent[i % size].load())
      names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

}  // namespace dlb::cl
