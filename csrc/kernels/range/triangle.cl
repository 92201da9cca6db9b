// Triangular parts of a batch of contiguous matrices: out[r][c] = keep ? in[r][c] : 0, with in[b][r][c] strided. E is
// an unsigned type of the element's size.
kernel void dlb_triangle(global const E* in, global E* out, long in_offset, long out_offset, long row_stride,
                         long column_stride, long batch_stride, Divider rows, Divider columns, uint count,
                         uint per_item, long diagonal, int upper) {
#if DLB_CPU
  // One item takes whole rows; count is their number.
  const uint begin = get_global_id(0) * per_item, end = min(begin + per_item, count);
  for (uint i = begin; i < end; ++i) {
    const uint batch = i / rows.divisor, r = i - batch * rows.divisor;
    const long n = columns.divisor;
    const long cut = clamp((long)r + diagonal + (upper ? 0 : 1), 0L, n);  // columns of the lower side
    const long first = upper ? cut : 0, last = upper ? n : cut;           // what is kept
    global const E* from = in + in_offset + batch * batch_stride + r * row_stride;
    global E* to = out + out_offset + (long)i * n;
    for (long c = 0; c < first; ++c) to[c] = (E)0;
    for (long c = first; c < last; ++c) to[c] = from[c * column_stride];
    for (long c = last; c < n; ++c) to[c] = (E)0;
  }
#else
  const uint i = get_global_id(0);
  if (i >= count) return;
  const uint row = dlb_divide(i, columns), c = i - row * columns.divisor;
  const uint batch = dlb_divide(row, rows), r = row - batch * rows.divisor;
  const long d = (long)c - (long)r - diagonal;
  const bool keep = upper ? d >= 0 : d <= 0;
  out[out_offset + i] = keep ? in[in_offset + batch * batch_stride + r * row_stride + c * column_stride] : (E)0;
#endif
}
