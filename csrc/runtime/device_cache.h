// The blocks of one device's memory, in the manner of PyTorch's CUDA allocator: blocks are split from and
// merged into segments, and a freed block is reused at once by the stream that owned it, because queues are
// in order.
#pragma once
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cl/device.h"
#include "runtime/address_map.h"
#include "runtime/event.h"

namespace dlb {

struct Block {
  Segment* segment = nullptr;
  char* pointer = nullptr;
  size_t size = 0;       // bytes
  size_t requested = 0;  // bytes that the caller asked for
  c10::StreamId stream = 0;
  uint64_t pool = 0;  // 0: none of a graph
  bool small = false;
  bool allocated = false;
  int pending_events = 0;
  Block* previous = nullptr;  // neighbours in the segment
  Block* next = nullptr;
  std::vector<c10::StreamId> other_streams;  // that record_stream() named
  std::shared_ptr<void> attached;
};

// Thread-safe.
class DeviceCache {
 public:
  using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

  explicit DeviceCache(c10::DeviceIndex index);

  // A block of at least so many bytes for that stream. Where none is free and the driver gives none, releases
  // what is cached, waits for the device and tries again; then throws c10::OutOfMemoryError.
  // The memory of a graph's pool is given to that pool alone.
  Block* allocate(size_t requested, c10::StreamId stream, uint64_t pool = 0);

  // A graph keeps the memory of a pool until it gives it up. When no graph does any more, what is free of it
  // is released, and the rest when it is freed.
  void keep_pool(uint64_t pool);
  void give_up_pool(uint64_t pool);

  // Gives a block back. It is not given out again before the other streams that used it have done the work
  // they have now.
  void free(Block* block);

  // An object that lives until the block is freed. The first call makes it.
  std::shared_ptr<void> attached(Block* block, std::shared_ptr<void> (*make)());

  // Notes that another stream uses the block.
  void record_stream(Block* block, c10::StreamId stream);

  // Waits for the device and releases the segments of which nothing is in use.
  void empty_cache();

  // Sets how many bytes may be taken from the driver. Memory that is held already stays.
  void set_limit(size_t bytes);

  DeviceStats stats();
  void reset_counts();
  // Calls change(stat) for every statistic.
  template <class F>
  void change_stats(F&& change) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* array : {&stats_.allocation, &stats_.segment, &stats_.active, &stats_.inactive_split,
                        &stats_.allocated_bytes, &stats_.reserved_bytes, &stats_.active_bytes,
                        &stats_.inactive_split_bytes, &stats_.requested_bytes})
      for (auto& stat : *array) change(stat);
  }
  // Bytes free and bytes in all.
  std::pair<size_t, size_t> memory_info();

 private:
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      if (a->pool != b->pool) return a->pool < b->pool;
      if (a->stream != b->stream) return a->stream < b->stream;
      if (a->size != b->size) return a->size < b->size;
      return a->pointer < b->pointer;
    }
  };
  using Pool = std::set<Block*, BySize>;

  Pool& pool_of(const Block* block) { return block->small ? small_ : large_; }
  bool is_kept(const Block* block) const { return block->pool != 0 && pools_.contains(block->pool); }
  Block* find(size_t size, c10::StreamId stream, uint64_t pool);
  Block* make_segment(size_t size, c10::StreamId stream, uint64_t pool);
  cl_mem create_buffer(size_t bytes);
  void split(Block* block, size_t size);
  void insert_free(Block* block);
  void remove_free(Block* block);
  void deactivate(Block* block);
  void process_events(bool wait);
  template <class Wanted>
  void release_cached(Wanted wanted);
  void release(Block* block);
  size_t allocated() const;
  void report_to_profiler(const Block* block, int64_t change) const;
  [[noreturn]] void throw_out_of_memory(size_t size);

  cl::Device& device_;
  const c10::DeviceIndex index_;
  std::mutex mutex_;
  Pool small_, large_;
  std::unordered_map<uint64_t, size_t> pools_;  // those that graphs keep, and how many do
  std::vector<std::pair<std::shared_ptr<Event>, Block*>> pending_;
  Stream* own_stream_ = nullptr;  // made with the first segment, and never destroyed
  size_t reserved_ = 0;
  size_t limit_ = std::numeric_limits<size_t>::max();
  DeviceStats stats_{};
};

// Whether allocations and frees are reported to PyTorch's profilers.
inline constinit std::atomic<bool> g_memory_reports{false};

}  // namespace dlb
