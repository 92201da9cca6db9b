// clang-format off
// Bags of rows of an embedding table (A): the sum, mean or maximum of the rows that each bag's indices name. On CPUs a
// work-item has a run of bags and a block of columns at a time, on GPUs one column of one bag.
#include "common/touch.clh"
#include "kernels/index/params.h"

inline long dlb_number(global const int* numbers, ulong at, int wide) {
  return wide ? ((global const long*)numbers)[at] : (long)numbers[at];
}
inline void dlb_put(global int* numbers, ulong at, int wide, long value) {
  if (wide)
    ((global long*)numbers)[at] = value;
  else
    numbers[at] = (int)value;
}

// Where a bag's indices begin and end (the last one's at the end of all, whatever offset follows, as on CUDA); what is
// wrong with the offsets is reported, and the bag empty.
inline void dlb_bag_range(global const int* offsets, uint bag, const BagParams* p, volatile global int* error,
                          long* begin, long* end) {
  const long from = dlb_number(offsets, p->offsets + bag, p->wide);
  const bool last = bag + 1 >= p->bags;
  const long next = last && !p->ends ? (long)p->count : dlb_number(offsets, p->offsets + bag + 1, p->wide);
  const long to = last && next <= (long)p->count ? (long)p->count : next;
  *begin = *end = 0;
  if (bag == 0 && from != 0)
    dlb_report(error, p->first_site, from, 0);
  else if (from < 0 || from > (long)p->count || to < 0 || to > (long)p->count)
    dlb_report(error, p->range_site, from < 0 || from > (long)p->count ? from : to, 0);
  else if (to < from)
    dlb_report(error, p->order_site, to - from, 0);
  else
    *begin = from, *end = to;
}

// The row that an index names: -1 for the padding, and for one out of bounds, which is reported.
inline long dlb_bag_row(long row, const BagParams* p, volatile global int* error) {
  if (row == p->padding && row >= 0) return -1;
  if (row < 0 || row >= p->rows) {
    dlb_report(error, p->site, row, p->rows);
    return -1;
  }
  return row;
}

#if DLB_CPU
#define COLUMNS 64  // of a block
#define EACH_COLUMN _Pragma("clang loop vectorize(assume_safety)") for (int c = 0; c < width; ++c)
// Rows lie anywhere in the table, so that memory is waited for unless they are asked for some rows ahead.
#define AHEAD 16
#define TOUCH(p) DLB_TOUCH((const void*)(size_t)(p))
#ifdef PLAIN_ELEMENTS
#ifdef DLB_COMPUTE_f64
#define VECTOR double8
#define VECTOR_SIZE 8
#define LOAD_VECTOR vload8
#define STORE_VECTOR vstore8
#else
#define VECTOR float16
#define VECTOR_SIZE 16
#define LOAD_VECTOR vload16
#define STORE_VECTOR vstore16
#endif
#endif
inline void dlb_touch_ahead(global const A_T* weight, global const int* indices, long i, const BagParams* p, uint first,
                            int width) {
  if (i + AHEAD >= p->count) return;
  const long row = dlb_number(indices, p->indices + i + AHEAD, p->wide);
  if ((ulong)row >= (ulong)p->rows) return;
  global const A_T* from = weight + p->weight + row * p->row_stride + first;
  for (int c = 0; c < width; c += 64 / sizeof(A_T)) TOUCH(from + c);
}

// One bag, columns from `first` on, `width` of them.
inline void dlb_bag_block(global const A_T* weight, global const int* indices, global const A_T* scales, global A_T* out,
                          global int* bag_of, global int* bag_size, global int* maxima, volatile global int* error,
                          const BagParams* p, uint bag, long begin, long end, uint first, int width) {
  T sum[COLUMNS];
  int where[COLUMNS];
  long counted = 0;
  EACH_COLUMN sum[c] = 0, where[c] = 0;
  for (long i = begin; i < end; ++i) {
    if (first == 0 && p->bag_of >= 0) dlb_put(bag_of, p->bag_of + i, p->wide, bag);
    const long row = dlb_bag_row(dlb_number(indices, p->indices + i, p->wide), p, error);
    dlb_touch_ahead(weight, indices, i, p, first, width);
    if (row < 0) continue;
    global const A_T* from = weight + p->weight + row * p->row_stride + first;
    if (p->mode == BAG_MAX) {
      const int fresh = counted == 0;
      EACH_COLUMN {
        const T v = LOAD_A(from, c);
        const int take = fresh || v > sum[c];
        sum[c] = take ? v : sum[c];
        where[c] = take ? (int)row : where[c];
      }
    } else if (p->scales >= 0) {
      const T scale = LOAD_A(scales, p->scales + i);
      EACH_COLUMN sum[c] += LOAD_A(from, c) * scale;
    } else {
      EACH_COLUMN sum[c] += LOAD_A(from, c);
    }
    ++counted;
  }
  if (first == 0) dlb_put(bag_size, p->bag_size + bag, p->wide, counted);
  if (p->mode == BAG_MEAN && counted > 1) {
    const T n = (T)counted;
    EACH_COLUMN sum[c] = sum[c] / n;
  }
  const ulong at = (ulong)bag * p->width + first;
  EACH_COLUMN STORE_A(out, p->out + at + c, sum[c]);
  if (p->mode == BAG_MAX)
    for (int c = 0; c < width; ++c) dlb_put(maxima, p->maxima + at + c, p->wide, where[c]);
}

#ifdef VECTOR
// Sums and means of columns of whole vectors, which stay in registers: N vectors from `first` on. For elements that are
// computed in the type that they are stored in.
#define DEFINE_VECTORS(N)                                                                                          \
  inline long dlb_bag_vectors##N(global const A_T* weight, global const int* indices, global A_T* out,             \
                                 volatile global int* error, const BagParams* p, uint bag, long begin, long end,   \
                                 uint first) {                                                                     \
    VECTOR sum[N];                                                                                                 \
    long counted = 0;                                                                                              \
    _Pragma("unroll") for (int v = 0; v < N; ++v) sum[v] = 0;                                                      \
    for (long i = begin; i < end; ++i) {                                                                           \
      dlb_touch_ahead(weight, indices, i, p, first, N * VECTOR_SIZE);                                              \
      const long row = dlb_bag_row(dlb_number(indices, p->indices + i, p->wide), p, error);                        \
      if (row < 0) continue;                                                                                       \
      global const A_T* from = weight + p->weight + row * p->row_stride + first;                                   \
      _Pragma("unroll") for (int v = 0; v < N; ++v) sum[v] += LOAD_VECTOR(v, from);                                \
      ++counted;                                                                                                   \
    }                                                                                                              \
    const T n = p->mode == BAG_MEAN && counted > 1 ? (T)counted : (T)1;                                            \
    global A_T* to = out + p->out + (ulong)bag * p->width + first;                                                 \
    _Pragma("unroll") for (int v = 0; v < N; ++v) STORE_VECTOR(n == 1 ? sum[v] : sum[v] / n, v, to);               \
    return counted;                                                                                                \
  }
DEFINE_VECTORS(8)
DEFINE_VECTORS(4)
DEFINE_VECTORS(1)

// The columns that vectors do, from the first on; how many they are.
inline uint dlb_bag_columns(global const A_T* weight, global const int* indices, global A_T* out, global int* bag_of,
                            global int* bag_size, volatile global int* error, const BagParams* p, uint bag, long begin,
                            long end) {
  if (p->mode == BAG_MAX || p->scales >= 0 || p->width < VECTOR_SIZE) return 0;
  uint first = 0;
  long counted = 0;
#define VECTORS(N)                                                     \
  for (; p->width - first >= N * VECTOR_SIZE; first += N * VECTOR_SIZE) \
    counted = dlb_bag_vectors##N(weight, indices, out, error, p, bag, begin, end, first);
  VECTORS(8)
  VECTORS(4)
  VECTORS(1)
  for (long i = begin; i < end && p->bag_of >= 0; ++i) dlb_put(bag_of, p->bag_of + i, p->wide, bag);
  dlb_put(bag_size, p->bag_size + bag, p->wide, counted);
  return first;
}
#endif

#else
// One column of one bag. Several indices are read at once, and then the rows that they name, so that these loads do not
// wait for each other.
inline void dlb_bag_column(global const A_T* weight, global const int* indices, global const A_T* scales, global A_T* out,
                           global int* bag_of, global int* bag_size, global int* maxima, volatile global int* error,
                           const BagParams* p, uint bag, long begin, long end, uint column) {
  enum { TOGETHER = 4 };
  T sum = 0;
  int where = 0;
  long counted = 0;
  for (long first = begin; first < end; first += TOGETHER) {
    long number[TOGETHER];
    T value[TOGETHER];
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k)
      number[k] = first + k < end ? dlb_number(indices, p->indices + first + k, p->wide) : -1;
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k)
      value[k] = (ulong)number[k] < (ulong)p->rows ? LOAD_A(weight, p->weight + number[k] * p->row_stride + column) : (T)0;
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
      const long i = first + k;
      if (i >= end) continue;
      if (column == 0 && p->bag_of >= 0) dlb_put(bag_of, p->bag_of + i, p->wide, bag);
      if (dlb_bag_row(number[k], p, error) < 0) continue;
      if (p->mode == BAG_MAX) {
        const bool take = counted == 0 || value[k] > sum;
        sum = take ? value[k] : sum;
        where = take ? (int)number[k] : where;
      } else {
        sum += p->scales >= 0 ? value[k] * LOAD_A(scales, p->scales + i) : value[k];
      }
      ++counted;
    }
  }
  if (column == 0) dlb_put(bag_size, p->bag_size + bag, p->wide, counted);
  if (p->mode == BAG_MEAN && counted > 1) sum = sum / (T)counted;
  const ulong at = (ulong)bag * p->width + column;
  STORE_A(out, p->out + at, sum);
  if (p->mode == BAG_MAX) dlb_put(maxima, p->maxima + at, p->wide, where);
}
#endif

kernel void dlb_bag(global const A_T* weight, global const int* indices, global const int* offsets,
                    global const A_T* scales, global A_T* out, global int* bag_of, global int* bag_size,
                    global int* maxima, volatile global int* error, const BagParams p) {
  long begin, end;
#if DLB_CPU
  const uint first_bag = get_global_id(0) * p.per_item, end_bag = min(first_bag + p.per_item, p.bags);
  for (uint bag = first_bag; bag < end_bag; ++bag) {
    dlb_bag_range(offsets, bag, &p, error, &begin, &end);
    uint first = 0;
#ifdef VECTOR
    first = dlb_bag_columns(weight, indices, out, bag_of, bag_size, error, &p, bag, begin, end);
#endif
    for (; first < p.width || first == 0; first += COLUMNS)
      dlb_bag_block(weight, indices, scales, out, bag_of, bag_size, maxima, error, &p, bag, begin, end, first,
                    min((uint)COLUMNS, p.width - first));
  }
#else
  const ulong id = get_global_id(0);
  if (id >= (ulong)p.bags * p.width) return;
  const uint bag = id / p.width;
  dlb_bag_range(offsets, bag, &p, error, &begin, &end);
  dlb_bag_column(weight, indices, scales, out, bag_of, bag_size, maxima, error, &p, bag, begin, end, id % p.width);
#endif
}
