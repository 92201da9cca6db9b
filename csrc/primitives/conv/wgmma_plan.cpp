#include "primitives/conv/wgmma_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "cl/rounding.h"
#include "codegen/pointwise.h"
#include "primitives/common/wgmma.h"
#include "primitives/conv/strides.h"
#include "runtime/element.h"

namespace dlb::solver {
namespace {

using params::ConvWgmma;
using params::Divider;

constexpr int kLargestBox = 256;  // elements of a box along an axis, those that are passed over included
constexpr int64_t kFewestChannels = 16;  // of a group: with fewer most of what is multiplied are zeros
constexpr double kScattered =
    1.03;  // times the tiles that a box may cost whose results are stored one by one

bool weight_grad(const ConvProblem& p) {
  return p.direction == ConvDirection::kWeightGrad;
}
bool input_grad(const ConvProblem& p) {
  return p.direction == ConvDirection::kInputGrad;
}

Divider divider(int64_t n) {
  return codegen::make_divider(static_cast<uint32_t>(n));
}

int64_t element_bytes(const ConvProblem& p) {
  return static_cast<int64_t>(c10::elementSize(p.x_dtype.or_else(p.dtype)));  // the other operand's too
}

// The weight gradient as a forward pass: the channels of x are its images, and the images, which are summed
// over, its channels; y has the weights, one tap a pixel, and the results' pixels are the taps.
ConvProblem as_forward(const ConvProblem& p) {
  ConvProblem q = p;
  q.direction = ConvDirection::kForward;
  q.n = p.c, q.c = p.n, q.has_bias = 0;
  const auto exchange = [](const int64_t(&from)[5], int64_t(&to)[5]) {
    std::copy_n(from, 5, to), std::swap(to[0], to[1]);
  };
  exchange(p.xs, q.xs), exchange(p.ys, q.ws), exchange(p.ws, q.ys);
  std::copy_n(p.out, 3, q.filter), std::copy_n(p.filter, 3, q.out);
  std::copy_n(p.dilation, 3, q.stride), std::copy_n(p.stride, 3, q.dilation);
  return q;
}

// The problem that is computed in a form: in the forms of pixels the weight gradient is a forward pass.
ConvProblem in_form(const ConvProblem& p, int form) {
  return weight_grad(p) && form != params::CONV_WGMMA_WEIGHTS ? as_forward(p) : p;
}

// A tensor of pixels: x or y. Axes are in the problem's order here.
struct Pixels {
  const int32_t* size;
  const int64_t* strides;  // image, channel, axes
  int64_t channels;        // of a group
};
Pixels x_of(const ConvProblem& p) {
  return {p.in, p.xs, p.c / p.groups};
}
Pixels y_of(const ConvProblem& p) {
  return {p.out, p.ys, p.k / p.groups};
}
Pixels image_of(const ConvProblem& p) {
  return input_grad(p) ? y_of(p) : x_of(p);
}
// The tensor that has the product's pixels: the result, or y of the weight gradient.
Pixels positions_of(const ConvProblem& p) {
  return input_grad(p) ? x_of(p) : y_of(p);
}

// Weights as lines [output channel][tap][summed channel].
struct Weights {
  int64_t group, column, red;  // strides
};
Weights weights_of(const ConvProblem& p) {
  if (input_grad(p)) return {p.k / p.groups * p.ws[0], p.ws[1], p.ws[0]};
  return {p.k / p.groups * p.ws[0], p.ws[0], p.ws[1]};
}

bool is_grouped(const ConvProblem& p) {
  return p.groups > 1;
}

bool whole_units(int64_t size, int64_t stride, int64_t bytes) {
  return size == 1 || (stride > 0 && stride * bytes % kWgmmaUnit == 0);
}

// The strides of a map for a dimension that has one element are not used, but must be possible.
int64_t map_stride(int64_t size, int64_t stride, int64_t bytes) {
  return size == 1 ? kWgmmaUnit : stride * bytes;
}

// A copy's lines are a tensor's pixels or taps, or its images or output channels where those are contiguous,
// so that work-items read neighbours.
void lines_by_axis(params::PackLines& a, const int32_t* size, const int64_t* strides, int64_t inner) {
  for (int i = 0; i < 3; i++) a.from_line[i] = strides[4 - i];
  a.lines = size[0] * size[1] * size[2];
  a.width = divider(size[2]), a.height = divider(size[1]), a.inner = divider(inner);
}
void lines_in_a_row(params::PackLines& a, int64_t lines, int64_t stride, int64_t inner) {
  a.from_line[0] = stride, a.lines = static_cast<int>(lines);
  a.width = divider(lines), a.height = divider(1), a.inner = divider(inner);
}

// Whether a pixel's strides make one dimension, and its stride.
bool is_even(const Pixels& t, int64_t& stride) {
  const int32_t sizes[3] = {t.size[0], t.size[1], t.size[2]};
  const int64_t strides[5] = {0, 0, t.strides[2], t.strides[3], t.strides[4]};
  return evenly_spaced(sizes, strides, stride);
}

ConvWgmmaCopy copy_of_pixels(const ConvProblem& p, const Pixels& t, int64_t (&strides)[4]) {
  const int64_t bytes = element_bytes(p), pitch = round_up(t.channels * bytes, kWgmmaUnit) / bytes;
  const int64_t pixel = pitch * p.groups, pixels = int64_t(t.size[0]) * t.size[1] * t.size[2];
  ConvWgmmaCopy copy;
  params::PackLines& a = copy.arguments;
  a.from_element = t.strides[1], a.length = static_cast<int>(t.channels);
  a.elements_fast = t.strides[1] == 1 && t.channels > 1;
  int64_t even = 0;
  if (t.strides[0] == 1 && p.groups == 1 && is_even(t, even)) {
    lines_in_a_row(a, p.n, 1, pixels);
    a.from_inner = even, a.to_inner = pixel, a.to_line = pixels * pixel;
    copy.groups = packing_groups(a, 1, bytes);
  } else {
    lines_by_axis(a, t.size, t.strides, p.groups);
    a.from_outer = t.strides[0], a.from_inner = t.channels * t.strides[1];
    a.to_outer = pixels * pixel, a.to_inner = pitch, a.to_line = pixel;
    copy.groups = packing_groups(a, p.n, bytes);
  }
  copy.bytes = p.n * pixels * pixel * bytes;
  const int64_t row = pixel * t.size[2], plane = row * t.size[1];
  const int64_t packed[4] = {pixel, row, is_grouped(p) ? pitch : plane, pixels * pixel};
  for (int i = 0; i < 4; i++) copy.strides[i] = packed[i] * bytes;

  const int64_t depth = is_grouped(p) ? t.channels * t.strides[1] : t.strides[2];
  const int64_t sizes[4] = {t.size[2], t.size[1], is_grouped(p) ? p.groups : t.size[0], p.n};
  const int64_t given[4] = {t.strides[4], t.strides[3], depth, t.strides[0]};
  copy.always = t.strides[1] != 1 && t.channels > 1;
  for (int i = 0; i < 4; i++) {
    copy.always = copy.always || !whole_units(sizes[i], given[i], bytes);
    strides[i] = map_stride(sizes[i], given[i], bytes);
  }
  return copy;
}

ConvWgmmaCopy copy_of_weights(const ConvProblem& p, int64_t red, int64_t cols, int64_t (&strides)[4]) {
  const int64_t bytes = element_bytes(p), pitch = round_up(red * bytes, kWgmmaUnit) / bytes, taps = p.taps();
  const Weights w = weights_of(p);
  ConvWgmmaCopy copy;
  params::PackLines& a = copy.arguments;
  a.from_element = w.red, a.length = static_cast<int>(red);
  a.elements_fast = red > 1 && w.red == 1;
  a.from_outer = w.group, a.to_outer = cols * taps * pitch;
  int64_t tap = 0;
  const bool even = evenly_spaced(p.filter, p.ws, tap);
  if (taps == 1 || (w.column == 1 && even)) {
    lines_in_a_row(a, cols, w.column, taps);
    a.from_inner = tap, a.to_inner = pitch, a.to_line = taps * pitch;
  } else {
    lines_by_axis(a, p.filter, p.ws, cols);
    a.from_inner = w.column, a.to_inner = taps * pitch, a.to_line = pitch;
  }
  copy.groups = packing_groups(a, p.groups, bytes);
  copy.bytes = p.groups * cols * taps * pitch * bytes;
  copy.strides[0] = pitch * bytes, copy.strides[1] = taps * pitch * bytes;
  copy.strides[2] = copy.strides[3] = kWgmmaUnit;

  const bool groups_follow = p.groups == 1 || w.group == cols * w.column;
  copy.always = !even || !groups_follow || (w.red != 1 && red > 1) || !whole_units(taps, tap, bytes) ||
                !whole_units(p.groups * cols, w.column, bytes);
  strides[0] = map_stride(taps, tap, bytes), strides[1] = map_stride(p.groups * cols, w.column, bytes);
  strides[2] = strides[3] = kWgmmaUnit;
  return copy;
}

// --- Boxes -----------------------------------------------------------------------------------------------

struct Box {
  int64_t size[3], images;  // width, height, depth
};

struct Positions {
  int64_t size[3], step[3], images;  // of one phase; image elements from one to the next
};

Positions grid_of(const ConvProblem& p) {
  Positions g{};
  for (int i = 0; i < 3; i++) {
    const int axis = 2 - i;
    g.size[i] = input_grad(p) ? ceil_div(p.in[axis], p.stride[axis]) : p.out[axis];
    g.step[i] = input_grad(p) ? 1 : p.stride[axis];
  }
  g.images = p.n;
  return g;
}

// The boxes of an axis that are worth trying: for so many boxes the smallest that covers it. For the weight
// gradient boxes must divide it: positions beyond the edge of y would meet existing pixels of x, and
// infinities times their zeros are NaN.
std::vector<int64_t> boxes_of(int64_t size, int64_t step, int64_t most, bool exact) {
  std::vector<int64_t> list;
  for (int64_t box = std::min({size, most, kLargestBox / step}); box >= 1; box--) {
    const bool smallest = ceil_div(size, ceil_div(size, box)) == box;
    if (exact ? size % box == 0 : smallest || box % 8 == 0) list.push_back(box);
  }
  return list;
}

// The box of at most `most` pixels that needs the fewest copies.
Box best_box(const Positions& g, int64_t most, bool exact, bool in_eights) {
  Box best{{1, 1, 1}, 1};
  double least = INFINITY;
  for (int64_t w : boxes_of(g.size[0], g.step[0], most, exact))
    for (int64_t h : boxes_of(g.size[1], g.step[1], most / w, exact))
      for (int64_t d : boxes_of(g.size[2], g.step[2], most / (w * h), exact)) {
        const int64_t fit = std::min({most / (w * h * d), g.images, int64_t{kLargestBox}});
        const int64_t images = ceil_div(g.images, ceil_div(g.images, fit));
        const double boxes = double(ceil_div(g.size[0], w)) * ceil_div(g.size[1], h) *
                             ceil_div(g.size[2], d) * ceil_div(g.images, images);
        const double cost = boxes * (in_eights && w % 8 ? kScattered : 1.0);
        if (cost < least) least = cost, best = {{w, h, d}, images};
      }
  return best;
}

int64_t most_pixels(const ConvProblem& p, const ConvWgmmaConfig& config) {
  switch (config.form) {
    case params::CONV_WGMMA_PIXEL_ROWS:
      return params::WGMMA_ROWS;
    case params::CONV_WGMMA_PIXEL_COLUMNS:
      return config.columns;
    default:
      return params::WGMMA_LINE / element_bytes(p);
  }
}

Box box_of(const ConvProblem& p, const ConvWgmmaConfig& config) {
  const Pixels result = positions_of(p);
  const bool in_eights = config.form == params::CONV_WGMMA_PIXEL_COLUMNS && result.strides[4] == 1;
  return best_box(grid_of(p), most_pixels(p, config), weight_grad(p), in_eights);
}

// --- Arguments -------------------------------------------------------------------------------------------

void set_axes(ConvWgmma& a, const ConvProblem& p, const Box& box) {
  const Positions grid = grid_of(p);
  const Pixels image = image_of(p), positions = positions_of(p);
  for (int i = 0; i < 3; i++) {
    const int axis = 2 - i;
    params::ConvWgmmaAxis& to = a.axis[i];
    to.image = image.size[axis], to.out = positions.size[axis];
    to.stride = p.stride[axis], to.pad = p.padding[axis], to.dilation = p.dilation[axis];
    const int common = std::gcd(p.stride[axis], p.dilation[axis]);
    to.tap_step = p.stride[axis] / common, to.jump = p.dilation[axis] / common;
    to.box = static_cast<int>(box.size[i]), to.boxes = divider(ceil_div(grid.size[i], box.size[i]));
    to.taps = divider(p.filter[axis]), to.phases = divider(input_grad(p) ? p.stride[axis] : 1);
  }
  a.images = p.n, a.image_box = static_cast<int>(box.images);
  a.image_boxes = divider(ceil_div(int64_t(p.n), box.images));
}

// Where results go, and what adds their parts.
void set_results(ConvWgmmaPlan& plan, const ConvProblem& p, const ConvWgmmaConfig& config) {
  ConvWgmma& a = plan.arguments;
  params::SplitReduce& s = plan.reduce;
  const auto set = [&](int64_t image, int64_t w, int64_t h, int64_t d, int64_t channel, int64_t red,
                       int64_t group) {
    a.out_image = int(image), a.out_axis[0] = int(w), a.out_axis[1] = int(h), a.out_axis[2] = int(d);
    a.out_channel = int(channel), a.out_red = int(red), a.out_group = int(group);
  };
  const int64_t cols = a.cols, red = a.red;
  s.splits = config.splits;
  int64_t even = 0;
  if (config.form == params::CONV_WGMMA_WEIGHTS) {
    plan.outputs = double(p.k) * red * p.taps();
    evenly_spaced(p.filter, p.ws, even);
    s.batch = p.k, s.m = p.taps(), s.n = red, s.c_batch = p.ws[0], s.c_m = even, s.c_n = p.ws[1];
    if (config.splits == 1) return set(0, p.ws[4], p.ws[3], p.ws[2], p.ws[0], p.ws[1], cols * p.ws[0]);
    const int64_t row = p.taps() * red;
    return set(0, red, p.filter[2] * red, int64_t(p.filter[1]) * p.filter[2] * red, row, 1, cols * row);
  }
  const Pixels result = positions_of(p);
  const int64_t pixels = int64_t(result.size[0]) * result.size[1] * result.size[2], all = cols * p.groups;
  const int64_t* strides = result.strides;
  plan.outputs = double(p.n) * all * pixels;
  evenly_spaced(input_grad(p) ? p.in : p.out, input_grad(p) ? p.xs : p.ys, even);
  const bool rows = config.form == params::CONV_WGMMA_PIXEL_ROWS;
  s.batch = p.n, s.c_batch = strides[0];
  s.m = rows ? pixels : all, s.n = rows ? all : pixels;
  s.c_m = rows ? even : strides[1], s.c_n = rows ? strides[1] : even;
  s.d_m = rows ? 0 : 1, s.d_n = rows ? 1 : 0;  // the bias
  plan.reduce_epilogue = rows ? p.epilogue : transposed(p.epilogue);
  if (config.splits == 1)
    return set(strides[0], strides[4], strides[3], strides[2], strides[1], 0, cols * strides[1]);
  const int64_t pixel = rows ? all : 1, channel = rows ? 1 : pixels;
  const int64_t row = pixel * result.size[2];
  set(all * pixels, pixel, row, row * result.size[1], channel, 0, cols * channel);
}

// Whether a tile's columns follow each other in memory as they do in the tile, so that of several the first
// and the last tell whether they are neighbours. A box that reaches beyond an edge is smaller than that axis,
// so that there is a gap.
bool has_runs(const ConvProblem& p, const ConvWgmmaConfig& config) {
  if (config.form != params::CONV_WGMMA_PIXEL_COLUMNS) return true;
  const Pixels result = positions_of(p);
  const int64_t sizes[4] = {result.size[2], result.size[1], result.size[0], p.n};
  const int64_t strides[4] = {result.strides[4], result.strides[3], result.strides[2], result.strides[0]};
  int64_t least = 1;
  for (int i = 0; i < 4; i++) {
    if (sizes[i] == 1) continue;
    if (strides[i] < least) return false;
    least = sizes[i] * strides[i];
  }
  return true;
}

// Stages of the tiles of all phases, and of the phase that has most.
void count_stages(ConvWgmmaPlan& plan, int form, double& all, int64_t& most) {
  const ConvWgmma& a = plan.arguments;
  const int phases = int(a.axis[0].phases.divisor * a.axis[1].phases.divisor * a.axis[2].phases.divisor);
  all = 0, most = 0;
  for (uint32_t phase = 0; phase < uint32_t(phases); phase++) {
    uint32_t rest = phase;
    params::ConvWgmmaReach reach[3];
    for (int i = 0; i < 3; i++) reach[i] = conv_wgmma_reach(&a, i, conv_wgmma_digit(&rest, a.axis[i].phases));
    const params::ConvWgmmaStages stages = conv_wgmma_stages(&a, form, reach);
    const int64_t count = conv_wgmma_stage_count(&stages);
    all += double(count), most = std::max(most, count);
  }
}

// Everything but the results and the parts.
ConvWgmmaPlan plan_of(const ConvProblem& p, const ConvWgmmaConfig& config, const Box& box) {
  ConvWgmmaPlan plan;
  ConvWgmma& a = plan.arguments;
  set_axes(a, p, box);
  const Pixels image = image_of(p), positions = positions_of(p);
  a.red = static_cast<int>(image.channels), a.cols = static_cast<int>(positions.channels);
  a.groups = divider(p.groups), a.grouped = is_grouped(p);
  a.chunks = divider(ceil_div(image.channels * element_bytes(p), int64_t{params::WGMMA_LINE}));
  const bool rows = config.form == params::CONV_WGMMA_PIXEL_ROWS;
  a.channel_tiles =
      divider(ceil_div(positions.channels, int64_t{rows ? config.columns : params::WGMMA_ROWS}));
  a.block_tiles =
      divider(ceil_div(int64_t(a.chunks.divisor) * p.taps(), config.columns / params::CONV_WGMMA_BLOCK));
  a.splits = config.splits, a.input_grad = input_grad(p);
  plan.image = copy_of_pixels(p, image, a.image_strides);
  plan.lines = weight_grad(p) ? copy_of_pixels(p, positions, a.lines_strides)
                              : copy_of_weights(p, image.channels, positions.channels, a.lines_strides);
  for (auto [copy, strides] :
       {std::pair{&plan.image, a.image_strides}, std::pair{&plan.lines, a.lines_strides}})
    if (copy->always) std::copy_n(copy->strides, 4, strides);
  return plan;
}

}  // namespace

bool conv_wgmma_is_split(const ConvProblem& p) {
  return p.dtype == c10::ScalarType::Float && !p.tf32;
}

const char* conv_wgmma_refuses(const ConvProblem& p) {
  const bool floats = p.dtype == c10::ScalarType::Float;
  if (!is_float_storage(p.dtype) && !p.x_dtype) return "for float32, float16, bfloat16, and operands of int8";
  if (p.epilogue.changes_type() && (!p.x_dtype || codegen::size_of(p.epilogue.first_type) > 4))
    return "stores the dtype that it computes in or, of sums of int8, up to 4 bytes";
  if (std::min({p.n, p.c, p.k}) == 0 || p.in_pixels() == 0 || p.out_pixels() == 0 || p.taps() == 0)
    return "nothing to compute";
  const int32_t* steps = weight_grad(p) && floats ? p.dilation : p.stride;
  if (*std::max_element(steps, steps + 3) > params::CONV_WGMMA_STRIDE) return "a stride or dilation above 8";
  if (p.groups > 1) {
    if (weight_grad(p) && floats) return "the weight gradient of groups in 16 bits only";
    if (std::min(p.c, p.k) / p.groups < kFewestChannels) return "fewer than 16 channels per group";
    if (p.in[0] != 1 || p.out[0] != 1 || p.filter[0] != 1 || p.padding[0] != 0)
      return "groups in three dimensions";
  }
  const int64_t limit = INT32_MAX / 2;
  if (span(p.xs, {p.n, p.c, p.in[0], p.in[1], p.in[2]}) > limit ||
      span(p.ys, {p.n, p.k, p.out[0], p.out[1], p.out[2]}) > limit ||
      span(p.ws, {p.k, p.c / p.groups, p.filter[0], p.filter[1], p.filter[2]}) > limit)
    return "a tensor of 2^30 elements or more";
  double pixels = double(p.n) * p.groups;  // of all phases
  for (int i = 0; i < 3; i++) pixels *= input_grad(p) ? round_up(p.in[i], p.stride[i]) : p.out[i];
  if (pixels * ceil_div(std::max(p.c, p.k) / p.groups, 64) > INT32_MAX) return "2^31 tiles or more";
  return nullptr;
}

std::vector<int> conv_wgmma_forms(const ConvProblem& p) {
  // the instructions take floats along the reduction only
  if (weight_grad(p) && p.dtype != c10::ScalarType::Float) return {params::CONV_WGMMA_WEIGHTS};
  const ConvProblem q = in_form(p, params::CONV_WGMMA_PIXEL_ROWS);
  const bool last = positions_of(q).strides[1] == 1;
  if (last) return {params::CONV_WGMMA_PIXEL_ROWS, params::CONV_WGMMA_PIXEL_COLUMNS};
  return {params::CONV_WGMMA_PIXEL_COLUMNS, params::CONV_WGMMA_PIXEL_ROWS};
}

int64_t conv_wgmma_filled_parts(int64_t depth, int64_t splits) {
  return ceil_div(depth, ceil_div(depth, splits));
}

bool conv_wgmma_can_split(const ConvProblem& p) {
  int64_t stride;
  return weight_grad(p)  ? evenly_spaced(p.filter, p.ws, stride)
         : input_grad(p) ? evenly_spaced(p.in, p.xs, stride)
                         : evenly_spaced(p.out, p.ys, stride);
}

ConvWgmmaPlan conv_wgmma_plan(const ConvProblem& problem, const ConvWgmmaConfig& config) {
  const ConvProblem p = in_form(problem, config.form);
  const Box box = box_of(p, config);
  ConvWgmmaPlan plan = plan_of(p, config, box);
  ConvWgmma& a = plan.arguments;
  set_results(plan, p, config);
  a.runs = has_runs(p, config);
  a.has_bias = p.has_bias && config.splits == 1 && !weight_grad(p);
  a.part_size = static_cast<int64_t>(plan.outputs);
  plan.keeps_lines = p.constant_w && plan.lines.always;
  double all;
  int64_t most;
  count_stages(plan, config.form, all, most);
  a.part = static_cast<int>(ceil_div(most, int64_t{config.splits}));
  plan.tiles = conv_wgmma_tiles(&a, config.form);
  const double phases =
      double(a.axis[0].phases.divisor) * a.axis[1].phases.divisor * a.axis[2].phases.divisor;
  plan.stages = plan.tiles / config.splits / phases * all;
  const Pixels result = positions_of(p);
  plan.neighbours = config.splits > 1 || (weight_grad(p) ? a.out_red == 1
                                          : config.form == params::CONV_WGMMA_PIXEL_ROWS
                                              ? result.strides[1] == 1
                                              : result.strides[4] == 1 && a.axis[0].phases.divisor == 1);
  return plan;
}

}  // namespace dlb::solver
