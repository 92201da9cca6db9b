// The macros of an op that the skeletons of pointwise and multi-tensor kernels are written in: how its
// operands are loaded, what is computed from them, and how results are stored.
#pragma once
#include <functional>
#include <string>

#include "codegen/op_functions.h"
#include "codegen/pointwise.h"

namespace dlb::codegen {

// One op, or expression of ops, on operands of given types, outputs first. Input i is called x0, x1 .. in the
// order of the inputs. An op has all its inputs in its compute type, an expression each in that of the
// input's own dtype.
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
  // "const float x0 = <element `index` of the pointer `memory`>; " for operand i.
  std::string load(size_t i, const std::string& memory, const std::string& index) const;
  // What input i is loaded as.
  DType in_register(size_t i) const;
  // "const float <name> = (float)<value>; " for a value that arrives as a kernel's argument.
  static std::string constant(DType compute, const std::string& name, const std::string& value);
  // "float y0, y1; "
  std::string declare_results() const;
  // The expression that stores y<output>.
  std::string stored(size_t output) const;
  // The body as statements that assign y0 .., for programs where T is the compute type.
  std::string body() const;
  // The functions that compute it, and DLB_COMPUTE, which declares y0 .. and calls them.
  std::string function() const;

  // DLB_LOAD_VECTORS(j), DLB_LOAD_LANE(l), DLB_DECLARE_VECTORS, DLB_KEEP_LANE(l) and DLB_STORE_VECTORS(j):
  // kGpuVector elements from j on at once. `moves(i)` says of an input whether it has such elements,
  // `memory(i)` what its pointer is called.
  std::string vector_macros(const std::function<bool(size_t)>& moves,
                            const std::function<std::string(size_t)>& memory) const;

 private:
  DType result_dtype(size_t output) const;  // of y<output>, before it is stored

  // The expression for an element of operand i as it is loaded.
  std::string loaded(size_t i, const std::string& element) const;

  std::string vector_type(size_t i) const;

  const PointwiseOp& op_;
  DType compute_, rounded_;
  const DType* types_;
  size_t outputs_, count_;
};

}  // namespace dlb::codegen
