// Problems: what an op that has several implementations is asked to do, as plain values.
//
// Two equal problems share what was chosen for them, so a problem holds all that the choice may depend on.
// Its operands have what may differ between two calls of one problem (buffers, scalar factors). The framework
// sees problems and operands by their base classes; each primitive (csrc/primitives) derives its own, with
// named and typed fields, and registers an op for it (solver/op.h).
#pragma once
#include <c10/core/ScalarType.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cl/buffer.h"

namespace dlb::solver {

class Op;
class PreparedWeights;  // solver/prepared.h

// The head of every problem. Derived problems are trivially copyable and have no padding, since they are
// compared and hashed by their bytes.
struct Problem {
  const Op* op = nullptr;
  c10::ScalarType dtype = c10::ScalarType::Float;  // of the computation; operands may have others
  int8_t device = 0;                               // index of the OpenCL device
  int8_t tf32 = 0;  // 1: operands, which are float32, may be rounded to TF32 (10 bits of mantissa)
  int8_t reserved[5] = {};
};

// The head of every problem's operands. Derived operands are trivially copyable.
struct Operands {
  // Where to keep what solvers make of constant weights (solver/prepared.h), of which version of which part
  // of their storage. Null unless the problem says that its weights are constant.
  PreparedWeights* kept = nullptr;
  int64_t kept_offset = 0;  // elements into the storage
  uint32_t kept_version = 0;
  Buffer prepared{};  // what the solver that runs has made of the weights
};

// One operand of a problem, as trials and checks need it.
struct Span {
  Buffer Operands::*buffer = nullptr;
  int64_t elements = 0;  // from the first to the last one that the problem touches
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool result = false;
  bool positive = false;  // trials fill it with values in [0, 1) in place of [-1, 1)
};

// The span of an operand that is a member of a derived struct: span(&GemmOperands::a, ...).
template <class Derived>
Span span(Buffer Derived::*buffer, int64_t elements, c10::ScalarType dtype, bool result = false,
          bool positive = false) {
  return {static_cast<Buffer Operands::*>(buffer), elements, dtype, result, positive};
}

// A copy of a value of any type derived from Base, without allocation. At most `kMost` bytes.
template <class Base, size_t kMost>
class Copied {
 public:
  Copied(const Base& value, size_t bytes) { std::memcpy(bytes_, &value, bytes); }
  template <class Derived>
  explicit Copied(const Derived& value) : Copied(value, sizeof value) {
    static_assert(std::is_base_of_v<Base, Derived> && !std::is_same_v<Base, Derived>);
    static_assert(std::is_trivially_copyable_v<Derived> && sizeof(Derived) <= kMost);
  }
  Base& operator*() { return *std::launder(reinterpret_cast<Base*>(bytes_)); }
  const Base& operator*() const { return *std::launder(reinterpret_cast<const Base*>(bytes_)); }
  Base* operator->() { return &**this; }
  const Base* operator->() const { return &**this; }

 private:
  alignas(8) std::byte bytes_[kMost];
};

constexpr size_t kMostProblemBytes = 448, kMostOperandBytes = 288;

class StoredProblem : public Copied<Problem, kMostProblemBytes> {
 public:
  using Copied::Copied;
  explicit StoredProblem(const Problem& problem);  // of whatever type its op says
};
using StoredOperands = Copied<Operands, kMostOperandBytes>;

// Bytes of the derived problem; the op knows.
size_t problem_bytes(const Problem& problem) noexcept;

inline bool same(const Problem& a, const Problem& b) noexcept {
  return a.op == b.op && std::memcmp(&a, &b, problem_bytes(a)) == 0;
}

// A hash of `bytes` bytes, a multiple of eight. Four independent lanes let multiplications overlap.
inline uint64_t hash_bytes(const void* value, size_t bytes) noexcept {
  constexpr size_t kLanes = 4;
  uint64_t h[kLanes] = {0x9e3779b97f4a7c15ULL, 0xbf58476d1ce4e5b9ULL, 0x94d049bb133111ebULL, 1};
  const auto mix = [](uint64_t& lane, uint64_t word) {
    lane = (lane ^ word) * 0xff51afd7ed558ccdULL;
    lane ^= lane >> 32;
  };
  const auto* data = static_cast<const std::byte*>(value);
  for (size_t i = 0; i < bytes / 8; i++) {
    uint64_t word;
    std::memcpy(&word, data + 8 * i, 8);
    mix(h[i % kLanes], word);
  }
  for (size_t lane = 1; lane < kLanes; lane++) mix(h[0], h[lane]);
  return h[0];
}
inline uint64_t hash(const Problem& problem) noexcept {
  return hash_bytes(&problem, problem_bytes(problem));
}
// The hash of a typed problem, whose size the compiler knows.
template <class P>
uint64_t hash_of(const P& problem) noexcept {
  static_assert(std::has_unique_object_representations_v<P> && sizeof(P) % 8 == 0);
  return hash_bytes(&problem, sizeof problem);
}

// A size as size buckets know it: to a factor of two, and whether vectors of four divide it.
constexpr int64_t coarse(int64_t size) {
  return size <= 1 ? size : 2 * std::bit_width(static_cast<uint64_t>(size)) + (size % 4 == 0);
}
// A stride as size buckets know it; the sizes tell how long it is.
constexpr int64_t coarse_stride(int64_t stride) {
  return stride <= 1 ? stride : 2 + (stride % 4 == 0);
}

}  // namespace dlb::solver
