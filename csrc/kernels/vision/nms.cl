// Non-maximum suppression of boxes that are sorted by their scores, best first. A_T: the boxes' type, which is T.
#pragma OPENCL FP_CONTRACT OFF

// Whether a is above the threshold, as a fraction of the two boxes' union.
inline int overlaps(T ax1, T ay1, T ax2, T ay2, T a_area, T bx1, T by1, T bx2, T by2, T b_area, T threshold) {
  const T width = fmax(fmin(ax2, bx2) - fmax(ax1, bx1), (T)0), height = fmax(fmin(ay2, by2) - fmax(ay1, by1), (T)0);
  const T shared = width * height;
  return shared / (a_area + b_area - shared) > threshold;
}

#ifdef DLB_CPU
// One work-item keeps a box after the other, and each suppresses those behind it. boxes: [4, n]; areas, gone: n elements
// for the kernel's own use; kept: n places and then their number.
kernel void nms_greedy(global const A_T* boxes, long offset, global const long* order, long order_offset,
                       global A_T* areas, long areas_offset, global int* gone, long gone_offset, global long* kept,
                       long kept_offset, int n, T threshold) {
  global const A_T *x1 = boxes + offset, *y1 = x1 + n, *x2 = y1 + n, *y2 = x2 + n;
  areas += areas_offset, gone += gone_offset, kept += kept_offset, order += order_offset;
#pragma clang loop vectorize(assume_safety)
  for (int j = 0; j < n; ++j) areas[j] = (x2[j] - x1[j]) * (y2[j] - y1[j]), gone[j] = 0;
  long count = 0;
  for (int i = 0; i < n; ++i) {
    if (gone[i]) continue;
    kept[count++] = order[i];
    const T ax1 = x1[i], ay1 = y1[i], ax2 = x2[i], ay2 = y2[i], area = areas[i];
#pragma clang loop vectorize(assume_safety)
    for (int j = i + 1; j < n; ++j)
      gone[j] |= overlaps(ax1, ay1, ax2, ay2, area, x1[j], y1[j], x2[j], y2[j], areas[j], threshold);
  }
  kept[n] = count;
}
#else
#define WORD 64  // boxes of a word of the mask

// masks[i][w]: which boxes of word w box i suppresses, all of them behind it. Work-groups of WORD: (words, words).
kernel void nms_mask(global const A_T* boxes, long offset, global ulong* masks, long masks_offset, int n, T threshold) {
  local T box[4][WORD];
  const int words = (n + WORD - 1) / WORD, lane = get_local_id(0);
  const int word = get_group_id(0) % words, first = get_group_id(0) / words * WORD, i = first + lane;
  if (word * WORD < first) return;  // the same for the whole group
  const int mine = min(word * WORD + lane, n - 1);
  boxes += offset;
  for (int k = 0; k < 4; ++k) box[k][lane] = boxes[(long)k * n + mine];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (i >= n) return;
  const T x1 = boxes[i], y1 = boxes[n + i], x2 = boxes[2L * n + i], y2 = boxes[3L * n + i],
          area = (x2 - x1) * (y2 - y1);
  ulong mask = 0;
  const int end = min(WORD, n - word * WORD);
  for (int j = max(0, i + 1 - word * WORD); j < end; ++j) {
    const T bx1 = box[0][j], by1 = box[1][j], bx2 = box[2][j], by2 = box[3][j];
    const T other = (bx2 - bx1) * (by2 - by1);
    mask |= (ulong)overlaps(x1, y1, x2, y2, area, bx1, by1, bx2, by2, other, threshold) << j;
  }
  masks[masks_offset + (long)i * words + word] = mask;
}

// One work-group goes through the words: which boxes of a word are kept is settled by one work-item, and all of them
// strike what these suppress. gone: words for the kernel's own use.
kernel void nms_scan(global const ulong* masks, long masks_offset, global const long* order, long order_offset,
                     global ulong* gone, long gone_offset, global long* kept, long kept_offset, int n) {
  local ulong own[WORD], keeps;
  const int words = (n + WORD - 1) / WORD, lane = get_local_id(0), lanes = get_local_size(0);
  long count = 0;
  masks += masks_offset, gone += gone_offset;
  for (int w = lane; w < words; w += lanes) gone[w] = 0;
  for (int word = 0; word < words; ++word) {
    const int first = word * WORD, size = min(WORD, n - first);
    barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
    for (int j = lane; j < size; j += lanes) own[j] = masks[(long)(first + j) * words + word];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0) {
      ulong struck = gone[word], left = 0;
      for (int j = 0; j < size; ++j)
        if (!(struck >> j & 1)) left |= 1UL << j, struck |= own[j];
      keeps = left;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const ulong left = keeps;
    for (int j = lane; j < size; j += lanes)
      if (left >> j & 1)
        kept[kept_offset + count + popcount(left & ((1UL << j) - 1))] = order[order_offset + first + j];
    count += popcount(left);
    for (int w = word + 1 + lane; w < words; w += lanes) {
      ulong struck = gone[w];
      for (int j = 0; j < size; ++j)
        if (left >> j & 1) struck |= masks[(long)(first + j) * words + w];
      gone[w] = struck;
    }
  }
  if (lane == 0) kept[kept_offset + n] = count;
}
#endif
