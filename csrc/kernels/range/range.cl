// Sequences: out[i] as a function of i. A is the output's type, T computes (double for floating outputs where the
// device has it), R is the type that i is multiplied in.
#define RANGE_LOOP(value)                                                             \
  const uint begin = get_global_id(0) * per_item, end = min(begin + per_item, count); \
  _Pragma("clang loop vectorize(assume_safety)") for (uint i = begin; i < end; ++i) STORE_A(out, offset + i, value);

kernel void dlb_arange(global A_T* out, long offset, uint count, uint per_item, T start, T step) {
  RANGE_LOOP(start + step * (R)i)
}

// From both ends, so that the last element is exactly `stop`.
inline T dlb_linear(uint i, uint count, T start, T stop, T step) {
  return i < count / 2 ? start + step * (R)i : stop - step * (R)(count - 1 - i);
}
kernel void dlb_linspace(global A_T* out, long offset, uint count, uint per_item, T start, T stop, T step){
    RANGE_LOOP(dlb_linear(i, count, start, stop, step))}
#ifdef POWER
kernel void dlb_logspace(global A_T* out, long offset, uint count, uint per_item, T start, T stop, T step, T base) {
  RANGE_LOOP(pow(base, dlb_linear(i, count, start, stop, step)))
}
#endif
