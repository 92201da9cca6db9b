// Pointwise rows by name.
#include "ops/common/op_table.h"

#include <string_view>
#include <unordered_map>

namespace dlb {
namespace {
auto& table() {
  static auto* all = new std::unordered_map<std::string_view, const codegen::PointwiseOp*>;
  return *all;
}
}  // namespace

void remember_op(const codegen::PointwiseOp& op) {
  table()[op.name] = &op;
}

const codegen::PointwiseOp* find_op(const char* name) {
  const auto it = table().find(name);
  return it == table().end() ? nullptr : it->second;
}

}  // namespace dlb
