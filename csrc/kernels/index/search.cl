// Binary search of values (A, n a row) in sorted rows of boundaries (A); rows may share one row of boundaries. The result
// is the first place whose boundary is >= the value, or > for `right`; NaN sorts last.
kernel void dlb_search(global const A_T* boundaries, long boundaries_offset, global const A_T* values,
                       long values_offset, global const long* sorter, long sorter_offset, global int* out,
                       long out_offset, ulong count, uint per_item, ulong per_row, long length, int shared_row,
                       int sorted_by, int right, int wide) {
  const ulong begin = (ulong)get_global_id(0) * per_item, end = min(begin + per_item, count);
  for (ulong i = begin; i < end; ++i) {
    const T value = LOAD_A(values, values_offset + i);
    const long base = shared_row ? 0 : (long)(i / per_row) * length;
    long low = 0, high = length;
    while (low < high) {
      const long middle = low + (high - low) / 2;
      const long place = sorted_by ? sorter[sorter_offset + base + middle] : middle;
      const T boundary = LOAD_A(boundaries, boundaries_offset + base + place);
      if (right ? !(boundary > value) : !(boundary >= value)) low = middle + 1;
      else high = middle;
    }
    if (wide) ((global long*)out)[out_offset + i] = low;
    else out[out_offset + i] = (int)low;
  }
}
