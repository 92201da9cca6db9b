// Text of multi-tensor kernels: one pointwise op over lists of tensors in a single launch. Addresses, sizes
// and their number come from a table in device memory (csrc/kernels/foreach/multi_tensor.clh), so nothing is
// compiled per list.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "codegen/pointwise.h"
#include "kernels/foreach/params.h"

namespace dlb::codegen {

constexpr size_t kMaxSegments = params::MULTI_TENSOR_SEGMENTS;
constexpr size_t kMaxMultiOperands = 16;
constexpr size_t kMaxMultiScalars = 12;
constexpr uint32_t kMultiChunk = params::MULTI_TENSOR_CHUNK;
constexpr uint32_t kMultiGroup = params::MULTI_TENSOR_GROUP;

// Where an operand's element comes from.
enum class Source : uint8_t {
  List,      // the element of this tensor
  Single,    // one element in memory for each tensor (a step count, a scale)
  Value,     // one value for all, a kernel argument
  ValueList  // one value for each tensor, beside the table
};

constexpr uint8_t kNoAlias = 0xff;

// Everything that is compiled in. A value: compared bytewise. `op`'s bodies read inputs x0.. and scalars s0..
// and give y0..; `setup` (once per tensor and work-item, may return early) may compute constants from Single
// and Value operands, and `after` runs behind the loop, with the memory of operand i (outputs first) at b<i>.
struct MultiTensorKey {
  const PointwiseOp* op = nullptr;
  const char* setup = nullptr;
  const char* after = nullptr;
  cl::DeviceClass cls = cl::DeviceClass::kGpu;
  DType compute = DType::F32;
  uint8_t outputs = 0;
  uint8_t inputs = 0;
  uint16_t scalar_lists = 0;  // bit i: s<i> differs per tensor
  std::array<DType, kMaxMultiOperands> types{};
  std::array<Source, kMaxMultiOperands> source{};
  std::array<uint8_t, kMaxMultiOperands>
      alias{};  // of an input: the output that is the same list, or kNoAlias

  bool operator==(const MultiTensorKey&) const = default;
  size_t operands() const { return size_t{outputs} + inputs; }
  // Whether the operand has a place in the table's rows.
  bool in_table(size_t i) const {
    return (source[i] == Source::List || source[i] == Source::Single) && alias[i] == kNoAlias;
  }
};

using params::MultiTensorParams;

// The kernel's source; its one kernel is called dlb_multi_NAME. Arguments: the segments, the ring with table
// and lists, MultiTensorParams, then the Value operands and the Value scalars as scalar_name(compute). The
// lists hold the ValueList operands and then the scalars, `tensors` values each.
std::string multi_tensor_source(const MultiTensorKey& key);

}  // namespace dlb::codegen

template <>
struct std::hash<dlb::codegen::MultiTensorKey> {
  size_t operator()(const dlb::codegen::MultiTensorKey& key) const noexcept;
};
