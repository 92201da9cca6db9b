// Splitting, merging, reusing and releasing the blocks of a device.
#include "runtime/device_cache.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>

#include "cl/log.h"
#include "cl/rounding.h"
#include "runtime/stream.h"

namespace dlb {
namespace {

using c10::CachingAllocator::StatType;

constexpr size_t kRound = 512;  // sizes and offsets of blocks are multiples of it, as NVIDIA aligns buffers
constexpr size_t kSmallLimit = 1ull << 20;  // requests up to this come from small segments
constexpr size_t kSmallSegment = 2ull << 20;
constexpr size_t kLargeRound = 2ull << 20;
// Large segments hold many tensors: a multi-tensor kernel takes the segments as arguments, so few are better.
// A larger request gets a segment of its own size.
constexpr size_t kLargeSegment = 64ull << 20;

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

// Makes one block of this one and the next in memory, neither of which is in a pool.
void absorb_next(Block* block) {
  Block* next = block->next;
  block->size += next->size;
  block->next = next->next;
  if (next->next) next->next->previous = block;
  delete next;
}

bool is_free(const Block* block) {
  return block && !block->allocated && block->pending_events == 0;
}

}  // namespace

DeviceCache::DeviceCache(c10::DeviceIndex index) : device_(device_of(index)), index_(index) {}

size_t DeviceCache::allocated() const {
  return static_cast<size_t>(stats_.allocated_bytes[kAggregate].current);
}

Block* DeviceCache::allocate(size_t requested, c10::StreamId stream, uint64_t pool) {
  const size_t size = round_up(std::max<size_t>(requested, 1), kRound);
  std::unique_lock<std::mutex> lock(mutex_);
  if (!pending_.empty()) process_events(false);
  Block* block = find(size, stream, pool);
  if (!block) block = make_segment(size, stream, pool);
  if (!block) {  // the driver may give memory once it has back what is cached
    stats_.num_alloc_retries++;
    process_events(true);
    release_cached([](const Block*) { return true; });
    wait_for_device(index_);  // the driver keeps what was released until the commands that use it end
    block = make_segment(size, stream, pool);
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

void DeviceCache::set_limit(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  limit_ = bytes;
}

void DeviceCache::free(Block* block) {
  std::shared_ptr<void> attached;  // may own blocks, so it is released after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  attached.swap(block->attached);
  block->allocated = false;
  decrease(stats_.allocation, block->small, 1);
  decrease(stats_.allocated_bytes, block->small, block->size);
  decrease(stats_.requested_bytes, block->small, block->requested);
  report_to_profiler(block, -static_cast<int64_t>(block->size));
  if (!block->other_streams.empty() && !cl::in_bad_fork()) {
    for (c10::StreamId id : std::exchange(block->other_streams, {})) {
      if (stream_of(index_, id).graph()) continue;  // nothing runs there now
      block->pending_events++;
      try {
        pending_.emplace_back(Event::record_new(stream_of(index_, id)), block);
      } catch (...) {  // deleters must not throw; without its event the block is never used again
        cl::log_dropped("freeing memory that another stream uses");
      }
    }
    if (block->pending_events > 0) return;
  }
  deactivate(block);
}

std::shared_ptr<void> DeviceCache::attached(Block* block, std::shared_ptr<void> (*make)()) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!block->attached) block->attached = make();
  return block->attached;
}

void DeviceCache::record_stream(Block* block, c10::StreamId stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& others = block->other_streams;
  if (stream != block->stream && std::find(others.begin(), others.end(), stream) == others.end())
    others.push_back(stream);
}

void DeviceCache::empty_cache() {
  synchronize_device(index_);
  std::lock_guard<std::mutex> lock(mutex_);
  process_events(true);
  release_cached([](const Block*) { return true; });
}

DeviceCache::DeviceStats DeviceCache::stats() {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

void DeviceCache::reset_counts() {
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.num_alloc_retries = stats_.num_ooms = 0;
}

std::pair<size_t, size_t> DeviceCache::memory_info() {
  std::lock_guard<std::mutex> lock(mutex_);
  return {device_.global_mem - std::min<size_t>(device_.global_mem, reserved_), device_.global_mem};
}

Block* DeviceCache::find(size_t size, c10::StreamId stream, uint64_t pool) {
  const bool small = size <= kSmallLimit;
  Pool& blocks = small ? small_ : large_;
  Block key;
  key.size = size;
  key.stream = stream;
  key.pool = pool;
  auto it = blocks.lower_bound(&key);
  if (it == blocks.end() || (*it)->stream != stream || (*it)->pool != pool) return nullptr;
  Block* block = *it;
  blocks.erase(it);
  if (block->previous || block->next) {
    decrease(stats_.inactive_split, block->small, 1);
    decrease(stats_.inactive_split_bytes, block->small, block->size);
  }
  return block;
}

Block* DeviceCache::make_segment(size_t size, c10::StreamId stream, uint64_t pool) {
  const bool small = size <= kSmallLimit;
  size_t bytes = small ? kSmallSegment : std::max(kLargeSegment, round_up(size, kLargeRound));
  const size_t left = limit_ - std::min(limit_, reserved_);
  if (size > left) return nullptr;
  bytes = std::max(size, std::min<size_t>({bytes, device_.max_alloc, left}));
  cl_mem mem = create_buffer(bytes);
  if (!mem && bytes > size) mem = create_buffer(bytes = size);
  if (!mem) return nullptr;
  Segment* segment = map_segment(mem, bytes, index_);
  if (!segment) return nullptr;
  auto* block = new Block;
  block->segment = segment;
  block->pointer = segment->base;
  block->size = bytes;
  block->stream = stream;
  block->pool = pool;
  block->small = small;
  reserved_ += bytes;
  stats_.num_device_alloc++;
  increase(stats_.segment, small, 1);
  increase(stats_.reserved_bytes, small, bytes);
  return block;
}

cl_mem DeviceCache::create_buffer(size_t bytes) {
  if (bytes > device_.max_alloc || reserved_ + bytes > device_.global_mem) return nullptr;
  cl_int status = CL_SUCCESS;
  cl_mem mem = cl::api().clCreateBuffer(device_.context(), CL_MEM_READ_WRITE, bytes, nullptr, &status);
  if (status != CL_SUCCESS) return nullptr;
  // Drivers allocate on first use: touching one byte now makes a failure surface here and not in a kernel. On
  // the program's streams that would have to wait for launches that wait for programs.
  if (!own_stream_) own_stream_ = new Stream(device_, Stream::kInternal);
  const unsigned char zero = 0;
  const cl_command_queue queue = own_stream_->handle();
  if (cl::api().clEnqueueFillBuffer(queue, mem, &zero, 1, 0, 1, 0, nullptr, nullptr) == CL_SUCCESS &&
      cl::api().clFinish(queue) == CL_SUCCESS)
    return mem;
  cl::api().clReleaseMemObject(mem);
  return nullptr;
}

void DeviceCache::split(Block* block, size_t size) {
  const size_t rest = block->size - size;
  if (block->small ? rest < kRound : rest <= kSmallLimit) return;
  auto* remaining = new Block;
  remaining->segment = block->segment;
  remaining->pointer = block->pointer + size;
  remaining->size = rest;
  remaining->stream = block->stream;
  remaining->pool = block->pool;
  remaining->small = block->small;
  remaining->previous = block;
  remaining->next = block->next;
  if (block->next) block->next->previous = remaining;
  block->next = remaining;
  block->size = size;
  insert_free(remaining);
}

void DeviceCache::insert_free(Block* block) {
  pool_of(block).insert(block);
  if (block->previous || block->next) {
    increase(stats_.inactive_split, block->small, 1);
    increase(stats_.inactive_split_bytes, block->small, block->size);
  }
}

void DeviceCache::remove_free(Block* block) {
  pool_of(block).erase(block);
  if (block->previous || block->next) {
    decrease(stats_.inactive_split, block->small, 1);
    decrease(stats_.inactive_split_bytes, block->small, block->size);
  }
}

void DeviceCache::deactivate(Block* block) {
  decrease(stats_.active, block->small, 1);
  decrease(stats_.active_bytes, block->small, block->size);
  if (is_free(block->next)) {
    remove_free(block->next);
    absorb_next(block);
  }
  if (is_free(block->previous)) {
    block = block->previous;
    remove_free(block);
    absorb_next(block);
  }
  const bool whole = !block->previous && !block->next;
  if (whole && block->pool != 0 && !is_kept(block)) return release(block);
  insert_free(block);
}

void DeviceCache::keep_pool(uint64_t pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  pools_[pool]++;
}

void DeviceCache::give_up_pool(uint64_t pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--pools_[pool] > 0) return;
  pools_.erase(pool);
  release_cached([&](const Block* block) { return block->pool == pool; });
}

void DeviceCache::process_events(bool wait) {
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

template <class Wanted>
void DeviceCache::release_cached(Wanted wanted) {
  for (Pool* pool : {&small_, &large_})
    for (auto it = pool->begin(); it != pool->end();) {
      Block* block = *it;
      if (block->previous || block->next || is_kept(block) || !wanted(block)) {
        ++it;
        continue;
      }
      it = pool->erase(it);
      release(block);
    }
}

void DeviceCache::release(Block* block) {
  Segment* segment = block->segment;
  reserved_ -= segment->size;
  stats_.num_device_free++;
  decrease(stats_.segment, block->small, 1);
  decrease(stats_.reserved_bytes, block->small, segment->size);
  unmap_segment(segment);
  delete block;
}

void DeviceCache::report_to_profiler(const Block* block, int64_t change) const {
  if (!g_memory_reports.load(std::memory_order_relaxed)) [[likely]]
    return;
  c10::reportMemoryUsageToProfiler(block->pointer, change, allocated(), reserved_, {kDeviceType, index_});
}

void DeviceCache::throw_out_of_memory(size_t size) {
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

}  // namespace dlb
