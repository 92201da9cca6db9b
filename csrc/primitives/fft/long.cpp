#include "primitives/fft/long.h"

#include <algorithm>
#include <bit>

#include "cl/rounding.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"

namespace dlb::fft {
namespace {

using params::FftEdge;
using params::FftView;

constexpr uint64_t kAlign = 64;

int64_t scratch_bytes(int64_t length, int64_t chunk, bool is_double) {
  return round_up(length * chunk * (is_double ? 16 : 8), static_cast<int64_t>(kAlign));
}

// Whether a GPU computes transforms that lie across memory side by side in both steps: then all of the
// batch's first dimension is one chunk, and the buffer has the operands' layout.
bool lies_across(const FftProblem& p, int64_t padded, const cl::Device& device) {
  constexpr int64_t kLeast = 16, kMostBytes = int64_t{1} << 30;
  return !is_cpu(device) && padded == 0 && p.kind == kComplex && p.in_batch[0] == 1 && p.out_batch[0] == 1 &&
         p.batch[0] >= kLeast && p.in_step > 1 && p.out_step > 1 && p.n >= kLeast * kLeast &&
         p.n * p.transforms() * (p.is_double() ? 16 : 8) <= kMostBytes &&
         split_points(p.n, device, p.is_double()).size() == 2;
}

// Transforms that are computed together, so that what one launch writes is in a cache when the next reads it.
int64_t chunk_of(const FftProblem& p, int64_t length, const cl::Device& device) {
  if (length == p.n && lies_across(p, 0, device)) return p.transforms();
  constexpr int64_t kCpuBytes = 1 << 20, kGpuBytes = 64 << 20;  // of a compute unit, of all
  const int64_t bytes = is_cpu(device) ? kCpuBytes * device.compute_units : kGpuBytes;
  return std::clamp<int64_t>(bytes / (length * (p.is_double() ? 16 : 8)), 1, p.transforms());
}

bool needs_second(const FftProblem& p, int64_t padded) {
  const Form form = form_of(p);
  return padded || (p.kind == kFromReal && (form.flags & params::FFT_UNPACK || p.outputs != p.n));
}

bool fits(int64_t n, int64_t most) {
  return n <= most && (n == 1 || radices_of(n) != 0);
}

// The cost of columns of a length, with the lanes that do nothing.
double step_cost(int64_t length, int64_t columns, int64_t width) {
  return static_cast<double>(length * (ceil_div(columns, width) * width));
}

// The two factors that waste least.
std::vector<int64_t> split_in_two(int64_t points, int64_t most, int64_t width) {
  std::vector<int64_t> best;
  double least = 0;
  for (int64_t first = 2; first <= most && first < points; first++) {
    const int64_t second = points % first ? 0 : points / first;
    if (second < 2 || !fits(first, most) || !fits(second, most)) continue;
    const double longer = static_cast<double>(std::max(first, second));
    const double cost =
        (step_cost(first, second, width) + step_cost(second, first, width)) * (1 + longer / 4096);
    if (best.empty() || cost < least) best = {first, second}, least = cost;
  }
  return best;
}

}  // namespace

std::vector<int64_t> split_points(int64_t points, const cl::Device& device, bool is_double) {
  const int64_t most = most_in_tile(device, is_double);
  const int64_t width = is_cpu(device) ? tile_width(device, is_double) : 16;
  std::vector<int64_t> two = split_in_two(points, most, width);
  if (!two.empty() || points <= most) return two;
  for (int64_t first = most; first > 1; first--) {
    if (points % first || !fits(first, most)) continue;
    two = split_in_two(points / first, most, width);
    if (!two.empty()) return {first, two[0], two[1]};
  }
  return {};
}

LongTransform::LongTransform(const FftProblem& p, int64_t padded, cl::Device& device)
    : problem_(p),
      form_(form_of(p)),
      device_(device),
      is_double_(p.is_double()),
      length_(padded ? padded : form_.points),
      padded_(padded),
      factors_(split_points(length_, device, is_double_)),
      across_(lies_across(p, padded, device)) {
  padded ? plan_padded() : plan_direct();
}

uint64_t LongTransform::workspace(const FftProblem& p, int64_t padded, const cl::Device& device) {
  const int64_t length = padded ? padded : form_of(p).points, chunk = chunk_of(p, length, device);
  const uint64_t buffers = needs_second(p, padded) ? 2 : 1;
  uint64_t tiles = 0;
  const auto factors = split_points(length, device, p.is_double());
  for (const int64_t factor : factors) {
    TileTask task;
    task.n = task.capacity = factor;
    task.sizes[0] = INT32_MAX;  // as many tiles as work-items take
    tiles = std::max(tiles, TileLaunch::workspace(task, device, p.is_double()));
  }
  return buffers * static_cast<uint64_t>(scratch_bytes(length, chunk, p.is_double())) + tiles + 2 * kAlign;
}

double LongTransform::estimate(const FftProblem& p, int64_t padded, const cl::Device& device) {
  const DeviceRates& rates = rates_of(device);
  const int64_t points = form_of(p).points, length = padded ? padded : points;
  const auto factors = split_points(length, device, p.is_double());
  const double chunks = static_cast<double>(ceil_div(p.transforms(), chunk_of(p, length, device)));
  const double times = padded ? 2 : 1, edges = padded ? 3 : needs_second(p, padded);
  const double steps = times * static_cast<double>(factors.size()) + edges;
  const double bytes = static_cast<double>(p.transforms() * length) * (p.is_double() ? 32 : 16);
  const int64_t width = is_cpu(device) ? tile_width(device, p.is_double()) : 1;
  double waste = 1;
  for (const int64_t f : factors)
    waste = std::max(
        waste, static_cast<double>(ceil_div(length / f, width) * width) / static_cast<double>(length / f));
  // what stays in a cache between launches moves several times as fast
  constexpr double kFromCache = 4;
  return chunks * steps * rates.launch_us + streaming_microseconds(p, device) +
         steps * bytes / (kFromCache * rates.bytes) +
         times * passes_microseconds(p, waste * static_cast<double>(p.transforms()),
                                     static_cast<double>(length), device);
}

// Contiguous transforms of a length, one after the other.
FftView LongTransform::scratch_view(int64_t length) const {
  FftView view{};
  view.step = 2, view.im = 1;
  int64_t stride = 2 * length;
  for (size_t d = 0; d < kMostBatchDims; d++) view.batch[d] = stride, stride *= problem_.batch[d];
  return view;
}

// The steps of a transform between two views; the first may stay in its buffer.
void LongTransform::add_steps(const FftView& in, bool in_place, const FftView& out, int32_t flags,
                              std::vector<TileLaunch>& list) const {
  int64_t rest = length_, done = 1;  // points of the transforms that are left, and of those computed
  FftView from = in;
  const FftView middle = scratch_view(length_);
  for (size_t i = 0; i < factors_.size(); i++) {
    const bool first = i == 0, last = i + 1 == factors_.size();
    TileTask t;
    t.n = t.points = t.in_count = t.out_count = t.capacity = factors_[i];
    t.in = first ? from : middle;
    t.out = last ? out : first && in_place ? from : middle;
    for (size_t d = 0; d < kMostBatchDims; d++) t.sizes[d] = problem_.batch[d];
    if (!last) {
      // columns of a matrix with a row for each of this factor's numbers
      const int64_t columns = rest / t.n;
      t.lanes = columns;
      t.in.lane = t.in.step, t.in.step *= columns, t.out.lane = t.out.step, t.out.step *= columns;
      t.flags = params::FFT_STEPS | (first ? flags & params::FFT_SWAP_IN : 0), t.step_points = rest;
    } else {
      // rows of the last matrix, whose results lie as far apart as rows before them were many
      t.lanes = factors_[i - 1];
      t.in.lane = 2 * t.n, t.out.lane = out.step * (done / t.lanes), t.out.step = out.step * done;
      t.flags = flags & params::FFT_SWAP_OUT;
    }
    if (i > 0 && factors_.size() == 3) {
      // the first factor's numbers are a batch of their own
      for (FftView* view : {&t.in, &t.out})
        std::copy_backward(view->batch, view->batch + kMostBatchDims, view->batch + kMostBatchDims + 1);
      std::copy_backward(t.sizes, t.sizes + kMostBatchDims, t.sizes + kMostBatchDims + 1);
      t.sizes[0] = factors_[0], t.in.batch[0] = 2 * (length_ / factors_[0]);
      t.out.batch[0] = last ? out.step : t.in.batch[0];
    }
    list.emplace_back(t, device_, is_double_);
    rest /= t.n, done *= t.n;
  }
}

// The same of two steps where the batch's first dimension lies across tiles: the columns of the first step
// and the rows of the second take its place among the batch.
void LongTransform::add_steps_across(const FftView& in, const FftView& out, int32_t flags) {
  FftView middle{};
  middle.im = 1, middle.step = 2 * problem_.batch[0];
  int64_t stride = middle.step * length_;
  for (size_t d = 1; d < kMostBatchDims; d++) middle.batch[d] = stride, stride *= problem_.batch[d];
  for (size_t i = 0; i < 2; i++) {
    const int64_t n = factors_[i], others = factors_[1 - i];
    TileTask t;
    t.n = t.points = t.in_count = t.out_count = t.capacity = n;
    t.in = i == 0 ? in : middle, t.out = i == 0 ? middle : out;
    for (size_t d = 0; d < kMostBatchDims; d++) t.sizes[d] = problem_.batch[d];
    t.lanes = problem_.batch[0], t.in.lane = t.out.lane = 2, t.sizes[0] = others;
    if (i == 0) {
      for (FftView* view : {&t.in, &t.out}) view->batch[0] = view->step, view->step *= others;
      t.flags = params::FFT_STEPS | params::FFT_STEPS_OF_BATCH | (flags & params::FFT_SWAP_IN);
      t.step_points = length_;
    } else {
      t.in.batch[0] = t.in.step * n;
      t.out.batch[0] = t.out.step, t.out.step *= others;
      t.flags = flags & params::FFT_SWAP_OUT;
    }
    forward_.emplace_back(t, device_, is_double_);
  }
}

LongTransform::Edge LongTransform::make_edge(const char* kernel, const FftView& in,
                                             const FftView& out) const {
  Edge edge;
  edge.kernel =
      &fetch_kernel(device_, {"fft/common.clh", "fft/edges.cl"}, kernel, options_of(device_, is_double_));
  edge.params.in = in, edge.params.out = out;
  for (size_t d = 0; d < kMostBatchDims; d++) edge.params.sizes[d] = static_cast<int32_t>(problem_.batch[d]);
  edge.params.sizes[kMostBatchDims] = 1;
  return edge;
}

namespace {

template <class Edge>
void set_copy(Edge& edge, int64_t points, int64_t count, int32_t flags) {
  edge.params.points = static_cast<int32_t>(points), edge.params.count = static_cast<int32_t>(count);
  edge.params.flags = flags, edge.params.use_table = edge.table.has_value();
  edge.items = count;
}

template <class Edge>
void set_pairs(Edge& edge, int64_t half, int32_t flags, bool is_double) {
  edge.params.points = static_cast<int32_t>(half), edge.params.flags = flags;
  edge.table = TableKey{TableKind::kRoots, is_double, 2 * half, half / 2 + 1};
  edge.items = half / 2 + 1;
}

}  // namespace

void LongTransform::plan_direct() {
  using namespace params;
  if (across_) return add_steps_across(form_.in, form_.out, form_.flags);
  const FftView scratch = scratch_view(length_);
  FftView in = form_.in, out = form_.out;
  if (form_.flags & FFT_PACK) {
    before_ = make_edge("fft_pack_edge", in, scratch);
    set_pairs(*before_, length_, 0, is_double_);
  } else if (form_.flags & FFT_HERMITIAN) {
    before_ = make_edge("fft_copy", in, scratch);
    set_copy(*before_, length_, length_, FFT_HERMITIAN | FFT_SWAP_OUT);
  }
  if (form_.flags & FFT_UNPACK) {
    after_ = make_edge("fft_unpack_edge", scratch, out);
    set_pairs(*after_, length_, form_.flags & FFT_MIRROR, is_double_);
  } else if (form_.out_count < length_) {
    after_ = make_edge("fft_copy", scratch, out);
    set_copy(*after_, length_, form_.out_count, 0);
  }
  add_steps(before_ ? scratch : in, before_.has_value(), after_ ? scratch : out, form_.flags, forward_);
}

void LongTransform::plan_padded() {
  using namespace params;
  const int64_t points = form_.points;
  const FftView padded = scratch_view(padded_), scratch = scratch_view(points);
  if (form_.flags & FFT_PACK) {
    before_ = make_edge("fft_pack_edge", form_.in, scratch);
    set_pairs(*before_, points, 0, is_double_);
  }
  if (form_.flags & FFT_UNPACK) {
    after_ = make_edge("fft_unpack_edge", scratch, form_.out);
    set_pairs(*after_, points, form_.flags & FFT_MIRROR, is_double_);
  }
  chirp_in_ = make_edge("fft_copy", before_ ? scratch : form_.in, padded);
  chirp_in_->table = TableKey{TableKind::kChirp, is_double_, points};
  // a mirrored spectrum has its parts swapped here, as packed ones have
  set_copy(*chirp_in_, points, padded_,
           (form_.flags & (FFT_SWAP_IN | FFT_HERMITIAN)) | (form_.flags & FFT_HERMITIAN ? FFT_SWAP_IN : 0));
  multiply_ = make_edge("fft_copy", padded, padded);
  multiply_->table = TableKey{TableKind::kSpectrum, is_double_, points, padded_};
  set_copy(*multiply_, padded_, padded_, FFT_SWAP_OUT);
  chirp_out_ = make_edge("fft_copy", padded, after_ ? scratch : form_.out);
  chirp_out_->table = TableKey{TableKind::kChirp, is_double_, points};
  set_copy(*chirp_out_, points, after_ ? points : form_.out_count,
           FFT_SWAP_IN | (form_.flags & FFT_SWAP_OUT));
  add_steps(padded, true, padded, 0, forward_);
}

Buffer LongTransform::shifted(const Buffer& buffer, int64_t first, int64_t length) const {
  return {buffer.mem, buffer.offset - 2 * length * first};
}

void LongTransform::run_edge(const Run& run, const Edge& edge, const Buffer& in, const Buffer& out,
                             double scale) const {
  constexpr uint32_t kGrain = 16 * 1024;
  FftEdge p = edge.params;
  p.in.offset += in.offset, p.out.offset += out.offset;
  p.first = static_cast<int32_t>(run.first), p.transforms = static_cast<int32_t>(run.count);
  const auto table = edge.table ? table_of(*edge.table, run.stream) : nullptr;
  if (table) p.table = table->buffer.offset;
  const Split split = split_work(device_, static_cast<uint64_t>(edge.items * run.count), kGrain);
  p.per_item = static_cast<int32_t>(split.per_item);
  const cl_mem table_mem = table ? table->buffer.mem : in.mem;
  if (is_double_)
    edge.kernel->launch(run.stream.queue(), split.range, in.mem, out.mem, table_mem, p, scale);
  else
    edge.kernel->launch(run.stream.queue(), split.range, in.mem, out.mem, table_mem, p,
                        static_cast<float>(scale));
}

// `middle` holds what all steps but the last give.
void LongTransform::run_steps(const Run& run, const std::vector<TileLaunch>& steps, const Buffer& in,
                              const Buffer& middle, const Buffer& out, double scale) const {
  for (size_t i = 0; i < steps.size(); i++) {
    const bool first = i == 0, last = i + 1 == steps.size();
    const int64_t inner = i > 0 && steps.size() == 3 ? factors_[0] : 1;
    const int64_t count = across_ ? factors_[1 - i] * (run.count / problem_.batch[0]) : run.count * inner;
    steps[i].run(run.stream, first ? in : middle, last ? out : middle, run.first * inner, count,
                 last ? scale : 1, run.rest);
  }
}

void LongTransform::run_direct(const Run& run, double scale) const {
  const Buffer scratch = shifted(run.buffers[0], run.first, length_);
  const Buffer second = shifted(run.buffers[1], run.first, length_);
  if (before_) run_edge(run, *before_, run.in, scratch, 1);
  run_steps(run, forward_, before_ ? scratch : run.in, scratch, after_ ? second : run.out,
            after_ ? 1 : scale);
  if (after_) run_edge(run, *after_, second, run.out, scale);
}

void LongTransform::run_padded(const Run& run, double scale) const {
  const Buffer a = shifted(run.buffers[0], run.first, padded_),
               b = shifted(run.buffers[1], run.first, padded_);
  const Buffer short_b = shifted(run.buffers[1], run.first, form_.points);
  if (before_) run_edge(run, *before_, run.in, short_b, 1);
  run_edge(run, *chirp_in_, before_ ? short_b : run.in, a, 1);
  run_steps(run, forward_, a, a, b, 1);
  run_edge(run, *multiply_, b, b, 1);
  run_steps(run, forward_, b, b, a, 1);
  run_edge(run, *chirp_out_, a, after_ ? short_b : run.out, after_ ? 1 : scale);
  if (after_) run_edge(run, *after_, short_b, run.out, scale);
}

void LongTransform::run(Stream& stream, const MemoryOperands& o, MemRef work) const {
  const int64_t chunk = chunk_of(problem_, length_, device_), real = is_double_ ? 8 : 4;
  const int64_t bytes = scratch_bytes(length_, chunk, is_double_);
  const uint64_t begin = round_up(work.offset, kAlign);
  const int64_t count = needs_second(problem_, padded_) ? 2 : 1;
  const Buffer first{work.mem, static_cast<int64_t>(begin) / real};
  const Buffer second{work.mem, first.offset + (count > 1 ? bytes / real : 0)};
  const MemRef rest{work.mem, begin + static_cast<uint64_t>(count * bytes)};
  for (int64_t at = 0; at < problem_.transforms(); at += chunk) {
    const Run one{stream,
                  real_place(o.in0, problem_.types[0]),
                  real_place(o.out0, problem_.result_type()),
                  {first, second},
                  rest,
                  at,
                  std::min(chunk, problem_.transforms() - at)};
    padded_ ? run_padded(one, o.scalar) : run_direct(one, o.scalar);
  }
}

}  // namespace dlb::fft
