// The host's side of device tensors: what gloo reads and writes in a collective's stead.
#pragma once
#include <ATen/ATen.h>

#include <vector>

#include "runtime/stream.h"

namespace dlb::distributed {

// Some bytes of a contiguous device tensor.
struct Region {
  at::Tensor tensor;
  size_t offset = 0, bytes = 0;
};

enum class Access : uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3 };

inline bool reads(Access access) {
  return access != Access::kWrite;
}
inline bool writes(Access access) {
  return access != Access::kRead;
}

// Regions of tensors of one device, behind each other; the host sees them as one piece of memory.
struct Operand {
  std::vector<Region> regions;
  Access access = Access::kRead;
  c10::ScalarType dtype = c10::ScalarType::Byte;  // in which the host sees it
  // Whether the host may change the memory although it only reads: then it never gets the device's own.
  bool scratch = false;

  size_t bytes() const;
};

// All bytes of contiguous tensors.
std::vector<Region> regions_of(at::ArrayRef<at::Tensor> tensors);

// The `bytes` bytes from `begin` on of regions that lie behind each other.
std::vector<Region> slice(const std::vector<Region>& regions, size_t begin, size_t bytes);

// The same of each of `ranks` equal parts that lie behind each other, `part` bytes long; what lies together
// in one tensor is one region.
std::vector<Region> slice_each(const std::vector<Region>& regions, int ranks, size_t part, size_t begin,
                               size_t bytes);

// An operand in host memory while a collective runs. Where a device computes in host memory and the operand
// is one region, that is the device's own memory, mapped; else page-locked memory into which the region is
// copied.
class Staged {
 public:
  // Enqueues what makes the operand readable and writable on the host: an event after it has to be waited for
  // before host() is touched, unless the operand is neither read nor `may_map`.
  Staged(Operand operand, Stream& stream, bool may_map = true);
  ~Staged();
  Staged(Staged&& other) noexcept;
  Staged& operator=(Staged&&) = delete;

  // A flat CPU tensor over the operand. Must not outlive this object.
  const at::Tensor& host() const { return host_; }
  const Operand& operand() const { return operand_; }

  // Enqueues what brings the host's bytes back into the tensors; nothing for an operand that is only read.
  void write_back(Stream& stream);

 private:
  void copy_in(Stream& stream);
  bool map(Stream& stream);
  void unmap(Stream& stream);
  Operand operand_;
  c10::DataPtr pinned_;
  void* mapped_ = nullptr;
  Stream* mapped_on_ = nullptr;
  at::Tensor host_;
};

}  // namespace dlb::distributed
