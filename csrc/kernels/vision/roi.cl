// Pooling of boxes, forward. A work-item takes bins for some neighbouring channels, on GPUs for one. A_T: the element
// type of all.
#define ROI_T A_T
#define LOAD_ROI LOAD_A
#include "common/team.clh"
#include "vision/roi.clh"

#ifdef DLB_CPU
#define CHANNELS 64
#else
#define CHANNELS 1
#endif

typedef struct {
  uint roi;
  int bin, c, lanes;
} roi_unit;
inline roi_unit unit_of(const RoiParams* p, uint row) {
  roi_unit at;
  uint rest = dlb_divide(row, p->bins);
  at.bin = row - rest * p->bins.divisor;
  at.roi = dlb_divide(rest, p->blocks);
  at.c = (rest - at.roi * p->blocks.divisor) * CHANNELS;
  at.lanes = CHANNELS == 1 ? 1 : min(CHANNELS, p->pooled_channels - at.c);
  return at;
}
inline long output_of(const RoiParams* p, roi_unit at) {
  return p->y + ((long)at.roi * p->pooled_channels + at.c) * p->bins.divisor + at.bin;
}
inline void map_channels(global int* places, const RoiParams* p, roi_unit at) {
  const long to = ((long)at.roi * p->pooled_channels + at.c) * p->bins.divisor + at.bin;
  for (int j = 0; j < at.lanes; ++j)
    places[p->places + to + j * (long)p->bins.divisor] = (at.c + j) * (int)p->bins.divisor + at.bin;
}

#define ADD_CORNERS(at_lane)                                                                          \
  DLB_SIMD for (int j = 0; j < at.lanes; ++j) sum[j] +=                                               \
      share[0] * LOAD_A(a, at_lane) + share[1] * LOAD_A(b, at_lane) + share[2] * LOAD_A(c, at_lane) + \
      share[3] * LOAD_A(d, at_lane);

kernel void roi_align(global const A_T* x, global const A_T* rois, global A_T* y, global int* places, const RoiParams p,
                      const Team team) {
  FOR_ROWS(unit, team) {
    if (!unit_active) continue;
    const roi_unit at = unit_of(&p, unit);
    const roi_box box = box_of(rois, &p, at.roi);
    const long hop = channel_hop(&p);
    global const A_T* image = x + p.x + max(box.n, 0) * p.xs[0] + at.c * hop + first_channel(&p, at.bin);
    T sum[CHANNELS];
    for (int j = 0; j < at.lanes; ++j) sum[j] = 0;
    for (int iy = 0; iy < box.grid_height && box.n >= 0; ++iy)
      for (int ix = 0; ix < box.grid_width; ++ix) {
        int row[2];
        long place[4];
        T share[4];
        if (!corners_of(&box, &p, at.bin, iy, ix, row, place, share)) continue;
        global const A_T *a = image + place[0], *b = image + place[1], *c = image + place[2], *d = image + place[3];
#ifdef DLB_CPU
        if (hop == 1) {
          ADD_CORNERS(j)
          continue;
        }
#endif
        ADD_CORNERS(j * hop)
      }
    const int samples = box.grid_height * box.grid_width, count = p.by_position ? samples : max(samples, 1);
    const long to = output_of(&p, at);
    for (int j = 0; j < at.lanes; ++j) STORE_A(y, to + j * (long)p.bins.divisor, sum[j] / (T)count);
    if (p.by_position) map_channels(places, &p, at);
  }
}

// places: of the maxima in their planes, -1 for none.
kernel void roi_max(global const A_T* x, global const A_T* rois, global A_T* y, global int* places, const RoiParams p,
                    const Team team) {
  FOR_ROWS(unit, team) {
    if (!unit_active) continue;
    const roi_unit at = unit_of(&p, unit);
    global const A_T* roi = rois + p.rois + at.roi * 5L;
    const int n = image_of(roi, p.samples);
    int rows[2], columns[2], place[CHANNELS];
    const int filled = whole_bins(roi, &p, at.bin, 1, p.height, p.width, rows, columns) && n >= 0;
    global const A_T* image = x + p.x + max(n, 0) * p.xs[0] + at.c * p.xs[1];
    T best[CHANNELS];
    for (int j = 0; j < at.lanes; ++j) best[j] = filled ? -FLT_MAX : 0, place[j] = -1;
    for (int h = rows[0]; h < rows[1] && filled; ++h)
      for (int w = columns[0]; w < columns[1]; ++w) {
        global const A_T* from = image + h * p.xs[2] + w * p.xs[3];
        DLB_SIMD for (int j = 0; j < at.lanes; ++j) {
          const T v = LOAD_A(from, j * p.xs[1]);
          place[j] = v > best[j] ? h * p.width + w : place[j];
          best[j] = v > best[j] ? v : best[j];
        }
      }
    const long to = output_of(&p, at);
    for (int j = 0; j < at.lanes; ++j) {
      STORE_A(y, to + j * (long)p.bins.divisor, best[j]);
      places[p.places + to - p.y + j * (long)p.bins.divisor] = place[j];
    }
  }
}

// Averages of whole elements, by position. The image's last row and column are left out, as torchvision does here.
kernel void roi_average(global const A_T* x, global const A_T* rois, global A_T* y, global int* places,
                        const RoiParams p, const Team team) {
  FOR_ROWS(unit, team) {
    if (!unit_active) continue;
    const roi_unit at = unit_of(&p, unit);
    global const A_T* roi = rois + p.rois + at.roi * 5L;
    const int n = image_of(roi, p.samples);
    int rows[2], columns[2];
    const int filled = whole_bins(roi, &p, at.bin, 0, p.height - 1, p.width - 1, rows, columns) && n >= 0;
    const long hop = channel_hop(&p);
    global const A_T* image = x + p.x + max(n, 0) * p.xs[0] + at.c * hop + first_channel(&p, at.bin);
    T sum[CHANNELS];
    for (int j = 0; j < at.lanes; ++j) sum[j] = 0;
    for (int h = rows[0]; h < rows[1] && filled; ++h)
      for (int w = columns[0]; w < columns[1]; ++w) {
        global const A_T* from = image + h * p.xs[2] + w * p.xs[3];
        DLB_SIMD for (int j = 0; j < at.lanes; ++j) sum[j] += LOAD_A(from, j * hop);
      }
    const T area = filled ? (rows[1] - rows[0]) * (columns[1] - columns[0]) : 1;
    const long to = output_of(&p, at);
    for (int j = 0; j < at.lanes; ++j) STORE_A(y, to + j * (long)p.bins.divisor, sum[j] / area);
    map_channels(places, &p, at);
  }
}
