// Arguments of common/pack_lines.cl.
#pragma once
#include "kernels/common/divider.h"

PARAMS_BEGIN

enum {
  PACK_TILE = 32,       // lines and elements of a work-group's tile
  PACK_BYTE_TILE = 64,  // the same of elements of 8 bits
  PACK_ITEMS = 256      // its work-items
};

// From any strides [outer, inner, line, element] to lines of contiguous elements. A line has a place by
// width, height and depth, as a pixel or a filter's tap has. Everything in elements.
typedef struct {
  dlb_long from_offset, from_outer, from_inner, from_line[3], from_element;
  dlb_long to_offset, to_outer, to_inner, to_line;
  Divider inner, width, height;
  dlb_int lines, length,
      elements_fast;  // work-items read neighbours along a line, else of neighbouring lines
} PackLines;
ASSERT_SIZE(PackLines, 136);

PARAMS_END
