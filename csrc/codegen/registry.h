// Every op that kernels are generated for, by its id. The id is what names an op outside of the process: in
// kernel names, in keys of stores, in exports. Within the process the address of a registered op stands for
// it, which costs nothing to hash or compare.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/pointwise.h"
#include "codegen/reduce.h"

namespace dlb::codegen {

enum class RowKind : uint8_t {
  Pointwise,    // PointwiseOp, over tensors that broadcast
  MultiTensor,  // PointwiseOp, over lists of tensors
  Reduce,       // ReduceOp, over dimensions
  Scan          // ReduceOp, along one dimension
};

struct OpRow {
  RowKind kind = RowKind::Pointwise;
  const PointwiseOp* pointwise = nullptr;  // one of the two
  const ReduceOp* reduce = nullptr;
  std::vector<std::string> overloads{};  // that run it, such as "aten::add.out"
  std::string promotion{};               // how dtypes are promoted: a word of docs/op-table.md
  const char* setup = nullptr;           // see MultiTensorKey
  const char* after = nullptr;

  const char* id() const { return pointwise ? pointwise->name : reduce->name; }
};

// Registers the ops of a file: `const RegisterOps kSumOps(RowKind::Reduce, {{kSum, "sum sum.out",
// "sum"}});`. Tables of pointwise rows do it by themselves (ops/pointwise/rows.h).
struct RegisterOps {
  struct Entry {
    // `overloads` of ATen that run the op, separated by spaces; "" for a part of a larger op. `promotion` is
    // one of the words that docs/op-table.md explains.
    Entry(const PointwiseOp& op, const char* overloads, const char* promotion, const char* setup = nullptr,
          const char* after = nullptr);
    Entry(const ReduceOp& op, const char* overloads, const char* promotion);
    OpRow row;
  };
  RegisterOps(RowKind kind, std::initializer_list<Entry> ops);
};

// Adds a row, whose op must live as long as the process; only while the library is loaded. Throws
// std::logic_error for an id that another op has.
void add_row(OpRow row);

// Adds an overload that runs the op with that id, in whatever order the two are registered.
void add_overload(const char* id, std::string overload);

// The row with that id, or null. Complete once the library is loaded.
const OpRow* find_row(std::string_view id);

// The op with that id, or null. Complete once the library is loaded.
const PointwiseOp* find_pointwise(std::string_view id);
const ReduceOp* find_reduce(std::string_view id);

// Throws std::logic_error for an op that is not registered, unless it is made from a program's own text.
void check_is_row(const PointwiseOp& op);
void check_is_row(const ReduceOp& op);

// All rows, by id. Throws std::logic_error where an overload was added to an op that there is not.
std::vector<const OpRow*> all_rows();

// How many inputs x0.. an op's bodies read, and how many results y0.. they give, with setup and after of the
// row.
size_t inputs_of(const OpRow& row);
size_t outputs_of(const OpRow& row);

}  // namespace dlb::codegen
