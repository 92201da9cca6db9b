// One coordinate of the points of a histogram: which bin of ascending edges it is in. The last edge belongs to the last
// bin. index[i] = index[i] * bins + bin, or -1 from the first coordinate outside of all bins on. With the last
// coordinate index becomes a valid one and `values` is the point's weight (1 without weights), or 0 outside.
kernel void dlb_histogram_place(global const A_T* x, long x_offset, long x_stride, global const A_T* edges,
                                long edges_offset, uint edge_count, global int* index, long index_offset,
                                global const A_T* weights, long weights_offset, long weights_stride, int weighted,
                                global A_T* values, long values_offset, int first, int last, uint n, uint per_item) {
  const uint begin = get_global_id(0) * per_item, end = min(begin + per_item, n);
  x += x_offset, edges += edges_offset, index += index_offset;
  for (uint i = begin; i < end; ++i) {
    const T v = LOAD_A(x, i * x_stride);
    int at = first ? 0 : index[i];
    if (at >= 0 && v >= LOAD_A(edges, 0) && v <= LOAD_A(edges, edge_count - 1)) {
      uint low = 0;
      for (uint length = edge_count; length > 1;) {
        const uint part = length / 2;
        low += LOAD_A(edges, low + part) <= v ? part : 0;
        length -= part;
      }
      at = at * (int)(edge_count - 1) + (int)min(low, edge_count - 2);
    } else {
      at = -1;
    }
    index[i] = last ? max(at, 0) : at;
    if (!last) continue;
    const T weight = weighted ? LOAD_A(weights, weights_offset + i * weights_stride) : (T)1;
    STORE_A(values, values_offset + i, at < 0 ? (T)0 : weight);
  }
}
