// CL_MEM_ALLOC_HOST_PTR buffers under PyTorch's CachingHostAllocatorImpl.
#include "runtime/host_allocator.h"

#include <c10/core/Event.h>

#include <map>
#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "runtime/stream.h"

namespace dlb {
namespace {

struct PinnedRange {
  size_t size;
  cl_mem mem;
  Stream* stream;
};

struct PinnedRanges {
  std::shared_mutex mutex;
  std::map<const char*, PinnedRange> by_base;
  static PinnedRanges& instance() {
    static auto* ranges = new PinnedRanges;
    return *ranges;
  }
};

// The queue of a device on which memory is mapped and unmapped. Mapping waits for what is before it in its
// queue, which on the program's streams is all that was launched.
Stream& mapping_stream(cl::Device& device) {
  static std::mutex mutex;
  static auto* streams = new std::unordered_map<cl::Device*, std::unique_ptr<Stream>>;
  std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Stream>& stream = (*streams)[&device];
  if (!stream) stream = std::make_unique<Stream>(device, Stream::kInternal);
  return *stream;
}

using Base = at::CachingHostAllocatorImpl<c10::Stream, c10::Event>;
using HostBlock = at::HostBlock<c10::Stream>;

struct PinnedImpl final : Base {
 private:
  void allocate_host_memory(size_t size, void** pointer) override {
    Stream& stream = mapping_stream(current_stream().device());
    cl_int status = map_new(stream, size, pointer);
    if (status != CL_SUCCESS) {
      // Gives the driver back what is cached, waits for the copies that use it, and tries once more.
      wait_for_device(-1);
      empty_cache();
      stream.wait();  // unmapping is a command
      status = map_new(stream, size, pointer);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, status == CL_SUCCESS, "could not allocate ", size,
                     " bytes of page-locked host memory (", cl::status_name(status), "): pin less memory");
  }

  static cl_int map_new(Stream& stream, size_t size, void** pointer) {
    cl_int status = CL_SUCCESS;
    cl_mem mem = cl::api().clCreateBuffer(stream.device().context(),
                                          CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, size, nullptr, &status);
    if (status != CL_SUCCESS) return status;
    *pointer = cl::api().clEnqueueMapBuffer(stream.handle(), mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                            size, 0, nullptr, nullptr, &status);
    if (status != CL_SUCCESS) {
      cl::api().clReleaseMemObject(mem);
      return status;
    }
    PinnedRanges& ranges = PinnedRanges::instance();
    std::unique_lock<std::shared_mutex> lock(ranges.mutex);
    ranges.by_base[static_cast<const char*>(*pointer)] = {size, mem, &stream};
    return CL_SUCCESS;
  }

  // A forked child drops the parent's memory without a word to the driver, which did not survive the fork.
  void free_block(HostBlock* block) override {
    if (cl::in_bad_fork()) return;
    PinnedRanges& ranges = PinnedRanges::instance();
    PinnedRange range{};
    {
      std::unique_lock<std::shared_mutex> lock(ranges.mutex);
      auto it = ranges.by_base.find(static_cast<const char*>(block->ptr_));
      if (it == ranges.by_base.end()) return;
      range = it->second;
      ranges.by_base.erase(it);
    }
    cl::api().clEnqueueUnmapMemObject(range.stream->handle(), range.mem, block->ptr_, 0, nullptr, nullptr);
    cl::api().clReleaseMemObject(range.mem);
  }

  void record_stream(std::optional<std::vector<c10::Event>>& events, c10::Stream stream) override {
    if (cl::in_bad_fork()) return;
    c10::Event event(kDeviceType);
    event.record(stream);
    events->push_back(std::move(event));
  }
  bool query_event(c10::Event& event) override { return !cl::in_bad_fork() && event.query(); }
  c10::Stream get_current_stream() const override { return current_stream().unwrap(); }
  bool stream_is_capturing(c10::Stream stream) const override { return stream_of(stream).graph() != nullptr; }
};

void free_pinned(void* context);

struct PinnedAllocator final : at::CachingHostAllocatorInterface<PinnedImpl, free_pinned> {};

PinnedAllocator& instance() {
  static auto* allocator = new PinnedAllocator;
  return *allocator;
}

void free_pinned(void* context) {
  instance().free(context);
}

}  // namespace

at::HostAllocator* host_allocator() {
  return &instance();
}

bool is_pinned(const void* pointer) {
  PinnedRanges& ranges = PinnedRanges::instance();
  std::shared_lock<std::shared_mutex> lock(ranges.mutex);
  auto it = ranges.by_base.upper_bound(static_cast<const char*>(pointer));
  if (it == ranges.by_base.begin()) return false;
  --it;
  return static_cast<const char*>(pointer) < it->first + it->second.size;
}

REGISTER_HOST_ALLOCATOR(at::kPrivateUse1, &instance())

}  // namespace dlb
