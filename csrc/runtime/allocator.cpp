// Caching allocator in the manner of PyTorch's CUDA one: blocks are split from and merged into segments,
// freed blocks are reused at once by the stream that owned them because queues are in order.
#include "runtime/allocator.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <sstream>
#include <vector>

#include "cl/program.h"
#include "cl/rounding.h"
#include "runtime/event.h"
#include "runtime/stream.h"

namespace dlb {
namespace {

using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

constexpr size_t kRound = 512;              // every block's size and offset; also NVIDIA's buffer alignment
constexpr size_t kSmallLimit = 1ull << 20;  // requests up to this come from small segments
constexpr size_t kSmallSegment = 2ull << 20;
constexpr size_t kLargeRound = 2ull << 20;
// Large segments hold many tensors: a multi-tensor kernel takes the segments as arguments, so few are better.
// A larger request gets a segment of its own size.
constexpr size_t kLargeSegment = 64ull << 20;

struct Block;

struct Segment {
  cl_mem mem = nullptr;
  char* base = nullptr;  // of the reserved addresses
  size_t size = 0;
  c10::DeviceIndex device = 0;
  Block* first = nullptr;
};

struct Block {
  Segment* segment = nullptr;
  char* pointer = nullptr;
  size_t size = 0;
  size_t requested = 0;
  c10::StreamId stream = 0;
  bool small = false;
  bool allocated = false;
  int pending_events = 0;
  Block* previous = nullptr;  // neighbours in the segment
  Block* next = nullptr;
  std::vector<c10::StreamId> other_streams;  // record_stream
  std::shared_ptr<void> attached;
};

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->size != b->size) return a->size < b->size;
    return a->pointer < b->pointer;
  }
};
using Pool = std::set<Block*, BySize>;

// All segments of all devices by address, for pointers whose owner is not known.
struct SegmentMap {
  std::shared_mutex mutex;
  std::map<const char*, Segment*> by_base;
  static SegmentMap& instance() {
    static auto* map = new SegmentMap;
    return *map;
  }
  Segment* find(const void* pointer) {
    std::shared_lock<std::shared_mutex> lock(mutex);
    auto it = by_base.upper_bound(static_cast<const char*>(pointer));
    if (it == by_base.begin()) return nullptr;
    Segment* segment = std::prev(it)->second;
    return pointer < segment->base + segment->size ? segment : nullptr;
  }
};

std::string gigabytes(size_t bytes) {
  std::ostringstream text;
  text.precision(2);
  text << std::fixed << static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0) << " GiB";
  return text.str();
}

constexpr size_t kAggregate = static_cast<size_t>(StatType::AGGREGATE);

template <class Stats>
void increase(Stats& stats, bool small, size_t amount) {
  stats[kAggregate].increase(amount);
  stats[static_cast<size_t>(small ? StatType::SMALL_POOL : StatType::LARGE_POOL)].increase(amount);
}
template <class Stats>
void decrease(Stats& stats, bool small, size_t amount) {
  stats[kAggregate].decrease(amount);
  stats[static_cast<size_t>(small ? StatType::SMALL_POOL : StatType::LARGE_POOL)].decrease(amount);
}

std::atomic<bool> g_memory_reports{false};

class DeviceCache {
 public:
  explicit DeviceCache(c10::DeviceIndex index) : device_(device_of(index)), index_(index) {}

  Block* allocate(size_t requested, c10::StreamId stream) {
    const size_t size = round_up(std::max<size_t>(requested, 1), kRound);
    std::unique_lock<std::mutex> lock(mutex_);
    if (!pending_.empty()) process_events(false);
    Block* block = find(size, stream);
    if (!block) block = make_segment(size, stream);
    if (!block) {  // give back what is cached and try once more
      stats_.num_alloc_retries++;
      process_events(true);
      release_cached();
      synchronize_device(index_);  // the driver keeps what was released until the commands that use it end
      block = make_segment(size, stream);
    }
    if (!block) {
      stats_.num_ooms++;
      throw_out_of_memory(size);
    }
    split(block, size);
    block->allocated = true;
    block->requested = requested;
    increase(stats_.allocation, block->small, 1);
    increase(stats_.allocated_bytes, block->small, block->size);
    increase(stats_.requested_bytes, block->small, requested);
    increase(stats_.active, block->small, 1);
    increase(stats_.active_bytes, block->small, block->size);
    report_to_profiler(block, static_cast<int64_t>(block->size));
    return block;
  }

  void set_limit(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    limit_ = bytes;
  }

  void free(Block* block) {
    std::shared_ptr<void> attached;  // may own blocks: let go of when the lock is
    std::lock_guard<std::mutex> lock(mutex_);
    attached.swap(block->attached);
    block->allocated = false;
    decrease(stats_.allocation, block->small, 1);
    decrease(stats_.allocated_bytes, block->small, block->size);
    decrease(stats_.requested_bytes, block->small, block->requested);
    report_to_profiler(block, -static_cast<int64_t>(block->size));
    if (!block->other_streams.empty() && !cl::in_bad_fork()) {
      for (c10::StreamId id : std::exchange(block->other_streams, {})) {
        pending_.emplace_back(Event::record_new(stream_of(index_, id)), block);
        block->pending_events++;
      }
      return;
    }
    deactivate(block);
  }

  std::shared_ptr<void> attached(Block* block, std::shared_ptr<void> (*make)()) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!block->attached) block->attached = make();
    return block->attached;
  }

  void record_stream(Block* block, c10::StreamId stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& others = block->other_streams;
    if (stream != block->stream && std::find(others.begin(), others.end(), stream) == others.end())
      others.push_back(stream);
  }

  void empty_cache() {
    synchronize_device(index_);
    std::lock_guard<std::mutex> lock(mutex_);
    process_events(true);
    release_cached();
  }

  DeviceStats stats() {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

  template <class F>
  void change_stats(F&& change) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* array : {&stats_.allocation, &stats_.segment, &stats_.active, &stats_.inactive_split,
                        &stats_.allocated_bytes, &stats_.reserved_bytes, &stats_.active_bytes,
                        &stats_.inactive_split_bytes, &stats_.requested_bytes})
      for (auto& stat : *array) change(stat);
  }
  void reset_counts() {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.num_alloc_retries = stats_.num_ooms = 0;
  }

  std::pair<size_t, size_t> memory_info() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {device_.global_mem - std::min<size_t>(device_.global_mem, reserved_), device_.global_mem};
  }

 private:
  Pool& pool_of(const Block* block) { return block->small ? small_ : large_; }

  Block* find(size_t size, c10::StreamId stream) {
    const bool small = size <= kSmallLimit;
    Pool& pool = small ? small_ : large_;
    Block key;
    key.size = size;
    key.stream = stream;
    auto it = pool.lower_bound(&key);
    if (it == pool.end() || (*it)->stream != stream) return nullptr;
    Block* block = *it;
    pool.erase(it);
    if (block->previous || block->next) {
      decrease(stats_.inactive_split, block->small, 1);
      decrease(stats_.inactive_split_bytes, block->small, block->size);
    }
    return block;
  }

  Block* make_segment(size_t size, c10::StreamId stream) {
    const bool small = size <= kSmallLimit;
    size_t bytes = small ? kSmallSegment : std::max(kLargeSegment, round_up(size, kLargeRound));
    const size_t left = limit_ - std::min(limit_, reserved_);
    if (size > left) return nullptr;
    bytes = std::max(size, std::min<size_t>({bytes, device_.max_alloc, left}));
    cl_mem mem = create_buffer(bytes);
    if (!mem && bytes > size) mem = create_buffer(bytes = size);
    if (!mem) return nullptr;
    void* base = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      cl::api().clReleaseMemObject(mem);
      return nullptr;
    }
    auto* segment = new Segment{mem, static_cast<char*>(base), bytes, index_, nullptr};
    auto* block = new Block;
    block->segment = segment;
    block->pointer = segment->base;
    block->size = bytes;
    block->stream = stream;
    block->small = small;
    segment->first = block;
    {
      std::unique_lock<std::shared_mutex> lock(SegmentMap::instance().mutex);
      SegmentMap::instance().by_base[segment->base] = segment;
    }
    reserved_ += bytes;
    stats_.num_device_alloc++;
    increase(stats_.segment, small, 1);
    increase(stats_.reserved_bytes, small, bytes);
    return block;
  }

  cl_mem create_buffer(size_t bytes) {
    if (bytes > device_.max_alloc || reserved_ + bytes > device_.global_mem) return nullptr;
    cl_int status = CL_SUCCESS;
    cl_mem mem = cl::api().clCreateBuffer(device_.context(), CL_MEM_READ_WRITE, bytes, nullptr, &status);
    if (status != CL_SUCCESS) return nullptr;
    // Drivers allocate on first use: touching one byte now makes a failure surface here and not in a kernel.
    const unsigned char zero = 0;
    Stream& stream = current_stream(index_);
    const cl::Command command(stream.use());
    if (cl::api().clEnqueueFillBuffer(command.queue(), mem, &zero, 1, 0, 1, 0, nullptr, nullptr) ==
        CL_SUCCESS)
      return mem;
    cl::api().clReleaseMemObject(mem);
    return nullptr;
  }

  void split(Block* block, size_t size) {
    const size_t rest = block->size - size;
    if (block->small ? rest < kRound : rest <= kSmallLimit) return;
    auto* remaining = new Block;
    remaining->segment = block->segment;
    remaining->pointer = block->pointer + size;
    remaining->size = rest;
    remaining->stream = block->stream;
    remaining->small = block->small;
    remaining->previous = block;
    remaining->next = block->next;
    if (block->next) block->next->previous = remaining;
    block->next = remaining;
    block->size = size;
    insert_free(remaining);
  }

  void insert_free(Block* block) {
    pool_of(block).insert(block);
    if (block->previous || block->next) {
      increase(stats_.inactive_split, block->small, 1);
      increase(stats_.inactive_split_bytes, block->small, block->size);
    }
  }

  void remove_free(Block* block) {
    pool_of(block).erase(block);
    if (block->previous || block->next) {
      decrease(stats_.inactive_split, block->small, 1);
      decrease(stats_.inactive_split_bytes, block->small, block->size);
    }
  }

  static bool is_free(const Block* block) { return block && !block->allocated && block->pending_events == 0; }

  void deactivate(Block* block) {
    decrease(stats_.active, block->small, 1);
    decrease(stats_.active_bytes, block->small, block->size);
    if (is_free(block->next)) {
      Block* next = block->next;
      remove_free(next);
      block->size += next->size;
      block->next = next->next;
      if (next->next) next->next->previous = block;
      delete next;
    }
    if (is_free(block->previous)) {
      Block* previous = block->previous;
      remove_free(previous);
      previous->size += block->size;
      previous->next = block->next;
      if (block->next) block->next->previous = previous;
      delete block;
      block = previous;
    }
    insert_free(block);
  }

  void process_events(bool wait) {
    for (auto it = pending_.begin(); it != pending_.end();) {
      if (wait) it->first->synchronize();
      if (!it->first->query()) {
        ++it;
        continue;
      }
      Block* block = it->second;
      it = pending_.erase(it);
      if (--block->pending_events == 0) deactivate(block);
    }
  }

  void release_cached() {
    for (Pool* pool : {&small_, &large_})
      for (auto it = pool->begin(); it != pool->end();) {
        Block* block = *it;
        if (block->previous || block->next) {
          ++it;
          continue;
        }
        it = pool->erase(it);
        release(block);
      }
  }

  // OpenCL keeps a released buffer until the commands that use it are done.
  void release(Block* block) {
    Segment* segment = block->segment;
    {
      std::unique_lock<std::shared_mutex> lock(SegmentMap::instance().mutex);
      SegmentMap::instance().by_base.erase(segment->base);
    }
    cl::api().clReleaseMemObject(segment->mem);
    cl::forget_buffer_arguments();
    ::munmap(segment->base, segment->size);
    reserved_ -= segment->size;
    stats_.num_device_free++;
    decrease(stats_.segment, block->small, 1);
    decrease(stats_.reserved_bytes, block->small, segment->size);
    delete segment;
    delete block;
  }

  size_t allocated() const { return static_cast<size_t>(stats_.allocated_bytes[kAggregate].current); }
  void report_to_profiler(const Block* block, int64_t change) const {
    if (!g_memory_reports.load(std::memory_order_relaxed)) [[likely]]
      return;
    c10::reportMemoryUsageToProfiler(block->pointer, change, allocated(), reserved_, {kDeviceType, index_});
  }

  [[noreturn]] void throw_out_of_memory(size_t size) {
    const size_t allocated = this->allocated();
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(size), allocated, reserved_, {kDeviceType, index_});
    const bool too_large = size > device_.max_alloc;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "ocl out of memory. Tried to allocate ", gigabytes(size),
        " on ocl:", static_cast<int>(index_), " (", device_.name, "), which has ",
        gigabytes(device_.global_mem), " in all; ", gigabytes(allocated), " are allocated by PyTorch and ",
        gigabytes(reserved_ - std::min(reserved_, allocated)), " reserved but unallocated.",
        limit_ < device_.global_mem ? " This process may take " + gigabytes(limit_) + "." : std::string(),
        too_large ? " One buffer on this device can hold at most " + gigabytes(device_.max_alloc) +
                        ": split the tensor."
                  : std::string(" Use a smaller batch, free tensors, or call torch.ocl.empty_cache()."));
  }

  cl::Device& device_;
  const c10::DeviceIndex index_;
  std::mutex mutex_;
  Pool small_, large_;
  std::vector<std::pair<std::shared_ptr<Event>, Block*>> pending_;
  size_t reserved_ = 0;
  size_t limit_ = std::numeric_limits<size_t>::max();
  DeviceStats stats_{};
};

DeviceCache& cache_of(c10::DeviceIndex device) {
  static std::array<std::atomic<DeviceCache*>, cl::kDeviceIndices> caches{};
  static std::mutex mutex;
  if (device < 0) device = current_device();
  auto& slot = caches[static_cast<size_t>(device)];
  if (DeviceCache* cache = slot.load(std::memory_order_acquire)) [[likely]]
    return *cache;
  device_of(device);
  std::lock_guard<std::mutex> lock(mutex);
  if (!slot.load(std::memory_order_acquire)) slot.store(new DeviceCache(device), std::memory_order_release);
  return *slot.load(std::memory_order_acquire);
}

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  cache_of(block->segment->device).free(block);
}

class OclAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return allocate_bytes(bytes, current_device()); }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }  // a block is not found by its pointer alone

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    if (bytes == 0 || cl::Recording::current()) return;
    const MemRef to = resolve(destination), from = resolve(source);
    Stream& stream = current_stream(device_of_pointer(destination));
    cl::Command command(stream.use(), cl::CommandKind::kCopy, "Memcpy DtoD", bytes);
    DLB_CL(clEnqueueCopyBuffer, command.queue(), from.mem, to.mem, from.offset, to.offset, bytes, 0, nullptr,
           command.event());
  }

  bool initialized() override { return cl::device_count() > 0; }

  void emptyCache(c10::MempoolId_t) override {
    for (int i = 0; i < cl::device_count(); ++i) cache_of(static_cast<c10::DeviceIndex>(i)).empty_cache();
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get_deleter() != &free_block) return;
    auto* block = static_cast<Block*>(data.get_context());
    cache_of(block->segment->device).record_stream(block, stream.id());
  }

  DeviceStats getDeviceStats(c10::DeviceIndex device) override { return cache_of(device).stats(); }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    cache_of(device).change_stats([](auto& stat) { stat.reset_accumulated(); });
    cache_of(device).reset_counts();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    cache_of(device).change_stats([](auto& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return cache_of(device).memory_info();
  }
};

OclAllocator g_allocator;

}  // namespace

c10::DeviceAllocator* allocator() {
  return &g_allocator;
}

c10::DataPtr allocate_bytes(size_t bytes, c10::DeviceIndex device) {
  if (device < 0) device = current_device();
  const c10::Device where(kDeviceType, device);
  if (bytes == 0) {
    device_of(device);  // no memory, but the device must exist
    return {nullptr, nullptr, &c10::detail::deleteNothing, where};
  }
  Block* block = cache_of(device).allocate(bytes, current_stream(device).id());
  return {block->pointer, block, &free_block, where};
}

std::shared_ptr<void> attached(const c10::DataPtr& data, std::shared_ptr<void> (*make)()) {
  if (data.get_deleter() != &free_block) return nullptr;
  auto* block = static_cast<Block*>(data.get_context());
  return cache_of(block->segment->device).attached(block, make);
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  const size_t kept = std::min(bytes, storage.nbytes());
  c10::DataPtr fresh = allocate_bytes(bytes, storage.device().index());
  if (kept > 0) g_allocator.copy_data(fresh.get(), storage.data(), kept);
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(bytes);
}

MemRef resolve(const c10::DataPtr& data, const void* pointer) {
  if (data.get_deleter() != &free_block) [[unlikely]] {
    // Ops that take no TensorIterator meet tensors of other devices here. Theirs is not known, unless there
    // is one.
    TORCH_CHECK(data.device().type() == kDeviceType,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                c10::Device(kDeviceType, cl::device_count() == 1 ? 0 : -1), " and ", data.device(), "!");
    return resolve(pointer);
  }
  const Segment* segment = static_cast<const Block*>(data.get_context())->segment;
  return {segment->mem, static_cast<uint64_t>(static_cast<const char*>(pointer) - segment->base)};
}

MemRef resolve(const void* pointer) {
  const Segment* segment = SegmentMap::instance().find(pointer);
  TORCH_CHECK(segment, "a data pointer on ocl does not belong to any live allocation of the device");
  return {segment->mem, static_cast<uint64_t>(static_cast<const char*>(pointer) - segment->base)};
}

void limit_memory(c10::DeviceIndex device, double fraction) {
  const auto all = static_cast<double>(device_of(device).global_mem);
  cache_of(device).set_limit(static_cast<size_t>(all * fraction));
}

void start_memory_reports() noexcept {
  g_memory_reports = true;
}

c10::DeviceIndex device_of_pointer(const void* pointer) {
  const Segment* segment = SegmentMap::instance().find(pointer);
  TORCH_CHECK(segment, "the pointer does not belong to any live allocation on ocl");
  return segment->device;
}

REGISTER_ALLOCATOR(kDeviceType, &g_allocator)

}  // namespace dlb
