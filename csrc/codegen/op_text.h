// The macros of an op that the skeletons of pointwise and multi-tensor kernels are written in: how its
// operands are loaded, what is computed from them, and how results are stored.
#pragma once
#include <functional>
#include <string>

#include "codegen/pointwise.h"

namespace dlb::codegen {

// One op on operands of given types, outputs first. Input i is called x0, x1 .. in the order of the inputs.
class OpText {
 public:
  // `rounded`: see PointwiseKey.
  OpText(const PointwiseOp& op, DType compute, const DType* types, size_t outputs, size_t inputs,
         DType rounded = DType::F32)
      : op_(op),
        compute_(compute),
        rounded_(rounded),
        types_(types),
        outputs_(outputs),
        count_(outputs + inputs) {}

  std::string input_name(size_t i) const;
  // "const T x0 = <element `index` of the pointer `memory`>; " for operand i.
  std::string load(size_t i, const std::string& memory, const std::string& index) const;
  // "const T <name> = (T)<value>; "
  static std::string constant(const std::string& name, const std::string& value);
  // "T y0, y1; "
  std::string declare_results() const;
  // The expression that stores y<output>.
  std::string stored(size_t output) const;
  // The body as statements that assign y0 ..
  std::string body() const;
  // The op as a function, void dlb_op(x0 .., s0 .., &y0 .. [, &bad]), and DLB_COMPUTE, which declares y0 ..
  // and calls it.
  std::string function() const;

  // DLB_LOAD_VECTORS(j), DLB_LOAD_LANE(l), DLB_DECLARE_VECTORS, DLB_KEEP_LANE(l) and DLB_STORE_VECTORS(j):
  // kGpuVector elements from j on at once. `moves(i)` says of an input whether it has such elements,
  // `memory(i)` what its pointer is called.
  std::string vector_macros(const std::function<bool(size_t)>& moves,
                            const std::function<std::string(size_t)>& memory) const;

 private:
  // The expression for an element of operand i in compute type.
  std::string loaded(size_t i, const std::string& element) const;

  std::string vector_type(size_t i) const;

  const PointwiseOp& op_;
  DType compute_, rounded_;
  const DType* types_;
  size_t outputs_, count_;
};

}  // namespace dlb::codegen
