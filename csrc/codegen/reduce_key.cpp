#include "codegen/reduce_key.h"

#include <algorithm>
#include <bit>

#include "codegen/expression.h"

namespace dlb::codegen {
namespace {

// Bytes that a GPU work-group's tile of a scan takes at most, without gaps: several work-groups fit a compute
// unit.
constexpr size_t kScanTile = 1 << 14;

}  // namespace

bool wide_sums(DType compute, cl::DeviceClass cls) {
  return (compute == DType::F32 || compute == DType::C64) && cls == cl::DeviceClass::kCpu;
}

bool replaces_input(const ReduceKey& key) {
  return key.types[0] == key.types[key.outputs];
}

size_t reduce_lanes(DType compute) {
  return std::max<size_t>(8, 256 / std::max<size_t>(4, size_of(compute)));
}

const char* name_of(ReduceForm form) {
  static constexpr const char* kNames[] = {"dlb_reduce_rows",
                                           "dlb_reduce_rows_strided",
                                           "dlb_reduce_columns",
                                           "dlb_reduce_columns_strided",
                                           "dlb_reduce_group",
                                           "dlb_reduce_group_vector",
                                           "dlb_reduce_group_vector_runs",
                                           "dlb_reduce_combine",
                                           "dlb_scan_rows",
                                           "dlb_scan_columns",
                                           "dlb_scan_group",
                                           "dlb_scan_chained"};
  return kNames[static_cast<size_t>(form)];
}

DType scalar_type(const ReduceOp& op, DType compute, size_t i) {
  return op.expression ? op.expression->before.scalars[i] : compute;
}

bool has_vector_form(const ReduceKey& key) {
  if (key.mapped) return false;
  for (size_t i = key.outputs; i < key.operands(); ++i)
    if (class_of(key.types[i]) == DClass::Complex) return false;
  return true;
}

size_t scan_held(const ReduceKey& key) {
  size_t bytes = replaces_input(key) ? 0 : size_of(key.types[key.outputs]);
  for (size_t o = 0; o < key.outputs; ++o) bytes += size_of(key.types[o]);
  return std::clamp<size_t>(std::bit_floor(kScanTile / params::REDUCE_GROUP / std::max<size_t>(bytes, 1)), 1,
                            16);
}

size_t chained_scan_held(const ReduceKey& key) {
  return 2 * scan_held(key);
}

size_t reduce_columns(const ReduceOp& op, DType compute) {
  const size_t lanes = reduce_lanes(compute);
  const size_t each = std::max<size_t>(accumulator_size(op, compute, cl::DeviceClass::kCpu), 1);
  return std::clamp<size_t>(kColumnBytes / 3 / each / lanes * lanes, lanes, 2048);
}

size_t accumulator_size(const ReduceOp& op, DType compute, cl::DeviceClass cls) {
  const ReduceBody& body = op.body(class_of(compute));
  size_t bytes = 0, alignment = 1;
  for (size_t f = 0; f < body.field_count(); ++f) {
    const std::string type = body.fields[f].type;
    const size_t t = compute == DType::Bool ? 4 : size_of(compute);
    const bool complex = class_of(compute) == DClass::Complex;
    const bool real = type == "REAL" || (type == "ACC" && !wide_sums(compute, cls));
    const size_t size = type == "T" ? t : real ? (complex ? t / 2 : t) : type == "int" ? 4 : 8;
    bytes = (bytes + size - 1) / size * size + size;
    alignment = std::max(alignment, size);
  }
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace dlb::codegen

size_t std::hash<dlb::codegen::ReduceKey>::operator()(const dlb::codegen::ReduceKey& key) const noexcept {
  uint64_t h = reinterpret_cast<uint64_t>(key.op) * 0x9E3779B97F4A7C15ull;
  h ^= static_cast<uint64_t>(key.cls) | static_cast<uint64_t>(key.compute) << 8 |
       static_cast<uint64_t>(key.outputs) << 16 | static_cast<uint64_t>(key.mapped) << 24 |
       static_cast<uint64_t>(key.inputs) << 32 | static_cast<uint64_t>(key.scan) << 47 |
       static_cast<uint64_t>(key.wide) << 40 | static_cast<uint64_t>(key.constants) << 48;
  for (const auto type : key.types) h = (h ^ static_cast<uint64_t>(type)) * 0x9E3779B97F4A7C15ull;
  return h ^ h >> 29;
}
