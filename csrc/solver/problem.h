// Problems: what a GEMM, a convolution or another op is asked to do, as plain values with a printable key.
// Two equal problems can share an invoker; everything that may differ between two calls of one problem
// (buffers, alpha, beta) is in Operands.
#pragma once
#include <c10/core/ScalarType.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "cl/library.h"

namespace dlb {
class Stream;
}
namespace dlb::solver {

class PreparedWeights;  // solver/prepared.h

enum class Op : uint8_t {
  kGemm,
  kConvForward,
  kConvInputGrad,
  kConvWeightGrad,
  kSoftmax,
  kSoftmaxBackward,
  kReduce,
  kNormStats,
  kNormSums,
  kNormApply,
  kNormApplyBackward,
  kLayerNorm,
  kLayerNormBackward,
  kMaxPool,
  kMaxPoolBackward,
  kAvgPool,
  kAvgPoolBackward
};
constexpr int kOps = 17;
// "gemm", "conv_fwd", "conv_bwd_data", "conv_bwd_weight", "softmax", ...: the names of DLBACKEND_SOLVER
const char* op_name(Op op);
// The op that a key begins with. Throws std::invalid_argument when there is none.
Op op_of_key(const std::string& key);

// A buffer and an element offset.
struct Buffer {
  cl_mem mem = nullptr;
  int64_t offset = 0;
};

// A scalar factor in the forms that kernels take it: integers, and the real and imaginary part.
struct Factor {
  int64_t integer = 1;
  double re = 1, im = 0;
};

// What results are brought to: those below `low` become it, those above `high` become that, NaN stays. An
// activation (ReLU, ReLU6, hardtanh) costs nothing at the end of a kernel that has each result in a register.
struct Bounds {
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
  bool finite() const { return std::isfinite(low) || std::isfinite(high); }
};

// An operand of a problem: where its buffer stands in Operands, the elements from its first to its last one,
// and whether it is a result. A trial fills operands with values in [-1, 1), or [0, 1) where it says so.
template <class Operands>
struct Span {
  Buffer Operands::*buffer;
  int64_t elements = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool result = false;
  bool positive = false;
};

// A part of a problem's result that is itself a problem, and what to add to the operands' offsets for it.
template <class Problem>
struct Part {
  Problem problem;
  typename Problem::Operands shift{};
};

// C[b,i,j] = alpha * sum_k A[b,i,k] * B[b,k,j] + beta * D[b,i,j], within bounds. All operands have one dtype;
// any strides, zero (broadcast) included for A, B and D. C does not overlap A and B; D may be C itself.
// Integers and complex numbers know no bounds.
struct GemmProblem {
  struct Operands {
    Buffer a, b, c, d;
    Factor alpha, beta;
    Bounds bounds{};
  };

  int64_t batch = 1, m = 0, n = 0, k = 0;
  // Element strides of {batch, row, column}; zero where the dimension has one element.
  int64_t a[3] = {}, b[3] = {}, c[3] = {}, d[3] = {};
  c10::ScalarType dtype = c10::ScalarType::Float;
  int8_t device = 0;
  int8_t has_d = 0;  // 0: beta is zero and D is not read
  int8_t tf32 = 0;   // 1: operands, which are float32, may be rounded to TF32
  int8_t unused[4] = {};

  Op op() const { return Op::kGemm; }
  double flops() const { return 2.0 * batch * m * n * k; }
  std::vector<Span<Operands>> spans() const;
  // Small parts at both ends of the result, for checking against the reference solver; at least one.
  std::vector<Part<GemmProblem>> parts() const;
  // The same op on less of the same kind: sizes at most so large that it fits any device's memory, operands
  // in the same order without gaps. For checking a solver where the problem itself is too large.
  GemmProblem sibling() const;
  // Hashes of what networks hardly change between calls, without sizes that may follow the input: one for
  // each way to tell those.
  std::vector<uint64_t> families() const;
  // Hash of the problem with such sizes as far as choices depend on them: to a factor of two, and whether
  // vectors of four divide them.
  uint64_t neighbourhood() const;
  // Makes the strides of dimensions with one element zero, so that they do not make two problems of one.
  void normalize();
  template <class Self, class Visit>
  static void visit(Self& p, Visit&& v) {
    v("b", p.batch), v("m", p.m), v("n", p.n), v("k", p.k), v("sa", p.a), v("sb", p.b), v("sc", p.c),
        v("sd", p.d);
    v("add", p.has_d), v.if_set("tf32", p.tf32);
  }
};

// y[n,k,o] (+ bias[k]) = sum over c, f of x[n,c,o*stride-padding+f*dilation] * w[k,c,f] within each group,
// and its two gradients. Depth, height and width always: fewer spatial dimensions have ones in front.
//   kConvForward:    reads x, w, bias; writes y, within bounds
//   kConvInputGrad:  reads y, w, bias (of x's channels; a transposed convolution's); writes x
//   kConvWeightGrad: reads x, y; writes w
struct ConvProblem {
  struct Operands {
    Buffer x, w, y, bias;
    Bounds bounds{};  // of kConvForward
    // With constant_w: where to keep what solvers make of w, of which tensor's version; and what the solver
    // that runs has made.
    PreparedWeights* kept = nullptr;
    uint32_t version = 0;
    Buffer prepared{};
  };

  int64_t xs[5] = {}, ws[5] = {},
          ys[5] = {};  // element strides: {n, c, d, h, w}, {k, c in group, d, h, w}, {n, k, d, h, w}
  int32_t n = 0, c = 0, k = 0, groups = 1;  // images, input and output channels (of all groups)
  int32_t in[3] = {1, 1, 1}, out[3] = {1, 1, 1}, filter[3] = {1, 1, 1};
  int32_t stride[3] = {1, 1, 1}, padding[3] = {}, dilation[3] = {1, 1, 1};
  c10::ScalarType dtype = c10::ScalarType::Float;
  Op direction = Op::kConvForward;
  int8_t device = 0;
  int8_t has_bias = 0;
  int8_t tf32 = 0;        // as GemmProblem's
  int8_t constant_w = 0;  // 1, of kConvForward: w is the same from one run to the next
  int8_t unused[2] = {};

  Op op() const { return direction; }
  int64_t taps() const { return int64_t(filter[0]) * filter[1] * filter[2]; }
  int64_t out_pixels() const { return int64_t(out[0]) * out[1] * out[2]; }
  int64_t in_pixels() const { return int64_t(in[0]) * in[1] * in[2]; }
  double flops() const { return 2.0 * n * k * (c / groups) * taps() * out_pixels(); }
  std::vector<Span<Operands>> spans() const;
  std::vector<Part<ConvProblem>> parts() const;  // see GemmProblem
  ConvProblem sibling() const;
  std::vector<uint64_t> families() const;
  uint64_t neighbourhood() const;
  void normalize();
  template <class Self, class Visit>
  static void visit(Self& p, Visit&& v) {
    v("n", p.n), v("c", p.c), v("k", p.k), v("g", p.groups), v("in", p.in), v("out", p.out), v("f", p.filter);
    v("s", p.stride), v("p", p.padding), v("d", p.dilation), v("sx", p.xs), v("sw", p.ws), v("sy", p.ys);
    v("bias", p.has_bias), v.if_set("tf32", p.tf32), v.if_set("constant", p.constant_w);
  }
};

// One field of a launch problem's numbers, as its key prints it: `count` values.
struct LaunchField {
  const char* name;
  int count = 1;
};
// Of the family that registered for the op (solver/launch_problem.h).
const std::vector<LaunchField>& launch_fields(Op op);

// An op over memory whose kernels differ in the form of their launch; see solver/launch_problem.h.
struct LaunchProblem {
  static constexpr int kNumbers = 32, kInputs = 5, kOperands = 8;
  struct Operands {
    Buffer in0, in1, in2, in3, in4, out0, out1, out2;
    double scalar = 1;  // an argument of the op on which no solver depends, a correction or a power
  };

  int64_t numbers[kNumbers] = {};      // sizes, strides and flags: the op's family says which
  int64_t extents[kOperands] = {};     // elements from the first to the last of in0..4, out0..2; 0: absent
  c10::ScalarType types[kOperands]{};  // of the operands
  char variant[16] = {};               // what the op's kernels are made for, "sum"; empty where there is one
  c10::ScalarType dtype = c10::ScalarType::Float;
  Op what = Op::kSoftmax;
  int8_t device = 0;
  int8_t unused[5] = {};

  Op op() const { return what; }
  std::vector<Span<Operands>> spans() const;
  std::vector<Part<LaunchProblem>> parts() const;
  // Itself: only the op's family knows what its numbers mean.
  LaunchProblem sibling() const { return *this; }
  // Gives synthetic operands the values that only the op knows to be possible; see LaunchFamily::prepare.
  void prepare(const Operands& operands, Stream& stream) const;
  std::vector<uint64_t> families() const;
  uint64_t neighbourhood() const;
  template <class Self, class Visit>
  static void visit(Self& p, Visit&& v) {
    int at = 0;
    for (const LaunchField& field : launch_fields(p.what)) {
      v(field.name, p.numbers + at, field.count);
      at += field.count;
    }
    v("variant", p.variant), v("extents", p.extents), v("types", p.types);
  }
};

static_assert(std::has_unique_object_representations_v<LaunchProblem>);
static_assert(std::has_unique_object_representations_v<GemmProblem>);
static_assert(std::has_unique_object_representations_v<ConvProblem>);

template <class Problem>
bool same(const Problem& a, const Problem& b) noexcept {
  return std::memcmp(&a, &b, sizeof a) == 0;
}
template <class Problem>
uint64_t hash(const Problem& p) noexcept {
  static_assert(sizeof(Problem) % 8 == 0);
  const char* bytes = reinterpret_cast<const char*>(&p);
  constexpr size_t kLanes = 4;  // independent, so that multiplications overlap
  uint64_t h[kLanes] = {0x9e3779b97f4a7c15ULL, 0xbf58476d1ce4e5b9ULL, 0x94d049bb133111ebULL, 1};
  const auto mix = [](uint64_t& lane, uint64_t word) {
    lane = (lane ^ word) * 0xff51afd7ed558ccdULL;
    lane ^= lane >> 32;
  };
  for (size_t i = 0; i < sizeof p / 8; i++) {
    uint64_t word;
    std::memcpy(&word, bytes + 8 * i, 8);
    mix(h[i % kLanes], word);
  }
  for (size_t lane = 1; lane < kLanes; lane++) mix(h[0], h[lane]);
  return h[0];
}

// A size, or a stride, as neighbourhoods know it.
constexpr int64_t coarse(int64_t size) {
  return size <= 1 ? size : 2 * std::bit_width(static_cast<uint64_t>(size)) + (size % 4 == 0);
}

// "conv_fwd:float32 n=8 c=64 k=64 ... ": the same text on every machine; without the device's number.
std::string key(const GemmProblem& problem);
std::string key(const ConvProblem& problem);
std::string key(const LaunchProblem& problem);

// The problem of a key, for that device. Throws std::invalid_argument for text that key() does not make.
GemmProblem parse_gemm_key(const std::string& key, int device);
ConvProblem parse_conv_key(const std::string& key, int device);
LaunchProblem parse_launch_key(const std::string& key, int device);

}  // namespace dlb::solver
