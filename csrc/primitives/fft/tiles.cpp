#include "primitives/fft/tiles.h"

#include <algorithm>
#include <bit>
#include <string>

#include "cl/rounding.h"
#include "runtime/fetch_kernel.h"

namespace dlb::fft {
namespace {

constexpr int64_t kGpuGroup = 256;
constexpr uint64_t kVectorBytes = 64;  // what a CPU's buffers are aligned to, the widest vector
constexpr int64_t kCpuItemsPerUnit = 2;

int64_t element_bytes(bool is_double) {
  return is_double ? 8 : 4;
}

int64_t floor_log2(int64_t n) {
  return std::bit_width(static_cast<uint64_t>(n)) - 1;
}

// Whether neighbouring lanes are neighbours in memory.
bool is_across(const params::FftView& view) {
  return view.lane == (view.im == 1 ? 2 : 1);
}

// log2 of a GPU tile's lanes: enough work for a group, whole sectors of memory, no more than local memory
// takes.
int64_t gpu_lanes_log2(const TileTask& t, const cl::Device& device, bool is_double) {
  constexpr int64_t kNumbers = 1024, kSector = 16;
  const int64_t most = std::max<int64_t>(1, most_in_tile(device, is_double) / t.capacity);
  int64_t wanted = std::max<int64_t>(1, kNumbers / t.capacity);
  if (is_across(t.in) || is_across(t.out)) wanted = std::max(wanted, kSector);
  const int64_t needed = std::bit_ceil(static_cast<uint64_t>(t.lanes));
  return floor_log2(std::min({most, wanted, needed}));
}

int64_t batch_of(const TileTask& t) {
  int64_t count = 1;
  for (const int64_t size : t.sizes) count *= size;
  return count;
}

int64_t cpu_items(const cl::Device& device, int64_t tiles) {
  return std::min(tiles, kCpuItemsPerUnit * device.compute_units);
}

// How fft/registers.cl computes a task on a GPU.
struct RegisterForm {
  int64_t log2 = 0, width = 0;  // of a transform's numbers, and of a tile's transforms
  bool in_across = false, out_across = false, pairs = false;

  size_t items() const { return size_t{1} << (log2 + width - 3); }
  int64_t local_reals() const { return 2 * ((int64_t{1} << (log2 + width)) * 33 / 32); }
  std::string options(bool is_double) const {
    std::string text = "-DFFT_LOG2=" + std::to_string(log2) + " -DFFT_WIDTH=" + std::to_string(width) +
                       " -DIN_ACROSS=" + std::to_string(in_across) +
                       " -DOUT_ACROSS=" + std::to_string(out_across);
    if (pairs) text += " -DFFT_PAIRS";
    if (is_double) text += " -DFFT_DOUBLE";
    return text;
  }
};

// The form, where the task is one of powers of two without anything before or after that local memory is
// needed for.
std::optional<RegisterForm> register_form(const TileTask& t, const cl::Device& device, bool is_double) {
  constexpr int64_t kLeastLog2 = 3, kMostLog2 = 12, kNumbers = 1024, kSectorBytes = 32, kLineBytes = 128;
  constexpr int32_t kFlags =
      params::FFT_SWAP_IN | params::FFT_SWAP_OUT | params::FFT_STEPS | params::FFT_STEPS_OF_BATCH;
  if (is_cpu(device) || !std::has_single_bit(static_cast<uint64_t>(t.n)) || (t.flags & ~kFlags) != 0 ||
      t.n != t.points || t.in_count != t.n || t.out_count != t.n)
    return std::nullopt;
  RegisterForm form;
  form.log2 = floor_log2(t.n);
  const int64_t most_log2 = is_double ? kMostLog2 - 1 : kMostLog2, complex = 2 * element_bytes(is_double);
  if (form.log2 < kLeastLog2 || form.log2 > most_log2) return std::nullopt;
  form.in_across = t.in.lane < t.in.step, form.out_across = t.out.lane < t.out.step;
  form.pairs = t.in.im == 1 && t.out.im == 1;
  // Enough numbers for a group, and whole lines of memory where transforms lie across, or at least sectors.
  int64_t wanted = std::max<int64_t>(1, kNumbers / t.n), least = 1;
  if (form.in_across || form.out_across)
    wanted = std::max(wanted, kLineBytes / complex), least = kSectorBytes / complex;
  const auto lanes = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(t.lanes)));
  const int64_t chosen = std::min({wanted, lanes, (int64_t{1} << most_log2) / t.n});
  if (chosen < std::min(least, lanes)) return std::nullopt;
  form.width = floor_log2(chosen);
  const bool enough =
      form.local_reals() * element_bytes(is_double) <= static_cast<int64_t>(device.local_mem) &&
      form.items() <= device.max_work_group;
  return enough ? std::optional(form) : std::nullopt;
}

int64_t lanes_of(const TileTask& t, const cl::Device& device, bool is_double) {
  if (is_cpu(device)) return tile_width(device, is_double);
  const auto form = register_form(t, device, is_double);
  return int64_t{1} << (form ? form->width : gpu_lanes_log2(t, device, is_double));
}

cl::Kernel& kernel_of(const TileTask& t, cl::Device& device, bool is_double) {
  if (const auto form = register_form(t, device, is_double)) {
    return fetch_kernel(device, {"fft/common.clh", "fft/registers.cl"}, "fft_registers",
                        form->options(is_double));
  }
  return fetch_kernel(device, {"fft/common.clh", "fft/tile.clh", "fft/butterfly.clh", "fft/stockham.cl"},
                      "fft_stockham",
                      options_of(device, is_double, t.n % 7 == 0, t.n % 11 == 0 || t.n % 13 == 0));
}

}  // namespace

int64_t tile_width(const cl::Device& device, bool is_double) {
  if (!is_cpu(device)) return 1;
  constexpr int64_t kLeast = 4, kMost = 16;  // vectors that fft/tile.clh has
  const int64_t floats = std::bit_floor(device.vector_floats);
  return std::clamp<int64_t>(is_double ? floats / 2 : floats, kLeast, kMost);
}

int64_t most_in_tile(const cl::Device& device, bool is_double) {
  constexpr int64_t kCpuMost = 8192, kLocalBytes = 48 * 1024;
  if (is_cpu(device)) return kCpuMost;
  return std::min<int64_t>(kLocalBytes, static_cast<int64_t>(device.local_mem)) /
         (4 * element_bytes(is_double));
}

bool fits_tile(const TileTask& task, const cl::Device& device, bool is_double) {
  return task.capacity <= most_in_tile(device, is_double) || register_form(task, device, is_double);
}

TileLaunch::TileLaunch(const TileTask& t, cl::Device& device, bool is_double)
    : is_double_(is_double), device_(device), kernel_(kernel_of(t, device, is_double)) {
  const auto i32 = [](int64_t v) { return static_cast<int32_t>(v); };
  const int64_t width = lanes_of(t, device, is_double);
  p_.in = t.in, p_.out = t.out;
  p_.radices = radices_of(t.n), p_.passes = passes_of(p_.radices);
  for (size_t d = 0; d < params::FFT_BATCH_DIMS; d++) p_.sizes[d] = i32(t.sizes[d]);
  p_.lanes = i32(t.lanes), p_.blocks = i32(ceil_div(t.lanes, width));
  p_.n = i32(t.n), p_.points = i32(t.points), p_.in_count = i32(t.in_count), p_.out_count = i32(t.out_count);
  p_.capacity = i32(t.capacity), p_.flags = t.flags, p_.width = i32(floor_log2(width));
  const auto registers = register_form(t, device, is_double);
  if (registers)
    twiddle_ = {TableKind::kRoots, is_double, t.n, t.n / 8};
  else
    twiddle_ = {TableKind::kTwiddles, is_double, t.n, static_cast<int64_t>(p_.radices)};
  if (t.flags & (params::FFT_PACK | params::FFT_UNPACK))
    real_ = TableKey{TableKind::kRoots, is_double, 2 * t.points, t.points / 2 + 1};
  if (t.flags & params::FFT_CHIRP) {
    chirp_ = TableKey{TableKind::kChirp, is_double, t.points};
    spectrum_ = TableKey{TableKind::kSpectrum, is_double, t.points, t.n};
  }
  if (t.flags & params::FFT_STEPS) {
    p_.step_points = i32(t.step_points), p_.step_bits = i32((floor_log2(t.step_points) + 1) / 2);
    steps_ =
        TableKey{TableKind::kSteps,       is_double, t.step_points, p_.step_bits, is_cpu(device) ? width : 0,
                 is_cpu(device) ? t.n : 0};
  }
  if (registers) {
    group_ = registers->items();
    local_bytes_ = static_cast<size_t>(registers->local_reals() * element_bytes(is_double));
  } else if (!is_cpu(device)) {
    const int64_t work = std::max<int64_t>(32, std::bit_ceil(static_cast<uint64_t>(t.capacity * width / 4)));
    group_ = std::min<size_t>({static_cast<size_t>(std::min(work, kGpuGroup)), device.max_work_group,
                               std::bit_floor(kernel_.max_work_group())});
    local_bytes_ = static_cast<size_t>(4 * t.capacity * width * element_bytes(is_double));
  }
}

uint64_t TileLaunch::workspace(const TileTask& t, const cl::Device& device, bool is_double) {
  if (!is_cpu(device)) return 0;
  const int64_t width = tile_width(device, is_double);
  const int64_t items = cpu_items(device, batch_of(t) * ceil_div(t.lanes, width));
  return static_cast<uint64_t>(items * 4 * t.capacity * width * element_bytes(is_double)) + kVectorBytes;
}

void TileLaunch::run(Stream& stream, const Buffer& in, const Buffer& out, int64_t first, int64_t count,
                     double scale, MemRef work) const {
  params::FftTiles p = p_;
  p.in.offset += in.offset, p.out.offset += out.offset;
  p.first = static_cast<int32_t>(first), p.tiles = static_cast<int32_t>(count * p.blocks);
  p.per_item = 1;
  if (is_cpu(device_))
    p.per_item = static_cast<int32_t>(ceil_div(int64_t{p.tiles}, cpu_items(device_, p.tiles)));
  if (is_double_)
    launch<double>(stream, in, out, p, scale, work);
  else
    launch<float>(stream, in, out, p, scale, work);
}

template <class Real>
void TileLaunch::launch(Stream& stream, const Buffer& in, const Buffer& out, params::FftTiles p, double scale,
                        MemRef work) const {
  const auto twiddle = table_of(twiddle_, stream);
  std::shared_ptr<const Table> held[4];
  Buffer tables[4];
  const std::optional<TableKey>* keys[] = {&real_, &chirp_, &spectrum_, &steps_};
  for (size_t i = 0; i < 4; i++) {
    if (*keys[i]) held[i] = table_of(**keys[i], stream);
    tables[i] = held[i] ? held[i]->buffer : twiddle->buffer;
  }
  p.twiddle = twiddle->buffer.offset, p.real = tables[0].offset, p.chirp = tables[1].offset;
  p.spectrum = tables[2].offset, p.steps = tables[3].offset;
  const auto launch_with = [&](const cl::Range& range, const auto&... rest) {
    kernel_.launch(stream.queue(), range, in.mem, out.mem, twiddle->buffer.mem, tables[0].mem, tables[1].mem,
                   tables[2].mem, tables[3].mem, p, static_cast<Real>(scale), rest...);
  };
  if (!is_cpu(device_)) {
    launch_with(cl::Range::linear(static_cast<size_t>(p.tiles), group_), cl::Local{local_bytes_});
    return;
  }
  const uint64_t vector = sizeof(Real) << p.width;
  const auto offset =
      static_cast<int64_t>(ceil_div(ceil_div(work.offset, kVectorBytes) * kVectorBytes, vector));
  launch_with(cl::Range::linear(static_cast<size_t>(ceil_div(p.tiles, p.per_item)), 1), work.mem, offset);
}

std::unique_ptr<Invoker<FftProblem>> tile_invoker(const FftProblem& p, const TileTask& task,
                                                  cl::Device& device) {
  auto launch = std::make_shared<const TileLaunch>(task, device, p.is_double());
  return make_invoker<FftProblem>(
      [launch, batch = batch_of(task), p](Stream& stream, const MemoryOperands& o, MemRef work) {
        launch->run(stream, real_place(o.in0, p.types[0]), real_place(o.out0, p.result_type()), 0, batch,
                    o.scalar, work);
      });
}

double padded_transforms(const TileTask& t, const cl::Device& device, bool is_double) {
  const int64_t width = lanes_of(t, device, is_double);
  return static_cast<double>(batch_of(t) * ceil_div(t.lanes, width) * width);
}

TileTask task_of(const FftProblem& p, const Form& form, const cl::Device& device) {
  TileTask t;
  t.n = t.points = form.points;
  t.in = form.in, t.out = form.out, t.flags = form.flags;
  t.in_count = form.in_count, t.out_count = form.out_count, t.capacity = form.capacity();
  // Rows are transposed on the way, so that any dimension can lie across the lanes; columns cannot.
  const int64_t width = is_cpu(device) ? tile_width(device, p.is_double()) : 8;
  const auto slow = [](const params::FftView& view, size_t d) {
    params::FftView with = view;
    with.lane = view.batch[d];
    return !is_across(with) && !(view.step == 2 && view.im == 1);
  };
  double best = 0;
  size_t lane = 0;
  for (size_t d = 0; d < kMostBatchDims; d++) {
    const double waste =
        static_cast<double>(ceil_div(p.batch[d], width) * width) / static_cast<double>(p.batch[d]);
    const double cost = waste * (1 + 2 * slow(t.in, d) + 2 * slow(t.out, d));
    if (d == 0 || cost < best) best = cost, lane = d;
  }
  for (size_t d = 0; d < kMostBatchDims; d++) t.sizes[d] = d == lane ? 1 : p.batch[d];
  t.lanes = p.batch[lane];
  for (params::FftView* view : {&t.in, &t.out}) view->lane = view->batch[lane], view->batch[lane] = 0;
  return t;
}

}  // namespace dlb::fft
