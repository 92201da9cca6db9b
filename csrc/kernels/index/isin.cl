// Finds the elements (A) that are among the test elements (A): out[i] = found != invert.

// Few tests: each element is compared with all of them.
kernel void dlb_isin_compared(global const A_T* elements, long elements_offset, global const A_T* tests,
                              long tests_offset, global uchar* out, long out_offset, ulong count, uint per_item,
                              uint test_count, int invert) {
  elements += elements_offset, tests += tests_offset, out += out_offset;
#if DLB_CPU
  // A block of results stays in the first cache while all tests go over it.
  enum { BLOCK = 1024 };
  const ulong end = min((get_global_id(0) + 1) * (ulong)per_item, count);
  for (ulong begin = get_global_id(0) * (ulong)per_item; begin < end; begin += BLOCK) {
    const int n = min((ulong)BLOCK, end - begin);
    global const A_T* from = elements + begin;
    global uchar* to = out + begin;
    for (int i = 0; i < n; ++i) to[i] = invert;
    for (uint j = 0; j < test_count; ++j) {
      const T test = LOAD_A(tests, j);
#pragma clang loop vectorize(assume_safety)
      for (int i = 0; i < n; ++i) to[i] = LOAD_A(from, i) == test ? !invert : to[i];
    }
  }
#else
  const ulong i = get_global_id(0);
  if (i >= count) return;
  const T element = LOAD_A(elements, i);
  int found = 0;
  for (uint j = 0; j < test_count; ++j) found |= element == LOAD_A(tests, j);
  out[i] = found != invert;
#endif
}

// Sorted tests: binary search without branches for the last test that is not greater. NaN is found nowhere.
kernel void dlb_isin_sorted(global const A_T* elements, long elements_offset, global const A_T* tests,
                            long tests_offset, global uchar* out, long out_offset, ulong count, uint per_item,
                            uint test_count, int invert) {
  elements += elements_offset, tests += tests_offset, out += out_offset;
  const ulong begin = get_global_id(0) * (ulong)per_item, end = min(begin + per_item, count);
  for (ulong i = begin; i < end; ++i) {
    const T element = LOAD_A(elements, i);
    uint low = 0;
    for (uint length = test_count; length > 1;) {
      const uint part = length / 2;
      low += LOAD_A(tests, low + part) <= element ? part : 0;
      length -= part;
    }
    out[i] = (LOAD_A(tests, low) == element) != invert;
  }
}
