"""Functions in front of generated kernels that no op row and no file of csrc/kernels has."""

from __future__ import annotations

from collections.abc import Iterable

from dlbackend import _C

ERRORS = "dlb_errors"  # the parameter of kernels that report errors, which launches do not give (runtime/user_kernel.h)

_ALWAYS = """
inline __attribute__((always_inline)) long dlb_floor_div(long a, long b) {
  const long q = a / b;
  return q - (q * b != a && (a < 0) != (b < 0));
}
inline __attribute__((always_inline)) long dlb_floor_mod(long a, long b) { return a - dlb_floor_div(a, b) * b; }
"""

# An index that lies within its dimension is what it is; another is reported and becomes 0.
_CHECKED = """
inline __attribute__((always_inline)) long dlb_checked(long i, long size, volatile global int* errors) {
  if (i >= 0 && i < size) return i;
  dlb_report(errors, {SITE}, i, size);
  return 0;
}
"""

# Sums whose terms may be regrouped, which is what makes vectors of a loop over them.
_REGROUP = """
inline __attribute__((always_inline)) {T} dlb_sum_{T}({T} a, {T} b) {
#if __clang_major__ > 10
#pragma clang fp reassociate(on)
#endif
  return a + b;
}
inline __attribute__((always_inline)) {T} dlb_product_{T}({T} a, {T} b) {
#if __clang_major__ > 10
#pragma clang fp reassociate(on)
#endif
  return a * b;
}
"""

# Integers in the order of floats; NaN is what the caller says.
_ORDERED = """
inline __attribute__((always_inline)) int dlb_ordered(float x, int nan) {
  const int bits = as_int(x);
  return (bits & 0x7fffffff) > 0x7f800000 ? nan : bits < 0 ? bits ^ 0x7fffffff : bits;
}
inline __attribute__((always_inline)) float dlb_from_ordered(int key) {
  return as_float(key < 0 ? key ^ 0x7fffffff : key);
}
"""

# Numbers of the bits of csrc/kernels/common/philox.clh, as Inductor makes them on GPUs.
_RANDOM = """
inline __attribute__((always_inline)) float dlb_uniform(uint bits) {
  const int x = (int)bits;
  return (float)(x < 0 ? -x - 1 : x) * 4.6566127342e-10f;
}
inline __attribute__((always_inline)) float dlb_rand(long seed, long offset) {
  return dlb_uniform(dlb_philox(seed, offset).x);
}
inline __attribute__((always_inline)) long dlb_randint64(long seed, long offset, long low, long high) {
  const uint4 bits = dlb_philox(seed, offset);
  const ulong number = (ulong)bits.x | (ulong)bits.y << 32;
  return (long)(number % (ulong)(high - low)) + low;
}
"""
_RANDN = """
inline __attribute__((always_inline)) float dlb_randn(long seed, long offset) {
  const uint4 bits = dlb_philox(seed, offset);
  const float u = fmax(dlb_uniform(bits.x), 1.0e-7f), angle = 6.283185307179586f * dlb_uniform(bits.y);
  return sqrt(-2.0f * dlb_value_log_f32(u)) * dlb_value_cos_f32(angle);
}
"""

_POLYGAMMA = """
inline {T} dlb_polygamma_{N}({T} n, {T} x) {
  if (n == 0) return dlb_value_digamma_{N}(x);
  const {T} factorial = dlb_value_exp_{N}(dlb_value_lgamma_{N}(n + 1));
  return (fmod(n, ({T})2) == 0 ? -1 : 1) * factorial * dlb_value_zeta_{N}(n + 1, x);
}
"""

# Adding to an element that other work-items add to.
_ATOMIC_WORD = """
inline void dlb_atomic_add_{N}(global {S}* array, long place, {T} value) {
  volatile global {W}* word = (volatile global {W}*)(array + place);
  {W} seen = *word, old;
  do {
    old = seen;
    const {T} sum = (as_{S}(old)) + value;
    seen = {F}(word, old, as_{W}(sum));
  } while (seen != old);
}
"""
_ATOMIC_HALF = """
inline void dlb_atomic_add_{N}(global ushort* array, long place, float value) {
  const size_t at = (size_t)(array + place);
  volatile global uint* word = (volatile global uint*)(at & ~(size_t)3);
  const int shift = (at & 2) ? 16 : 0;
  uint seen = *word, old;
  do {
    old = seen;
    const float sum = dlb_from_{N}((ushort)(old >> shift)) + value;
    seen = atomic_cmpxchg(word, old, (old & ~(0xffffu << shift)) | (uint)dlb_to_{N}(sum) << shift);
  } while (seen != old);
}
"""
_ATOMIC_BYTES = """
inline void dlb_atomic_add_{N}(global {S}* array, long place, {T} value) {
  const size_t at = (size_t)(array + place);
  volatile global uint* word = (volatile global uint*)(at & ~(size_t)3);
  const int shift = (int)(at & 3) * 8;
  const uint mask = {M}u << shift;
  uint seen = *word, old;
  do {
    old = seen;
    const uint sum = ((old >> shift) + (uint)value) & {M}u;
    seen = atomic_cmpxchg(word, old, (old & ~mask) | sum << shift);
  } while (seen != old);
}
"""
_INT64_ATOMICS = "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable\n"


def _fill(text: str, **names: str) -> str:
    for name, value in names.items():
        text = text.replace("{" + name + "}", value)
    return text


def _atomic(name: str) -> str:
    if name in ("f16", "bf16"):
        return _fill(_ATOMIC_HALF, N=name)
    narrow = {"i8": ("char", "0xff"), "u8": ("uchar", "0xff"), "bool": ("uchar", "0xff")}
    narrow |= {"i16": ("short", "0xffff"), "u16": ("ushort", "0xffff")}
    if name in narrow:
        storage, mask = narrow[name]
        return _fill(_ATOMIC_BYTES, N=name, S=storage, T="int" if name == "bool" else storage, M=mask)
    words = {"f32": ("float", "uint"), "i32": ("int", "int"), "u32": ("uint", "uint")}
    if name in words:
        return _fill(_ATOMIC_WORD, N=name, S=words[name][0], T=words[name][0], W=words[name][1], F="atomic_cmpxchg")
    wide = {"f64": ("double", "ulong"), "i64": ("long", "long"), "u64": ("ulong", "ulong")}[name]
    return _INT64_ATOMICS + _fill(_ATOMIC_WORD, N=name, S=wide[0], T=wide[0], W=wide[1], F="atom_cmpxchg")


def helpers_source(names: Iterable[str]) -> str:
    """The text of the helpers with these names, and of those that every kernel may call."""
    text = _ALWAYS
    for name in sorted(names):
        what, _, kind = name.partition("_")
        if what == "regroup":
            text += _fill(_REGROUP, T=kind)
        elif what == "ordered":
            text += _ORDERED
        elif what == "checked":
            text += _C.DEVICE_ERROR_SOURCE + _fill(_CHECKED, SITE=str(_C.COMPILED_SITE))
        elif what == "random":
            text += _RANDN if kind == "normal" else _C.kernel_file("common/philox.clh") + _RANDOM
        elif what == "polygamma":
            text += _fill(_POLYGAMMA, N=kind, T="double" if kind == "f64" else "float")
        elif what == "atomic":
            text += _atomic(kind)
    return text
