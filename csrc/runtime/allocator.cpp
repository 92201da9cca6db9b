// The allocator that PyTorch knows, over the caches of the devices.
#include "runtime/allocator.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/COW.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "cl/queue.h"
#include "cl/recording.h"
#include "runtime/address_map.h"
#include "runtime/device_cache.h"
#include "runtime/graph.h"
#include "runtime/stream.h"

namespace dlb {
namespace {

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

// Blocks of storages that were lazily cloned, by their address, which is the context of their DataPtr.
struct SharedBlocks {
  std::mutex mutex;
  std::unordered_map<const void*, Block*> blocks;
};

SharedBlocks& shared_blocks() {
  static auto* const shared = new SharedBlocks;
  return *shared;
}

void free_shared_block(void* pointer) {
  SharedBlocks& shared = shared_blocks();
  std::unique_lock<std::mutex> lock(shared.mutex);
  const auto found = shared.blocks.extract(pointer);
  lock.unlock();
  free_block(found.mapped());
}

// Null where the memory is not the allocator's.
Block* block_of(const c10::DataPtr& data) {
  if (data.get_deleter() == &free_block) [[likely]]
    return static_cast<Block*>(data.get_context());
  if (data.get_deleter() != &free_shared_block && !is_shared(data)) return nullptr;
  SharedBlocks& shared = shared_blocks();
  std::lock_guard<std::mutex> lock(shared.mutex);
  const auto found = shared.blocks.find(data.get());
  return found == shared.blocks.end() ? nullptr : found->second;
}

class OclAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return allocate_bytes(bytes, current_device()); }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }  // PyTorch frees by DataPtr: the pointer alone does not lead to its block

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    if (bytes == 0 || cl::Recording::current()) return;
    const MemRef to = resolve(destination), from = resolve(source);
    Stream& stream = current_stream(device_of_pointer(destination));
    if (Graph* const graph = stream.graph()) [[unlikely]]
      return graph->tape().add_copy(from.mem, from.offset, to.mem, to.offset, bytes);
    cl::Command command(stream.use(), cl::CommandKind::kCopy, "Memcpy DtoD", bytes);
    DLB_CL(clEnqueueCopyBuffer, command.queue(), from.mem, to.mem, from.offset, to.offset, bytes, 0, nullptr,
           command.event());
  }

  bool initialized() override { return cl::device_count() > 0; }

  void emptyCache(c10::MempoolId_t) override {
    for (int i = 0; i < cl::device_count(); ++i) cache_of(static_cast<c10::DeviceIndex>(i)).empty_cache();
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    Block* const block = block_of(data);
    if (!block) return;
    if (stream_of(stream).graph()) return;  // a capture has one order, whatever its streams
    cache_of(block->segment->device).record_stream(block, stream.id());
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return cache_of(device).stats();
  }
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

namespace {

c10::DataPtr allocate_in(size_t bytes, c10::DeviceIndex device, bool beside_graph) {
  if (device < 0) device = current_device();
  const c10::Device where(kDeviceType, device);
  if (bytes == 0) {
    device_of(device);  // throws for a device that does not exist, also where no memory is wanted
    return {nullptr, nullptr, &c10::detail::deleteNothing, where};
  }
  const Stream& stream = current_stream(device);
  const Graph* const graph = stream.graph();
  const uint64_t pool = graph && !beside_graph ? graph->pool_key() : 0;
  Block* block = cache_of(device).allocate(bytes, stream.id(), pool);
  return {block->pointer, block, &free_block, where};
}

}  // namespace

c10::DataPtr allocate_bytes(size_t bytes, c10::DeviceIndex device) {
  return allocate_in(bytes, device, false);
}

c10::DataPtr allocate_beside_graph(size_t bytes, c10::DeviceIndex device) {
  return allocate_in(bytes, device, true);
}

void keep_pool(c10::DeviceIndex device, uint64_t pool) {
  cache_of(device).keep_pool(pool);
}
void give_up_pool(c10::DeviceIndex device, uint64_t pool) {
  cache_of(device).give_up_pool(pool);
}

std::shared_ptr<void> attached(const c10::DataPtr& data, std::shared_ptr<void> (*make)()) {
  Block* const block = block_of(data);
  return block ? cache_of(block->segment->device).attached(block, make) : nullptr;
}

void make_lazily_clonable(c10::StorageImpl& storage) {
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (data.get_deleter() != &free_block) return;
  SharedBlocks& shared = shared_blocks();
  std::lock_guard<std::mutex> lock(shared.mutex);
  shared.blocks.emplace(data.get(), static_cast<Block*>(data.get_context()));
  data.release_context();
  data = {data.get(), data.get(), &free_shared_block, data.device()};
}

void unshare(c10::StorageImpl& storage) {
  static std::mutex mutex;
  const c10::DeviceGuard guard(storage.device());
  std::lock_guard<std::mutex> lock(mutex);
  if (is_shared(storage.data_ptr())) storage.mutable_data();
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  if (is_shared(impl->data_ptr())) unshare(*impl);
  const size_t kept = std::min(bytes, storage.nbytes());
  c10::DataPtr fresh = allocate_bytes(bytes, storage.device().index());
  if (kept > 0) g_allocator.copy_data(fresh.get(), storage.data(), kept);
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(bytes);
}

MemRef resolve(const c10::DataPtr& data, const void* pointer) {
  if (data.get_deleter() != &free_block) [[unlikely]] {
    // Ops that use no TensorIterator meet tensors of other devices only here. The device that they wanted is
    // not known here, unless there is just one.
    TORCH_CHECK(data.device().type() == kDeviceType,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                c10::Device(kDeviceType, cl::device_count() == 1 ? 0 : -1), " and ", data.device(), "!");
    return resolve(pointer);
  }
  const Segment* segment = static_cast<const Block*>(data.get_context())->segment;
  return {segment->mem, static_cast<uint64_t>(static_cast<const char*>(pointer) - segment->base)};
}

MemRef resolve(const void* pointer) {
  const Segment* segment = find_segment(pointer);
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
  const Segment* segment = find_segment(pointer);
  TORCH_CHECK(segment, "the pointer does not belong to any live allocation on ocl");
  return segment->device;
}

REGISTER_ALLOCATOR(kDeviceType, &g_allocator)

}  // namespace dlb
