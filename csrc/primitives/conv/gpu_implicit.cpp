// Convolution solvers "gpu_implicit": implicit GEMM with gathered operands for GPU-class devices, all
// directions, and "gpu_mma": the same on tensor cores; see conv/gpu_implicit.cl. A long reduction with few
// results is divided over work-groups and added by a second kernel.
#include <algorithm>
#include <numeric>

#include "cl/rounding.h"
#include "kernels/conv/params.h"
#include "primitives/common/factor.h"
#include "primitives/common/gpu_tile.h"
#include "primitives/common/specialised.h"
#include "primitives/conv/solvers.h"
#include "primitives/conv/strides.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

using Arguments = params::ConvImplicit;

// A tensor's strides as the kernel sees them.
struct Tensor {
  int64_t n, c, s[3];
};

Tensor tensor(const int64_t (&strides)[5]) {
  return {strides[0], strides[1], {strides[2], strides[3], strides[4]}};
}

Tensor dense(int64_t channels, const int32_t (&sizes)[3]) {
  const int64_t plane = int64_t(sizes[1]) * sizes[2], volume = sizes[0] * plane;
  return {channels * volume, volume, {plane, sizes[2], 1}};
}

bool spatial_in_fours(const Tensor& t) {
  return in_fours({t.n, t.s[0], t.s[1], t.s[2]});
}

// The three tensors by their roles in the kernel: x is gathered, y has the pixels.
struct Roles {
  bool input_grad, weight_grad;
  Tensor x, y, w;
  const int32_t *x_size, *y_size;
  int64_t rows, channels;            // per group: of w and y, and summed (columns of the weight gradient)
  int64_t w_row, w_c, w_group;       // strides of w
  int64_t taps, x_pixels, y_pixels;  // y_pixels of one image
};

Roles roles_of(const ConvProblem& p) {
  Roles r{};
  r.input_grad = p.direction == ConvDirection::kInputGrad,
  r.weight_grad = p.direction == ConvDirection::kWeightGrad;
  r.x = tensor(p.xs), r.y = tensor(p.ys), r.w = tensor(p.ws);
  r.x_size = p.in, r.y_size = p.out;
  r.rows = p.k / p.groups, r.channels = p.c / p.groups;
  r.w_row = p.ws[0], r.w_c = p.ws[1], r.w_group = r.rows * p.ws[0];
  if (r.input_grad) {
    std::swap(r.x, r.y), std::swap(r.x_size, r.y_size);
    std::swap(r.rows, r.channels), std::swap(r.w_row, r.w_c);
  }
  r.taps = p.taps();
  r.x_pixels = int64_t(r.x_size[0]) * r.x_size[1] * r.x_size[2];
  r.y_pixels = int64_t(r.y_size[0]) * r.y_size[1] * r.y_size[2];
  return r;
}

// True when four channels of x can be read at once, whatever its offset: the kernel's X_VECTOR.
bool x_vector(const Roles& r) {
  return r.x.c == 1 && r.channels % 4 == 0 && spatial_in_fours(r.x);
}

// Whether the sums over parts can be put where they belong: pixels (taps) evenly spaced in memory.
bool can_split(const ConvProblem& p) {
  int64_t stride;
  return p.direction == ConvDirection::kWeightGrad  ? evenly_spaced(p.filter, p.ws, stride)
         : p.direction == ConvDirection::kInputGrad ? evenly_spaced(p.in, p.xs, stride)
                                                    : evenly_spaced(p.out, p.ys, stride);
}

// Stride phases of the input gradient, and those of them that any tap reaches.
struct Phases {
  int64_t all = 1, reached = 1;
};

Phases phases_of_stride(const ConvProblem& p) {
  Phases phases;
  if (p.direction == ConvDirection::kInputGrad)
    for (int d = 0; d < 3; d++) {
      phases.all *= p.stride[d];
      phases.reached *= std::min(p.filter[d], p.stride[d] / std::gcd(p.stride[d], p.dilation[d]));
    }
  return phases;
}

// Whether one plain launch writes what no tap reaches: better than the kernel's scattered stores of a phase.
bool fills_first(const ConvProblem& p, int splits) {
  const Phases phases = phases_of_stride(p);
  return splits == 1 && phases.reached < phases.all && can_split(p);
}

// Columns of the product, of the largest stride phase.
int64_t columns_of(const ConvProblem& p, const Roles& r) {
  if (r.weight_grad) return r.channels * r.taps;
  int64_t pixels = p.n;
  for (int d = 0; d < 3; d++) pixels *= r.input_grad ? ceil_div(r.y_size[d], p.stride[d]) : r.y_size[d];
  return pixels;
}

int64_t outputs_of(const ConvProblem& p) {
  if (p.direction == ConvDirection::kWeightGrad) return int64_t(p.k) * (p.c / p.groups) * p.taps();
  return p.direction == ConvDirection::kForward ? int64_t(p.n) * p.k * p.out_pixels()
                                                : int64_t(p.n) * p.c * p.in_pixels();
}

int64_t depth_of(const ConvProblem& p, const Roles& r) {
  return r.weight_grad ? int64_t(p.n) * r.y_pixels
                       : ceil_div(r.channels * r.taps, phases_of_stride(p).reached);
}

std::vector<GpuPlan> plans(const ConvProblem& p, std::initializer_list<int> tiles, const cl::Device& device) {
  const Roles r = roles_of(p);
  const int64_t columns = columns_of(p, r), phases = phases_of_stride(p).reached, depth = depth_of(p, r);
  std::vector<GpuPlan> list;
  for (int index : tiles) {
    const GpuTile& tile = gpu_tile(index);
    if (!gpu_tile_fits(index, device, p.dtype) || (index == kThinTile && r.rows > 2 * tile.m)) continue;
    const double count = double(ceil_div(r.rows, tile.m)) * ceil_div(columns, tile.n) * phases * p.groups;
    add_gpu_plans(list, index, count, depth, outputs_of(p), can_split(p), p.dtype, device, rates_of(device));
  }
  return list;
}

// Few tiles per direction, as each is a program: on an H100 the others together save less than 0.3 % of 480
// convolutions' time. The weight gradient has few columns.
std::vector<GpuPlan> all_plans(const ConvProblem& p, const cl::Device& device, bool mma) {
  if (mma && p.dtype == c10::ScalarType::Float)
    return plans(p, {kMmaTf32Tile, kMmaWideTile, kMmaSquareTile}, device);
  if (mma) return plans(p, {kMmaWideTile, kMmaSquareTile}, device);
  std::vector<GpuPlan> list = p.direction == ConvDirection::kWeightGrad
                                  ? plans(p, {kBlockTile, kLargeTile, kThinTile}, device)
                                  : plans(p, {kWideTile, kLargeTile, kThinTile}, device);
  return list.empty() ? plans(p, {kBlockTile, kSquareTile}, device) : list;
}

GpuPlan plan(const ConvProblem& p, const cl::Device& device, bool mma) {
  if (mma) {
    const auto list = p.dtype == c10::ScalarType::Float ? plans(p, {kMmaTf32Tile, kMmaWideTile}, device)
                                                        : plans(p, {kMmaWideTile}, device);
    return fastest(list.empty() ? plans(p, {kMmaSquareTile}, device) : list);
  }
  // An input gradient stores scattered pixels, which costs the large tile more than its plan says.
  const bool wide = p.direction == ConvDirection::kInputGrad && gpu_tile_fits(kWideTile, device, p.dtype);
  return fastest(wide ? plans(p, {kWideTile, kThinTile}, device) : all_plans(p, device, false));
}

// Gives each axis whose taps can leave x its place in the validity masks; false when the masks are too short.
bool set_bits(Arguments& a, const ConvProblem& p, const Roles& r) {
  int bits = 0;
  for (int d = 0; d < 3; d++) {
    const int64_t last =
        int64_t(p.out[d] - 1) * p.stride[d] - p.padding[d] + int64_t(p.filter[d] - 1) * p.dilation[d];
    const bool trivial = p.filter[d] == 1 && p.stride[d] == 1 && p.padding[d] == 0 && p.in[d] == p.out[d];
    const bool checked = r.input_grad ? !trivial : p.padding[d] > 0 || last >= p.in[d];
    a.bit[d] = checked ? bits : -1;
    bits += checked ? p.filter[d] : 0;
  }
  return bits <= 30;
}

// How the kernel reads a, which is w, or y in the weight gradient. `a_vector` still lacks the test of the
// offset.
void set_a(Arguments& a, const ConvProblem& p, const Roles& r) {
  if (r.weight_grad) {
    a.a_row = r.y.c, a.a_group = r.rows * r.y.c;
    a.a_k_fast = r.y.c != 1 || r.y_pixels == 1;
    int64_t pixel;
    const bool pixels = evenly_spaced(p.out, p.ys, pixel) && pixel == 1;
    a.a_vector = a.a_k_fast ? pixels && in_fours({r.y_pixels, r.y.n, r.y.c})
                            : r.rows % 4 == 0 && spatial_in_fours(r.y);
    return;
  }
  a.a_row = r.w_row, a.a_group = r.w_group;
  a.a_k_fast = r.w_row != 1 || r.rows == 1;
  const bool taps_in_fours = r.taps == 1 || in_fours({r.w.s[0], r.w.s[1], r.w.s[2]});
  int64_t tap = 1;
  const bool taps_dense = r.taps == 1 || (evenly_spaced(p.filter, p.ws, tap) && tap == 1 && !r.input_grad);
  if (!a.a_k_fast)
    a.a_vector = taps_in_fours && in_fours({r.rows, r.w_c, a.a_group});
  else if (a.c_fastest)
    a.a_vector = taps_in_fours && r.w_c == 1 && in_fours({r.channels, r.w_row, a.a_group});
  else
    a.a_vector = taps_dense && r.w_c == r.taps && in_fours({r.channels * r.taps, r.w_row, a.a_group});
}

// The direction in which the kernel may store four neighbours of the output at once; the test of the offset
// is still to come.
int out_vector(const ConvProblem& p, const Roles& r, const Arguments& a) {
  int64_t stride;
  if (r.weight_grad) {
    if (!in_fours({r.channels * r.taps, a.out_row, a.out_group})) return 0;
    const bool taps_in_fours = r.taps == 1 || in_fours({r.w.s[0], r.w.s[1], r.w.s[2]});
    if (a.c_fastest) return r.w_c == 1 && r.channels % 4 == 0 && taps_in_fours;
    return r.w_c == r.taps && (r.taps == 1 || (evenly_spaced(p.filter, p.ws, stride) && stride == 1));
  }
  if (r.y.c == 1 && spatial_in_fours(r.y) && in_fours({r.rows, a.out_group})) return 2;
  if (phases_of_stride(p).all > 1 || !in_fours({r.y_pixels, r.y.n, r.y.c, a.out_group})) return 0;
  const bool flat = r.input_grad ? evenly_spaced(p.in, p.xs, stride) : evenly_spaced(p.out, p.ys, stride);
  return flat && stride == 1;
}

// All but the offsets.
Arguments arguments_of(const ConvProblem& p, const Roles& r, int splits) {
  Arguments a{};
  a.part_stride = outputs_of(p);
  a.batch = p.n, a.rows = r.rows, a.channels = r.channels, a.splits = splits;
  a.phased = r.input_grad ? 1 + fills_first(p, splits) : 0, a.has_bias = p.has_bias && splits == 1;
  a.c_fastest = x_vector(r) || (r.w_c == 1 && r.channels > 1);
  a.x_n = r.x.n, a.x_c = r.x.c, a.x_group = r.channels * r.x.c;
  Tensor y = r.y, w = r.w;
  int64_t w_row = r.w_row, w_c = r.w_c, w_group = r.w_group;
  if (splits > 1 && r.weight_grad) {  // the output is a dense partial result
    w = dense(r.channels, p.filter);
    w_row = w.n, w_c = w.c, w_group = r.rows * w.n;
  } else if (splits > 1) {
    y = dense(r.input_grad ? p.c : p.k, r.input_grad ? p.in : p.out);
  }
  a.y_n = y.n, a.w_c = w_c;
  for (int d = 0; d < 3; d++) {
    a.x_size[d] = r.x_size[d], a.y_size[d] = r.y_size[d], a.taps[d] = p.filter[d];
    a.stride[d] = p.stride[d], a.pad[d] = p.padding[d], a.dilation[d] = p.dilation[d];
    a.x_s[d] = r.x.s[d], a.y_s[d] = y.s[d], a.w_s[d] = w.s[d];
  }
  set_a(a, p, r);
  a.out_row = r.weight_grad ? w_row : y.c, a.out_group = r.weight_grad ? w_group : r.rows * y.c;
  a.out_vector = splits > 1 ? 0 : out_vector(p, r, a);
  return a;
}

SplitReduce reduce_of(const ConvProblem& p, int splits) {
  SplitReduce s{};
  int64_t inner = 0;
  const int64_t* strides;
  if (p.direction == ConvDirection::kWeightGrad) {
    evenly_spaced(p.filter, p.ws, inner);
    strides = p.ws, s.batch = p.k, s.m = p.c / p.groups, s.n = p.taps();
  } else if (p.direction == ConvDirection::kInputGrad) {
    evenly_spaced(p.in, p.xs, inner);
    strides = p.xs, s.batch = p.n, s.m = p.c, s.n = p.in_pixels();
  } else {
    evenly_spaced(p.out, p.ys, inner);
    strides = p.ys, s.batch = p.n, s.m = p.k, s.n = p.out_pixels();
  }
  s.c_batch = strides[0], s.c_m = strides[1], s.c_n = inner;
  s.d_m = 1;  // the bias
  s.splits = splits;
  return s;
}

std::string options_of(const Roles& r, const ConvProblem& p, int tile, const cl::Device& device) {
  Arguments a{};
  std::string options = gpu_tile_options(tile, device, p.dtype);
  if (r.weight_grad) options += " -DWGRAD=1";
  if (x_vector(r)) options += " -DX_VECTOR=1";
  if (!set_bits(a, p, r)) options += " -DWIDE=1";
  return options;
}

std::string constants_of(const Arguments& a) {
  Constants c;
  c.set("part_stride", a.part_stride), c.set("batch", a.batch), c.set("rows", a.rows);
  c.set("channels", a.channels), c.set("splits", a.splits), c.set("x_size", a.x_size);
  c.set("y_size", a.y_size), c.set("taps", a.taps), c.set("stride", a.stride), c.set("pad", a.pad);
  c.set("dilation", a.dilation), c.set("x_n", a.x_n), c.set("x_c", a.x_c), c.set("x_s", a.x_s);
  c.set("x_group", a.x_group), c.set("y_n", a.y_n), c.set("y_s", a.y_s), c.set("w_c", a.w_c);
  c.set("w_s", a.w_s), c.set("a_row", a.a_row), c.set("a_group", a.a_group), c.set("out_row", a.out_row);
  c.set("out_group", a.out_group), c.set("bit", a.bit), c.set("phased", a.phased);
  c.set("c_fastest", a.c_fastest), c.set("out_vector", a.out_vector), c.set("has_bias", a.has_bias);
  c.set("a_k_fast", a.a_k_fast), c.set("a_vector", a.a_vector), c.set("x_aligned", 1);
  return c.text();
}

constexpr std::initializer_list<const char*> kFiles = {"common/gpu_tile.clh", "common/gpu_mma.clh",
                                                       "conv/gpu_implicit.cl"};

class ImplicitInvoker final : public ConvInvoker {
 public:
  ImplicitInvoker(const ConvProblem& p, cl::Device& device, const Config& config)
      : direction_(p.direction),
        dtype_(p.dtype),
        has_bias_(p.has_bias),
        epilogue_(p.epilogue),
        arguments_(arguments_of(p, roles_of(p), config.as<GpuTileConfig>().splits)),
        kernel_(fetch_with(p.epilogue, device, kFiles, "conv_gpu_implicit",
                           options_of(roles_of(p), p, config.as<GpuTileConfig>().tile, device))) {
    const Roles r = roles_of(p);
    const GpuTile& tile = gpu_tile(config.as<GpuTileConfig>().tile);
    set_bits(arguments_, p, r);
    if (config.specialised)
      own_ = specialised_kernel(
          device, epilogue_source(p.epilogue, device) + constants_of(arguments_) + kernel_text(kFiles),
          options_of(r, p, config.as<GpuTileConfig>().tile, device), "conv_gpu_implicit");
    range_.dims = 3;
    range_.local[0] = tile.items();
    range_.global[0] = ceil_div(r.rows, tile.m) * ceil_div(columns_of(p, r), tile.n) * tile.items();
    range_.global[1] = arguments_.phased == 2 ? phases_of_stride(p).reached : phases_of_stride(p).all;
    range_.global[2] = int64_t(p.groups) * arguments_.splits;
    if (arguments_.splits == 1 && !fills_first(p, 1)) return;
    // the program of matrix products, which nearly every network needs anyway
    const int large = tile.mma() ? mma_large_tile(p.dtype) : kWideTile;
    const int small = tile.mma() ? kMmaSquareTile : kSquareTile;
    const int general = gpu_tile_fits(large, device, p.dtype) ? large : small;
    reduce_ = &gpu_gemm_kernel(device, p.dtype, general, "split_reduce",
                               transposed(p.epilogue));                    // whose rows are channels
    split_ = reduce_of(p, arguments_.splits > 1 ? arguments_.splits : 0);  // the sum of no parts is zero
  }

  void run(Stream& stream, const ConvProblem::Operands& o, MemRef workspace) override {
    const bool weight_grad = direction_ == ConvDirection::kWeightGrad;
    const Buffer& x = direction_ == ConvDirection::kInputGrad ? o.y : o.x;
    const Buffer& a = weight_grad ? o.y : o.w;
    const Buffer& out = weight_grad ? o.w : direction_ == ConvDirection::kInputGrad ? o.x : o.y;
    const Buffer& bias = has_bias_ ? o.bias : a;
    Arguments list = arguments_;
    list.x_offset = x.offset, list.a_offset = a.offset, list.out_offset = out.offset,
    list.bias_offset = bias.offset;
    list.partial_offset = static_cast<int64_t>(workspace.offset / partial_bytes(dtype_));
    // what the kernel of its own takes for granted
    const bool aligned = in_fours({x.offset, a.offset, out.offset});
    list.x_aligned = x.offset % 4 == 0;
    list.a_vector &= a.offset % 4 == 0;
    if (out.offset % 4) list.out_vector = 0;
    set_bounds(list, o.bounds);
    const auto reduce = [&] {
      launch_split_reduce(
          *reduce_, stream.queue(), split_, dtype_, workspace.mem ? workspace : MemRef{out.mem, 0}, out, bias,
          Factor{}, has_bias_ ? Factor{} : Factor{0, 0, 0}, weight_grad ? Bounds{} : o.bounds, epilogue_, o);
    };
    if (reduce_ && split_.splits == 0) reduce();
    cl::Kernel& kernel = own_ && aligned ? *own_ : kernel_;
    kernel.launch_with(stream.queue(), range_, [&](auto& arguments) {
      for (const cl_mem mem : {x.mem, a.mem, out.mem, bias.mem, workspace.mem ? workspace.mem : out.mem})
        arguments.add(mem);
      arguments.add(list);
      add_epilogue(arguments, epilogue_, o);
    });
    if (reduce_ && split_.splits > 0) reduce();
  }

 private:
  const ConvDirection direction_;
  const c10::ScalarType dtype_;
  const bool has_bias_;
  const Epilogue epilogue_;
  Arguments arguments_;
  cl::Kernel& kernel_;
  std::shared_ptr<cl::Kernel> own_;  // of a program for this problem
  cl::Kernel* reduce_ = nullptr;
  cl::Range range_;
  SplitReduce split_{};
};

class Implicit final : public ConvSolver {
 public:
  explicit Implicit(bool mma) : mma_(mma) {}
  const char* name() const override { return mma_ ? "gpu_mma" : "gpu_implicit"; }
  bool takes_epilogue() const override { return true; }
  ConfigNames config_names() const override { return ConfigNames::of<GpuTileConfig>(); }
  Applicability applicable(const ConvProblem& p, const cl::Device& device) const override {
    if (const char* reason = gpu_tiles_refuse(device, p.dtype)) return Applicability::no(reason);
    if (mma_)
      if (const char* reason = gpu_mma_refuses(device, p.dtype, p.tf32)) return Applicability::no(reason);
    if (p.c == 0) return Applicability::no("no input channels");
    // x and y are reached up to the padding beyond their ends before the test says that nothing is there
    const int64_t limit = INT32_MAX / 2;
    if (span(p.xs, {p.n, p.c, p.in[0], p.in[1], p.in[2]}) > limit ||
        span(p.ys, {p.n, p.k, p.out[0], p.out[1], p.out[2]}) > limit ||
        span(p.ws, {p.k, p.c / p.groups, p.filter[0], p.filter[1], p.filter[2]}) > limit)
      return Applicability::no("a tensor of 2^30 elements or more");
    return Applicability::yes();
  }
  uint64_t workspace(const ConvProblem& p, const cl::Device&, const Config& config) const override {
    return config.as<GpuTileConfig>().splits == 1
               ? 0
               : partial_bytes(p.dtype) * config.as<GpuTileConfig>().splits * outputs_of(p);
  }
  std::vector<Config> configs(const ConvProblem& p, const cl::Device& device) const override {
    return gpu_configs(plan(p, device, mma_), all_plans(p, device, mma_), p.dtype);
  }
  bool has_config(const ConvProblem& p, const cl::Device& device, const Config& config) const override {
    return has_gpu_config(config, mma_, depth_of(p, roles_of(p)), outputs_of(p), can_split(p), p.dtype,
                          device);
  }
  Config first_config(const ConvProblem& p, const cl::Device& device) const override {
    return config_of(plan(p, device, mma_));
  }
  bool can_specialise(const ConvProblem&, const cl::Device&, const Config&) const override { return true; }
  double estimate(const ConvProblem& p, const cl::Device& device) const override {
    // measured over planned; an input gradient stores the pixels of a stride phase with gaps
    return (p.direction == ConvDirection::kInputGrad ? 1.07 : 1.03) * plan(p, device, mma_).time;
  }
  std::unique_ptr<ConvInvoker> invoker(const ConvProblem& p, cl::Device& device,
                                       const Config& config) const override {
    return std::make_unique<ImplicitInvoker>(p, device, config);
  }

 private:
  const bool mma_;
};

}  // namespace

const ConvSolver* conv_gpu_implicit() {
  static const Implicit solver(false);
  return &solver;
}

const ConvSolver* conv_gpu_mma() {
  static const Implicit solver(true);
  return &solver;
}

}  // namespace dlb::solver
