// Constants and arguments of the sorting kernels that the host must know.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum {
  SORT_CPU_DIGIT_BITS = 8,  // of a digit of the CPU's radix sort
  // GPU: digits have 8 bits, one work-item of a work-group for each value.
  SORT_DIGIT_BITS = 8,
  SORT_GROUP = 256,
  SORT_SHORT = 512,        // elements of rows that a bitonic network sorts, at most; a power of two
  SORT_ITEMS = 16,         // elements that a work-item of the radix sort takes, of at most 32 bits
  SORT_ITEMS_WIDE = 8,     // of 64 bits
  SORT_SCAN_DIGITS = 8,    // digits of which a work-group adds up the counts
  SELECT_DIGIT_BITS = 11,  // of a digit of radix selection
  SELECT_BINS = 2048,
  SELECT_PARTS = 256  // parts that a row is cut in for selection, at most
};

// sort/gpu_radix.cl: rows [rows, n] of numbers. Offsets are in elements.
typedef struct {
  dlb_long from, places;                          // what is sorted, and where it comes from
  dlb_long keys, other_keys, order, other_order;  // between the passes
  dlb_long values, indices;                       // the results
  dlb_long counts, totals, varying;               // of digits, of each block and of each row
  dlb_ulong flip;                                 // all ones: descending
  dlb_uint rows, n, blocks;
  dlb_uint pass, passes;
  dlb_int has_places, wants_values, wants_indices, wide;  // the indices are int64, not int32
  dlb_int unused;
} RadixParams;
ASSERT_SIZE(RadixParams, 136);

// sort/gpu_rows.cl: a row for each work-group, or several. The results are [rows, k].
typedef struct {
  dlb_long from, places, values, indices;
  dlb_ulong flip;
  dlb_uint rows, n, k, bits;
  dlb_int has_places, wants_values, wants_indices, wide;
} SortRowsParams;
ASSERT_SIZE(SortRowsParams, 72);

// sort/gpu_select.cl: which element of a row is looked for. Medians skip or are NaN.
enum { SELECT_KTH, SELECT_MEDIAN, SELECT_NANMEDIAN };

typedef struct {
  dlb_long from;             // [rows, n]
  dlb_long bins;             // uint [rows, passes * SELECT_BINS + 1], zeros; the last counts NaN
  dlb_long state;            // ulong [rows, passes + 1, 2]
  dlb_long tallies;          // uint [rows, parts, 2]
  dlb_long values, indices;  // [rows, k], or [rows] where only the k-th is wanted
  dlb_ulong flip;
  dlb_uint rows, n, k;
  dlb_uint parts, per_part;  // of a row, and elements of each
  dlb_uint pass, passes;
  dlb_int mode, only_last;
  dlb_int wide;  // the indices are int64, not int32
} SelectParams;
ASSERT_SIZE(SelectParams, 96);

PARAMS_END
