// All segments of all devices by address.
#include "runtime/address_map.h"

#include <sys/mman.h>

#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "cl/kernel.h"

namespace dlb {
namespace {

struct SegmentMap {
  std::shared_mutex mutex;
  std::map<const char*, Segment*> by_base;
};

SegmentMap& segment_map() {
  static auto* map = new SegmentMap;
  return *map;
}

}  // namespace

Segment* map_segment(cl_mem mem, size_t bytes, c10::DeviceIndex device) {
  void* base = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    cl::api().clReleaseMemObject(mem);
    return nullptr;
  }
  auto* segment = new Segment{mem, static_cast<char*>(base), bytes, device};
  std::unique_lock<std::shared_mutex> lock(segment_map().mutex);
  segment_map().by_base[segment->base] = segment;
  return segment;
}

void unmap_segment(Segment* segment) {
  {
    std::unique_lock<std::shared_mutex> lock(segment_map().mutex);
    segment_map().by_base.erase(segment->base);
  }
  cl::release_buffer(segment->mem);
  ::munmap(segment->base, segment->size);
  delete segment;
}

const Segment* find_segment(const void* pointer) {
  std::shared_lock<std::shared_mutex> lock(segment_map().mutex);
  const auto& by_base = segment_map().by_base;
  auto it = by_base.upper_bound(static_cast<const char*>(pointer));
  if (it == by_base.begin()) return nullptr;
  const Segment* segment = std::prev(it)->second;
  return pointer < segment->base + segment->size ? segment : nullptr;
}

}  // namespace dlb
