// Launches the copying kernel.
#include "primitives/common/pack_lines.h"

#include "cl/rounding.h"
#include "primitives/common/gpu_tile.h"
#include "primitives/common/wgmma.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {

int64_t packing_groups(const params::PackLines& arguments, int64_t outer, int64_t bytes) {
  const int64_t tile = bytes == 1 ? params::PACK_BYTE_TILE : params::PACK_TILE;
  return outer * arguments.inner.divisor * ceil_div(int64_t{arguments.lines}, tile) *
         ceil_div(int64_t{arguments.length}, tile);
}

LinePacker::LinePacker(cl::Device& device, int index, c10::ScalarType dtype)
    : device_(device),
      index_(static_cast<c10::DeviceIndex>(index)),
      element_(static_cast<int64_t>(c10::elementSize(dtype))),
      options_(gpu_options(device, dtype)) {}

cl::Kernel& LinePacker::kernel() const {
  return fetch_kernel(device_, {"common/gpu_tile.clh", "common/divider.clh", "common/pack_lines.cl"},
                      "pack_lines", options_);
}

Buffer LinePacker::pack(Stream& stream, const LinesCopy& copy, const Buffer& from, MemRef to) const {
  const Buffer packed{to.mem, static_cast<int64_t>(to.offset) / element_};
  params::PackLines a = copy.arguments;
  a.from_offset = from.offset, a.to_offset = packed.offset;
  kernel().launch(stream.queue(), cl::Range::linear(copy.groups, params::PACK_ITEMS), from.mem, to.mem, a);
  return packed;
}

c10::DataPtr LinePacker::bring(Stream& stream, const LinesCopy& copy, Buffer& operand, MemRef place) const {
  if (!copy.always && operand.offset * element_ % kWgmmaUnit == 0) return {};
  c10::DataPtr memory;
  if (!copy.always) {
    memory = allocate_bytes(copy.bytes, index_);
    place = resolve(memory, memory.get());
  }
  operand = pack(stream, copy, operand, place);
  return memory;
}

}  // namespace dlb::solver
