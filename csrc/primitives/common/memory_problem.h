// The common part of the problems of ops bound by memory (softmax, reductions, normalisations, pooling):
// their operands, and how sizes are told from what networks hardly change.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "solver/op.h"

namespace dlb::solver {

struct MemoryOperands : Operands {
  Buffer in0, in1, in2, in3, in4, out0, out1, out2;
  double scalar = 1;  // an argument of the op on which no solver depends, a correction or a power
};

struct MemoryProblem : Problem {
  using Operands = MemoryOperands;
  static constexpr size_t kInputs = 5, kOperands = 8;
  // The first solver of such an op is what small problems run without asking.
  static constexpr bool kTrustsFirstChoice = true;

  // Elements of in0..4, out0..2 from the first to the last one (0: the operand is absent), and their dtypes.
  int64_t extents[kOperands] = {};
  c10::ScalarType types[kOperands] = {};
  char variant[16] = {};  // what the op's kernels are made for, "sum"; empty where there is one

  c10::ScalarType& result_type(size_t i = 0) { return types[kInputs + i]; }
  c10::ScalarType result_type(size_t i = 0) const { return types[kInputs + i]; }
  int64_t& result_extent(size_t i = 0) { return extents[kInputs + i]; }
  int64_t result_extent(size_t i = 0) const { return extents[kInputs + i]; }
  bool has_result(size_t i) const { return extents[kInputs + i] > 0; }

  // The spans of the operands there are. `positive`: a bit for each that trials fill with values in [0, 1).
  std::vector<Span> spans_of(unsigned positive) const;
  std::vector<Span> spans() const { return spans_of(0); }
  std::string kernel_variant() const { return std::string(" ") + variant; }

 protected:
  // Extents only as far as choices depend on them: whether there is an operand, and whether it needs 64-bit
  // indices.
  void coarsen_extents();
};

// Gives P, which derives from this, the functions that OpOf<P> asks for. P names its own fields, all of them
// int64_t, in
//   template <class Self, class Visit> static void visit_sizes(Self&, Visit&&)
template <class P>
struct MemoryProblemOf : MemoryProblem {
  template <class Self, class Visit>
  static void visit(Self& p, Visit&& v) {
    P::visit_sizes(p, v);
    v("variant", p.variant), v("extents", p.extents), v("types", p.types);
  }
  std::vector<CheckWindow<P>> check_windows() const { return {{self(), {}}}; }  // the whole problem
  std::vector<uint64_t> shape_classes() const {
    P p;
    p.op = op, p.dtype = dtype;
    return {hash_of(p)};
  }
  uint64_t size_bucket() const {
    P p = self();
    P::visit_sizes(p, Coarsen{});
    p.coarsen_extents();
    return hash_of(p);
  }

 private:
  struct Coarsen {
    void operator()(const char*, int64_t& size) const { size = coarse(size); }
    template <size_t n>
    void operator()(const char*, int64_t (&sizes)[n]) const {
      for (int64_t& size : sizes) size = coarse(size);
    }
  };
  const P& self() const { return static_cast<const P&>(*this); }
};

}  // namespace dlb::solver
