// Arguments of the indexing kernels.
#pragma once
#include "kernels/common/divider.h"

PARAMS_BEGIN

enum {
  INDEX_RANK = 8,          // dimensions of a walk, at most
  INDEX_TOGETHER = 4,      // GPU: elements that a work-item of a large walk moves
  COORDINATE_RANK = 16,    // dimensions of what index/compact.cl finds true elements in, at most
  SCAN_GROUP = 256,        // GPU: work-items of a work-group that scans a row, or has a run of elements
  RUN_ITEMS = 16,          // GPU: neighbouring elements of a run that a work-item has
  COUNT_LOCAL_BINS = 2048  // GPU: bins that a work-group counts in local memory
};
enum { PLAIN, INDEXED, INDEX, SIDES };
enum { COMBINE_SUM, COMBINE_PRODUCT, COMBINE_MAXIMUM, COMBINE_MINIMUM, COMBINE_LAST };

// index/access.cl: a walk over the plain and the indexed side and the index. Offsets and strides are in
// elements.
typedef struct {
  dlb_long base[SIDES];
  dlb_long stride[SIDES][INDEX_RANK];
  Divider size[INDEX_RANK];  // innermost first
  dlb_long bound;            // valid indices are 0 .. bound - 1
  dlb_long step;             // elements of the indexed side per unit of index
  dlb_uint rank, count, per_item;
  dlb_int wide;   // the index is int64, not int32
  dlb_int wraps;  // negative indices count from the end
  dlb_int write;  // from the plain to the indexed side
  dlb_int site;
  dlb_int indexed;  // 0: there is no index
} IndexWalk;
ASSERT_SIZE(IndexWalk, 360);

// index/accumulate.cl: target [outer, bound, inner], source [outer, n, inner].
typedef struct {
  dlb_long dst_offset, src_offset, index_offset, perm_offset;  // elements; the last of perm or copies
  dlb_long bound;                                              // size of the target's indexed dimension
  dlb_uint outer, n, inner;
  dlb_int full;  // the index is [outer, n, inner], not [n]
  dlb_int wide, wraps, site;
  dlb_int op;                                                  // COMBINE_...
  dlb_uint outer_parts, inner_parts, bound_parts, copy_parts;  // CPU: how the work-items divide the work
} AccumulateParams;
ASSERT_SIZE(AccumulateParams, 88);

// index/bag.cl: a table [rows, width], `count` indices. Offsets are in elements.
enum { BAG_SUM, BAG_MEAN, BAG_MAX };
typedef struct {
  dlb_long weight, indices, offsets, out;
  dlb_long bag_of;  // -1: not wanted
  dlb_long bag_size;
  dlb_long maxima;
  dlb_long scales;  // -1: none
  dlb_long row_stride, rows;
  dlb_long padding;  // the row that does not count; negative: none
  dlb_uint width, count, bags, per_item;
  dlb_int mode, wide;                                // BAG_...; indices and offsets are int64
  dlb_int site, first_site, range_site, order_site;  // see register_error_site
  dlb_int ends;                                      // behind the bags' offsets stands another one, the last bag's end
  dlb_int unused;
} BagParams;
ASSERT_SIZE(BagParams, 136);

// index/compact.cl: where the coordinates of true elements go.
typedef struct {
  dlb_long size[COORDINATE_RANK];  // innermost first
  dlb_long out_offset, element_stride, dim_stride;
  dlb_uint dims, unused;
} Coordinates;
ASSERT_SIZE(Coordinates, 160);

PARAMS_END
