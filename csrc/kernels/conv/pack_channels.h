// Arguments of conv/pack_channels.cl.
#pragma once
#include "kernels/common/divider.h"

PARAMS_BEGIN

enum {
  PACK_CHANNELS_TILE = 32,   // lines and channels of a work-group's tile
  PACK_CHANNELS_ITEMS = 256  // its work-items
};

// From any strides [outer, inner, line, channel] to lines of channels. A line is a pixel or a tap, by width,
// height and depth. Everything in elements.
typedef struct {
  dlb_long from_offset, from_outer, from_inner, from_line[3], from_channel;
  dlb_long to_offset, to_outer, to_inner, to_line;
  Divider inner, width, height;
  dlb_int lines, channels,
      channels_fast;  // work-items read neighbours along the channels, else along the lines
} PackChannels;
ASSERT_SIZE(PackChannels, 136);

PARAMS_END
