// Reductions on the host. Compiled with -O3, which makes SIMD of the loops here, once for AVX2 too.
#include "distributed/host_reduction.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#define DLB_HOST_AVX2 __attribute__((target("avx2,f16c")))
#endif

namespace dlb::distributed {
namespace {

// So many elements are accumulated at a time, on the stack and thus in the first cache.
constexpr size_t kBlock = 256;

#define DLB_INLINE inline __attribute__((always_inline))

// Integers wrap around, as those of gloo do; unsigned arithmetic makes that well defined.
template <class T>
using Wrapping =
    typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

struct SumOf {
  template <class A>
  static DLB_INLINE A apply(A a, A b) {
    return static_cast<A>(static_cast<Wrapping<A>>(a) + static_cast<Wrapping<A>>(b));
  }
};
struct ProductOf {
  template <class A>
  static DLB_INLINE A apply(A a, A b) {
    return static_cast<A>(static_cast<Wrapping<A>>(a) * static_cast<Wrapping<A>>(b));
  }
};
struct LeastOf {
  template <class A>
  static DLB_INLINE A apply(A a, A b) {
    return b < a ? b : a;
  }
};
struct GreatestOf {
  template <class A>
  static DLB_INLINE A apply(A a, A b) {
    return a < b ? b : a;
  }
};
struct AndOf {
  template <class A>
  static DLB_INLINE A apply(A a, A b) {
    return static_cast<A>(a & b);
  }
};
struct OrOf {
  template <class A>
  static DLB_INLINE A apply(A a, A b) {
    return static_cast<A>(a | b);
  }
};
struct XorOf {
  template <class A>
  static DLB_INLINE A apply(A a, A b) {
    return static_cast<A>(a ^ b);
  }
};

// Conversions of a block to and from the type that it is accumulated in.
struct Converted {
  template <class T, class A>
  static DLB_INLINE void load(A* to, const T* from, size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] = static_cast<A>(from[i]);
  }
  template <class T, class A>
  static DLB_INLINE void store(T* to, const A* from, size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
  }
};

template <class T, class A, class Op, class Conversion>
DLB_INLINE void reduce_blocks(T* out, const void* const* sources, int count, size_t elements) {
  alignas(64) A sum[kBlock];
  alignas(64) A next[kBlock];
  for (size_t at = 0; at < elements; at += kBlock) {
    const size_t n = std::min(kBlock, elements - at);
    Conversion::load(sum, static_cast<const T*>(sources[0]) + at, n);
    for (int i = 1; i < count; ++i) {
      Conversion::load(next, static_cast<const T*>(sources[i]) + at, n);
      for (size_t j = 0; j < n; ++j) sum[j] = Op::template apply<A>(sum[j], next[j]);
    }
    Conversion::store(out + at, sum, n);
  }
}

template <class T, class A, class Op>
void reduce_plain(void* out, const void* const* sources, int count, size_t elements) {
  reduce_blocks<T, A, Op, Converted>(static_cast<T*>(out), sources, count, elements);
}

#ifdef DLB_HOST_AVX2
// c10 converts float16 an element at a time; the CPU has instructions for eight.
struct ConvertedF16c {
  static DLB_HOST_AVX2 void load(float* to, const c10::Half* from, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    for (; i < count; ++i) to[i] = _cvtsh_ss(from[i].x);
  }
  static DLB_HOST_AVX2 void store(c10::Half* to, const float* from, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < count; ++i) to[i].x = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
  }
};

template <class T, class A, class Op>
DLB_HOST_AVX2 void reduce_avx2(void* out, const void* const* sources, int count, size_t elements) {
  using Conversion = std::conditional_t<std::is_same_v<T, c10::Half>, ConvertedF16c, Converted>;
  reduce_blocks<T, A, Op, Conversion>(static_cast<T*>(out), sources, count, elements);
}
#endif

template <class T, class A, class Op>
HostReduction compiled() {
#ifdef DLB_HOST_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return reduce_avx2<T, A, Op>;
#endif
  return reduce_plain<T, A, Op>;
}

template <class T, class A = T>
HostReduction of_number(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return compiled<T, A, SumOf>();
    case c10d::ReduceOp::PRODUCT:
      return compiled<T, A, ProductOf>();
    case c10d::ReduceOp::MIN:
      return compiled<T, A, LeastOf>();
    case c10d::ReduceOp::MAX:
      return compiled<T, A, GreatestOf>();
    default:
      return nullptr;
  }
}

template <class T>
HostReduction of_integer(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::BAND:
      return compiled<T, T, AndOf>();
    case c10d::ReduceOp::BOR:
      return compiled<T, T, OrOf>();
    case c10d::ReduceOp::BXOR:
      return compiled<T, T, XorOf>();
    default:
      return of_number<T>(op);
  }
}

// A bool is a byte of 0 or 1, and stays one.
HostReduction of_bool(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::MAX:
      return compiled<uint8_t, uint8_t, OrOf>();
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
      return compiled<uint8_t, uint8_t, AndOf>();
    default:
      return nullptr;
  }
}

}  // namespace

HostReduction host_reduction(c10::ScalarType dtype, const c10d::ReduceOp& op) {
  switch (dtype) {
    case at::kFloat:
      return of_number<float>(op);
    case at::kDouble:
      return of_number<double>(op);
    case at::kHalf:
      return of_number<c10::Half, float>(op);
    case at::kBFloat16:
      return of_number<c10::BFloat16, float>(op);
    case at::kChar:
      return of_integer<int8_t>(op);
    case at::kByte:
      return of_integer<uint8_t>(op);
    case at::kInt:
      return of_integer<int32_t>(op);
    case at::kLong:
      return of_integer<int64_t>(op);
    case at::kBool:
      return of_bool(op);
    default:
      return nullptr;
  }
}

}  // namespace dlb::distributed
