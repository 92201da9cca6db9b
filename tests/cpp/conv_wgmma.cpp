// primitives/conv/wgmma_plan.h and kernels/conv/gpu_wgmma.h: a simulation of what the kernel does with them,
// on random convolutions in all directions. The copy engine's boxes, with zeros outside, are multiplied stage
// by stage, and results are stored as the kernel stores them; a plain convolution says what they are.
// Operands are small integers, so that sums are exact; what nothing may read is NaN. What adds the parts of a
// forward pass adds a number for each channel as well, by the epilogue that the plan has for it.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "primitives/conv/wgmma_plan.h"

namespace {

using namespace dlb::solver;
using namespace dlb::params;
using Values = std::vector<double>;
using Direction = ConvDirection;

std::mt19937 generator(1);

int between(int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(generator);
}

// --- Problems --------------------------------------------------------------------------------------------

// Strides of sizes in that order of dimensions, the last the fastest, with gaps now and then.
void lay_out(int64_t (&strides)[5], const int64_t (&sizes)[5], const int (&order)[5], int gap) {
  int64_t stride = 1;
  for (int i = 4; i >= 0; i--) {
    strides[order[i]] = stride;
    stride *= sizes[order[i]] + (i > 0 ? gap : 0);
  }
}

// Channels last and first, and with the axes exchanged.
void lay_out(int64_t (&strides)[5], const int64_t (&sizes)[5]) {
  const int orders[][5] = {
      {0, 2, 3, 4, 1}, {0, 1, 2, 3, 4}, {0, 2, 3, 4, 1}, {0, 1, 2, 3, 4}, {1, 4, 3, 2, 0}};
  lay_out(strides, sizes, orders[between(0, 4)], between(0, 5) == 0 ? 8 : 0);
}

ConvProblem random_problem(Direction direction) {
  ConvProblem p;
  p.direction = direction;
  const int dims = between(1, 3);
  p.dtype = between(0, 1) ? c10::ScalarType::BFloat16 : c10::ScalarType::Float;
  const bool over_images = direction == Direction::kWeightGrad && p.dtype == c10::ScalarType::Float;
  const int channels[] = {1, 3, 8, 16, 24, 33, 64, 72, 130};
  p.groups = dims < 3 && !over_images && between(0, 3) == 0 ? between(2, 3) : 1;
  p.n = between(1, over_images ? 40 : 5);
  p.c = p.groups * (p.groups > 1 ? 16 + 4 * between(0, 3) : channels[between(0, 8)]);
  p.k = p.groups * (p.groups > 1 ? 16 + 4 * between(0, 3) : channels[between(0, 8)]);
  for (int i = 3 - dims; i < 3; i++) {
    const int largest = dims == 1 ? 150 : dims == 2 ? 18 : 7;
    p.filter[i] = between(1, dims == 1 ? 9 : 3);
    p.stride[i] = between(1, 3), p.dilation[i] = between(1, 3), p.padding[i] = between(0, 3);
    const int reach = (p.filter[i] - 1) * p.dilation[i] + 1;
    p.in[i] = between(std::max(1, reach - 2 * p.padding[i]), largest + reach);
    p.out[i] = (p.in[i] + 2 * p.padding[i] - reach) / p.stride[i] + 1;
  }
  const int64_t c = p.c, k = p.k;
  lay_out(p.xs, {p.n, c, p.in[0], p.in[1], p.in[2]});
  lay_out(p.ws, {k, c / p.groups, p.filter[0], p.filter[1], p.filter[2]});
  lay_out(p.ys, {p.n, k, p.out[0], p.out[1], p.out[2]});
  p.normalize();
  if (direction == Direction::kForward) {
    using DType = dlb::codegen::DType;
    const bool floats = p.dtype == c10::ScalarType::Float;
    const DType type = floats ? DType::F32 : DType::BF16;
    const char* rows = floats ? "y0 = copy.f32(x1)" : "y0 = copy.bf16(x1)";
    p.epilogue = make_epilogue(rows, type, type, Lies::kColumn);
  }
  return p;
}

size_t elements(const int64_t (&strides)[5], std::initializer_list<int64_t> sizes) {
  int64_t last = 0, i = 0;
  for (int64_t size : sizes) last += (size - 1) * strides[i++];
  return static_cast<size_t>(last + 1);
}

// Visits a tensor's elements by their indices and their place.
template <class Visit>
void each(const int64_t (&s)[5], int64_t n, int64_t c, const int32_t (&size)[3], Visit&& visit) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < c; j++)
      for (int d = 0; d < size[0]; d++)
        for (int h = 0; h < size[1]; h++)
          for (int w = 0; w < size[2]; w++)
            visit(i, j, d, h, w, static_cast<size_t>(i * s[0] + j * s[1] + d * s[2] + h * s[3] + w * s[4]));
}

Values small_integers(const int64_t (&strides)[5], int64_t n, int64_t c, const int32_t (&size)[3]) {
  Values v(elements(strides, {n, c, size[0], size[1], size[2]}), NAN);
  each(strides, n, c, size, [&](auto, auto, auto, auto, auto, size_t at) { v[at] = between(-3, 3); });
  return v;
}

// Visits all products: places of x, w and y.
template <class Visit>
void each_product(const ConvProblem& p, Visit&& visit) {
  const int64_t c = p.c / p.groups, k = p.k / p.groups;
  each(p.ys, p.n, p.k, p.out, [&](int64_t n, int64_t row, int od, int oh, int ow, size_t y) {
    each(p.ws, 1, c, p.filter, [&](auto, int64_t j, int fd, int fh, int fw, size_t tap) {
      const int64_t d = od * p.stride[0] - p.padding[0] + fd * p.dilation[0];
      const int64_t h = oh * p.stride[1] - p.padding[1] + fh * p.dilation[1];
      const int64_t w = ow * p.stride[2] - p.padding[2] + fw * p.dilation[2];
      if (d < 0 || h < 0 || w < 0 || d >= p.in[0] || h >= p.in[1] || w >= p.in[2]) return;
      const int64_t x = n * p.xs[0] + (row / k * c + j) * p.xs[1] + d * p.xs[2] + h * p.xs[3] + w * p.xs[4];
      visit(static_cast<size_t>(x), tap + static_cast<size_t>(row * p.ws[0]), y);
    });
  });
}

// --- The device ------------------------------------------------------------------------------------------

Values packed(const Values& from, const ConvWgmmaCopy& copy, int64_t bytes) {
  const PackLines& a = copy.arguments;
  Values to(static_cast<size_t>(copy.bytes / bytes), NAN);
  const int64_t tiles = ((a.lines + PACK_TILE - 1) / PACK_TILE) * ((a.length + PACK_TILE - 1) / PACK_TILE);
  const int64_t matrices = copy.groups / tiles;
  for (int64_t matrix = 0; matrix < matrices; matrix++)
    for (int64_t line = 0; line < a.lines; line++)
      for (int64_t channel = 0; channel < a.length; channel++) {
        const int64_t inner = matrix % a.inner.divisor, outer = matrix / a.inner.divisor;
        const int64_t w = line % a.width.divisor, row = line / a.width.divisor;
        const int64_t h = row % a.height.divisor, d = row / a.height.divisor;
        to.at(size_t(outer * a.to_outer + inner * a.to_inner + line * a.to_line + channel)) =
            from.at(size_t(outer * a.from_outer + inner * a.from_inner + w * a.from_line[0] +
                           h * a.from_line[1] + d * a.from_line[2] + channel * a.from_element));
      }
  return to;
}

struct Operand {
  Values values;
  ConvWgmmaMap map;
  const dlb_long* strides;
  int64_t bytes;

  // The values that the copy engine writes for a box, line after line.
  Values box(const ConvWgmmaBox& from) const {
    int64_t count[5];
    for (int i = 0; i < 5; i++) count[i] = (map.box[i] + map.step[i] - 1) / map.step[i];
    Values to;
    for (int64_t n = 0; n < count[4]; n++)
      for (int64_t d = 0; d < count[3]; d++)
        for (int64_t h = 0; h < count[2]; h++)
          for (int64_t w = 0; w < count[1]; w++)
            for (int64_t c = 0; c < count[0]; c++) {
              const int64_t at[5] = {c, w, h, d, n};
              int64_t place = 0;
              bool inside = true;
              for (int i = 0; i < 5; i++) {
                const int64_t x = from.x[i] + at[i] * map.step[i];
                inside = inside && x >= 0 && x < map.size[i];
                place += x * (i == 0 ? 1 : strides[i - 1] / bytes);
              }
              to.push_back(inside ? values.at(static_cast<size_t>(place)) : 0);
            }
    return to;
  }

  void check() const {
    for (int i = 0; i < 5; i++) {
      REQUIRE(map.size[i] >= 1);
      REQUIRE(map.box[i] >= 1);
      REQUIRE(map.box[i] <= 256);
      REQUIRE(map.step[i] >= 1);
      REQUIRE(map.step[i] <= 8);
    }
    for (int i = 0; i < 4; i++) {
      REQUIRE(strides[i] > 0);
      REQUIRE(strides[i] % 16 == 0);
    }
  }
};

// A tile's sums, lines of `columns`.
struct Simulation {
  const ConvWgmmaPlan& plan;
  const ConvWgmmaConfig& config;
  const Operand &image, &lines;
  int line;  // elements

  bool rows() const { return config.form == CONV_WGMMA_PIXEL_ROWS; }

  void add(Values& sums, const Values& a, const Values& b) const {
    const size_t n = size_t(config.columns), length = size_t(line);
    REQUIRE(a.size() <= WGMMA_ROWS * length);
    REQUIRE(b.size() <= n * length);
    for (size_t i = 0; i * length < a.size(); i++)
      for (size_t j = 0; j * length < b.size(); j++)
        for (size_t k = 0; k < length; k++) sums[i * n + j] += a[i * length + k] * b[j * length + k];
  }

  // Operands of a stage of the weight gradient have the pixels as lines.
  void add_weights(Values& sums, const ConvWgmmaTile& t, const ConvWgmmaStages& s) const {
    for (int i = 0; i < WGMMA_ROWS; i += CONV_WGMMA_BLOCK) {
      const Values a = lines.box(conv_wgmma_y_box(&plan.arguments, &t, &s, t.channel + i));
      REQUIRE(a.size() <= size_t(CONV_WGMMA_BLOCK * line));
      for (int j = 0; j < config.columns; j += CONV_WGMMA_BLOCK) {
        const ConvWgmmaColumns columns = conv_wgmma_columns(&plan.arguments, t.block + j / CONV_WGMMA_BLOCK);
        const Values b = image.box(conv_wgmma_x_box(&plan.arguments, &t, &s, &columns));
        REQUIRE(b.size() == a.size());
        for (size_t pixel = 0; pixel * CONV_WGMMA_BLOCK < a.size(); pixel++)
          for (size_t x = 0; x < CONV_WGMMA_BLOCK; x++)
            for (size_t y = 0; y < CONV_WGMMA_BLOCK; y++)
              sums[(i + x) * config.columns + j + y] +=
                  a[pixel * CONV_WGMMA_BLOCK + x] * b[pixel * CONV_WGMMA_BLOCK + y];
      }
    }
  }

  void run(Values& out, std::vector<int>& stores, double& stages) const {
    const ConvWgmma* p = &plan.arguments;
    const int tiles = conv_wgmma_tiles(p, config.form);
    for (int index = 0; index < tiles; index++) {
      const ConvWgmmaTile t = conv_wgmma_tile(p, config.form, config.columns, index);
      REQUIRE(t.part < p->splits);
      ConvWgmmaReach reach[3];
      for (int i = 0; i < 3; i++) reach[i] = conv_wgmma_reach(p, i, t.phase[i]);
      ConvWgmmaStages s = conv_wgmma_stages(p, config.form, reach);
      const int count = conv_wgmma_part(p, &t, &s);
      if (count > 0) conv_wgmma_go_to(&s, t.part * p->part);
      Values sums(size_t(WGMMA_ROWS) * config.columns, 0);
      for (int i = 0; i < count; i++, conv_wgmma_next(&s)) {
        stages++;
        if (config.form == CONV_WGMMA_WEIGHTS) {
          add_weights(sums, t, s);
          continue;
        }
        const Values pixels = image.box(conv_wgmma_image_box(p, &t, reach, &s, line));
        const Values weights = lines.box(conv_wgmma_weight_box(p, &t, reach, &s, line));
        add(sums, rows() ? pixels : weights, rows() ? weights : pixels);
      }
      store(out, stores, t, reach, sums);
    }
  }

  void store(Values& out, std::vector<int>& stores, const ConvWgmmaTile& t, const ConvWgmmaReach* reach,
             const Values& sums) const {
    const ConvWgmma* p = &plan.arguments;
    const auto result = [&](int row, int column) {
      const int i = rows() ? row : column;
      const int place = config.form == CONV_WGMMA_WEIGHTS
                            ? conv_wgmma_weight_place(p, &t, i)
                            : conv_wgmma_place(p, &t, reach, conv_wgmma_pixel(p, i));
      const int64_t at = conv_wgmma_result(p, config.form, place, t.channel, row, column);
      return at < 0 || p->splits == 1 ? at : at + t.part * p->part_size;
    };
    const auto put = [&](int64_t at, double value) {
      out.at(static_cast<size_t>(at)) = value, stores.at(static_cast<size_t>(at))++;
    };
    for (int row = 0; row < WGMMA_ROWS; row++)
      for (int column = 0; column < config.columns; column += 8) {
        const int64_t first = result(row, column), last = result(row, column + 7);
        const bool run = p->runs && first >= 0 && last == first + 7;
        for (int i = 0; i < 8; i++) {
          const int64_t at = run ? first + i : result(row, column + i);
          if (at >= 0) put(at, sums[size_t(row) * config.columns + column + i]);
        }
      }
  }
};

// --- Comparison ------------------------------------------------------------------------------------------

struct Tensors {
  Values x, w, y;
};

const Values& image_of(const ConvProblem& p, const Tensors& t) {
  return p.direction == Direction::kInputGrad ? t.y : t.x;
}
const Values& lines_of(const ConvProblem& p, const Tensors& t) {
  return p.direction == Direction::kWeightGrad ? t.y : t.w;
}

Values expected(const ConvProblem& p, const Tensors& t, size_t size) {
  Values out(size, 0);
  each_product(p, [&](size_t x, size_t w, size_t y) {
    if (p.direction == Direction::kForward)
      out[y] += t.x[x] * t.w[w];
    else if (p.direction == Direction::kInputGrad)
      out[x] += t.y[y] * t.w[w];
    else
      out[w] += t.y[y] * t.x[x];
  });
  return out;
}

// What is added to the results of a channel where there are parts.
double addend(const ConvProblem& p, int64_t channel) {
  return p.epilogue ? 1000.0 * double(channel + 1) : 0;
}

// The second pass: adds the parts.
void reduce(const ConvProblem& p, const ConvWgmmaPlan& plan, const Values& parts, Values& out,
            std::vector<int>& stores) {
  const SplitReduce& s = plan.reduce;
  const bool by_column = plan.reduce_epilogue.lies[0] == Lies::kColumn;
  const int64_t size = s.batch * s.m * s.n;
  for (int64_t i = 0; i < size; i++) {
    double sum = 0;
    for (int64_t part = 0; part < s.splits; part++) sum += parts.at(size_t(part * size + i));
    const size_t at = size_t(i / (s.m * s.n) * s.c_batch + i / s.n % s.m * s.c_m + i % s.n * s.c_n);
    out.at(at) = sum + addend(p, by_column ? i % s.n : i / s.n % s.m), stores.at(at)++;
  }
}

Operand operand(const ConvWgmmaCopy& copy, const Values& values, const ConvWgmmaMap& map,
                const dlb_long* strides, int64_t bytes) {
  Operand o{copy.always ? packed(values, copy, bytes) : values, map, strides, bytes};
  o.check();
  return o;
}

void compare(const ConvProblem& p, const ConvWgmmaConfig& config, const Tensors& t) {
  const int64_t bytes = int64_t(c10::elementSize(p.dtype));
  const int line = int(WGMMA_LINE / bytes);
  const ConvWgmmaPlan plan = conv_wgmma_plan(p, config);
  const ConvWgmma& a = plan.arguments;
  const bool weights = config.form == CONV_WGMMA_WEIGHTS;
  const Operand image =
      operand(plan.image, image_of(p, t), conv_wgmma_image_map(&a, line), a.image_strides, bytes);
  const int lines_of_copy = config.form == CONV_WGMMA_PIXEL_ROWS ? config.columns : int(WGMMA_ROWS);
  const Operand lines =
      operand(plan.lines, lines_of(p, t),
              weights ? conv_wgmma_y_map(&a) : conv_wgmma_weight_map(&a, line, lines_of_copy),
              a.lines_strides, bytes);
  const size_t size = p.direction == Direction::kForward     ? t.y.size()
                      : p.direction == Direction::kInputGrad ? t.x.size()
                                                             : t.w.size();
  const Simulation simulation{plan, config, image, lines, line};
  const size_t parts = config.splits > 1 ? size_t(config.splits) * size_t(plan.outputs) : size;
  Values sums(parts, NAN);
  std::vector<int> stores(parts, 0);
  double stages = 0;
  simulation.run(sums, stores, stages);
  CHECK(stages <= plan.stages);
  CHECK(stages >= plan.stages * 0.5);
  Values out = sums;
  if (config.splits > 1) {
    for (int count : stores) REQUIRE(count == 1);
    out.assign(size, NAN), stores.assign(size, 0);
    reduce(p, plan, sums, out, stores);
  }
  Values want = expected(p, t, size);
  if (config.splits > 1 && p.direction == Direction::kForward)
    each(p.ys, p.n, p.k, p.out,
         [&](auto, int64_t k, auto, auto, auto, size_t at) { want[at] += addend(p, k); });
  const auto check = [&](auto, auto, auto, auto, auto, size_t at) {
    REQUIRE(stores[at] == 1);
    REQUIRE(out[at] == want[at]);
    stores[at] = 0;
  };
  if (p.direction == Direction::kForward)
    each(p.ys, p.n, p.k, p.out, check);
  else if (p.direction == Direction::kInputGrad)
    each(p.xs, p.n, p.c, p.in, check);
  else
    each(p.ws, p.k, p.c / p.groups, p.filter, check);
  for (int count : stores) REQUIRE(count == 0);  // nothing between the results was written
}

Tensors random_tensors(const ConvProblem& p) {
  return {small_integers(p.xs, p.n, p.c, p.in), small_integers(p.ws, p.k, p.c / p.groups, p.filter),
          small_integers(p.ys, p.n, p.k, p.out)};
}

void check_random(Direction direction, int problems) {
  for (int i = 0; i < problems; i++) {
    const ConvProblem p = random_problem(direction);
    CAPTURE(i);
    REQUIRE(conv_wgmma_refuses(p) == nullptr);
    const std::vector<int> forms = conv_wgmma_forms(p);
    const int form = forms[size_t(between(0, int(forms.size()) - 1))];
    const int columns = 64 << between(0, 2);
    const int64_t depth = conv_wgmma_plan(p, {columns, 1, form}).arguments.part;
    const int splits = conv_wgmma_can_split(p) ? int(conv_wgmma_filled_parts(depth, between(1, 3))) : 1;
    CAPTURE(form);
    CAPTURE(columns);
    CAPTURE(splits);
    compare(p, {columns, splits, form}, random_tensors(p));
  }
}

}  // namespace

TEST_CASE("convolutions by the copy engine's boxes: forward") {
  check_random(Direction::kForward, 50);
}

TEST_CASE("convolutions by the copy engine's boxes: gradients of inputs") {
  check_random(Direction::kInputGrad, 50);
}

TEST_CASE("convolutions by the copy engine's boxes: gradients of weights") {
  check_random(Direction::kWeightGrad, 40);
}

TEST_CASE("neighbours by their first and last, which are not in order") {
  ConvProblem p;
  p.dtype = c10::ScalarType::BFloat16, p.n = 1, p.c = 8, p.k = 8;
  p.in[1] = p.out[1] = 2, p.in[2] = p.out[2] = 4;
  lay_out(p.xs, {1, 8, 1, 2, 4}, {0, 2, 3, 4, 1}, 0);
  lay_out(p.ws, {8, 8, 1, 1, 1}, {0, 1, 2, 3, 4}, 0);
  lay_out(p.ys, {1, 8, 1, 2, 4}, {0, 1, 2, 4, 3}, 0);
  p.normalize();
  compare(p, {64, 1, CONV_WGMMA_PIXEL_COLUMNS}, random_tensors(p));
}
