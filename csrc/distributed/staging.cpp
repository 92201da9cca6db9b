// Host memory of collectives: maps and page-locked copies.
#include "distributed/staging.h"

#include "runtime/host_allocator.h"
#include "runtime/tensor.h"
#include "runtime/transfer.h"

namespace dlb::distributed {
namespace {

MemRef place_of(const Region& region) {
  MemRef place = mem_of(region.tensor);
  place.offset += region.offset;
  return place;
}

at::Tensor flat_tensor(void* data, size_t bytes, c10::ScalarType dtype) {
  const auto options = at::TensorOptions(at::kCPU).dtype(dtype);
  if (bytes == 0) return at::empty({0}, options);
  return at::from_blob(data, {static_cast<int64_t>(bytes / c10::elementSize(dtype))}, options);
}

}  // namespace

size_t Operand::bytes() const {
  size_t sum = 0;
  for (const Region& region : regions) sum += region.bytes;
  return sum;
}

std::vector<Region> regions_of(at::ArrayRef<at::Tensor> tensors) {
  std::vector<Region> regions;
  regions.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    if (tensor.nbytes() > 0) regions.push_back({tensor, 0, tensor.nbytes()});
  return regions;
}

std::vector<Region> slice(const std::vector<Region>& regions, size_t begin, size_t bytes) {
  std::vector<Region> found;
  size_t at = 0;
  for (const Region& region : regions) {
    const size_t first = std::max(at, begin), last = std::min(at + region.bytes, begin + bytes);
    if (first < last) found.push_back({region.tensor, region.offset + first - at, last - first});
    at += region.bytes;
  }
  return found;
}

std::vector<Region> slice_each(const std::vector<Region>& regions, int ranks, size_t part, size_t begin,
                               size_t bytes) {
  std::vector<Region> found;
  for (int rank = 0; rank < ranks; ++rank)
    for (Region& next : slice(regions, static_cast<size_t>(rank) * part + begin, bytes)) {
      Region* last = found.empty() ? nullptr : &found.back();
      if (last && last->tensor.is_same(next.tensor) && last->offset + last->bytes == next.offset)
        last->bytes += next.bytes;
      else
        found.push_back(std::move(next));
    }
  return found;
}

Staged::Staged(Operand operand, Stream& stream, bool may_map) : operand_(std::move(operand)) {
  const size_t bytes = operand_.bytes();
  if (bytes > 0 && !(may_map && map(stream))) {
    pinned_ = host_allocator()->allocate(bytes);
    if (reads(operand_.access)) copy_in(stream);
  }
  host_ = flat_tensor(mapped_ ? mapped_ : pinned_.get(), bytes, operand_.dtype);
}

Staged::Staged(Staged&& other) noexcept
    : operand_(std::move(other.operand_)),
      pinned_(std::move(other.pinned_)),
      mapped_(std::exchange(other.mapped_, nullptr)),
      mapped_on_(other.mapped_on_),
      host_(std::move(other.host_)) {}

Staged::~Staged() {
  if (!mapped_) return;
  try {
    unmap(*mapped_on_);
  } catch (const std::exception&) {
    // The driver said no twice: the tensor stays mapped, which on a device in host memory changes nothing.
  }
}

void Staged::copy_in(Stream& stream) {
  char* to = static_cast<char*>(pinned_.get());
  for (const Region& region : operand_.regions) {
    copy_to_host(to, place_of(region), region.bytes, stream, true);
    to += region.bytes;
  }
}

bool Staged::map(Stream& stream) {
  if (!stream.device().host_memory || operand_.scratch || operand_.regions.size() != 1) return false;
  const MemRef place = place_of(operand_.regions[0]);
  const cl_map_flags flags = operand_.access == Access::kRead    ? CL_MAP_READ
                             : operand_.access == Access::kWrite ? CL_MAP_WRITE_INVALIDATE_REGION
                                                                 : CL_MAP_READ | CL_MAP_WRITE;
  const cl::Command command(stream.use());
  cl_int status = CL_SUCCESS;
  mapped_ = cl::api().clEnqueueMapBuffer(command.queue(), place.mem, CL_FALSE, flags, place.offset,
                                         operand_.regions[0].bytes, 0, nullptr, nullptr, &status);
  cl::check(status, "clEnqueueMapBuffer");
  mapped_on_ = &stream;
  return true;
}

void Staged::unmap(Stream& stream) {
  void* pointer = std::exchange(mapped_, nullptr);
  const cl::Command command(stream.use());
  DLB_CL(clEnqueueUnmapMemObject, command.queue(), place_of(operand_.regions[0]).mem, pointer, 0, nullptr,
         nullptr);
}

void Staged::write_back(Stream& stream) {
  if (mapped_) return unmap(stream);
  if (!writes(operand_.access) || !pinned_) return;
  const char* from = static_cast<const char*>(pinned_.get());
  for (const Region& region : operand_.regions) {
    copy_to_device(place_of(region), from, region.bytes, stream, true);
    from += region.bytes;
  }
  host_allocator()->record_event(pinned_.get(), pinned_.get_context(), stream.unwrap());
}

}  // namespace dlb::distributed
