// Scans along a dimension: cumsum, cumprod, cummax, cummin, logcumsumexp.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/cumprod_meta.h>
#include <ATen/ops/cumsum_meta.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>

#include "cl/rounding.h"
#include "ops/reduce/results.h"

namespace dlb {
namespace {

using codegen::ReduceBody;
using codegen::ReduceForm;
using codegen::ReduceKey;
using codegen::ReduceOp;
using codegen::ReduceParams;
using codegen::ResultType;

constexpr ReduceBody folding(const char* type, const char* init, const char* step, const char* combine) {
  return {.fields = {{{type, init}}}, .step = step, .combine = combine, .finish = "y0 = a0;"};
}
constexpr ReduceOp kCumsum{.name = "cumsum",
                           .on_float = folding("ACC", "0", "a0 += x0;", "a0 += b0;"),
                           .on_int = folding("T", "0", "a0 += x0;", "a0 += b0;"),
                           .on_bool = folding("T", "0", "a0 |= x0;", "a0 |= b0;"),
                           .on_complex = {.fields = {{{"ACC", "0"}, {"ACC", "0"}}},
                                          .step = "a0 += x0.x; a1 += x0.y;",
                                          .combine = "a0 += b0; a1 += b1;",
                                          .finish = "y0 = (T)((REAL)a0, (REAL)a1);"}};
constexpr ReduceOp kCumprod{
    .name = "cumprod",
    .on_float = folding("ACC", "1", "a0 *= x0;", "a0 *= b0;"),
    .on_int = folding("T", "1", "a0 *= x0;", "a0 *= b0;"),
    .on_bool = folding("T", "1", "a0 &= x0;", "a0 &= b0;"),
    .on_complex = folding("T", "1, 0", "a0 = dlb_cmul(a0, x0);", "a0 = dlb_cmul(a0, b0);")};
#define DLB_LOGADDEXP(x)                          \
  "const ACC v = " x                              \
  ", hi = v > a0 ? v : a0, lo = v > a0 ? a0 : v;" \
  "a0 = isnan(v) || isnan(a0) ? NAN : isinf(hi) && hi == lo ? hi : hi + log1p(exp(lo - hi));"
constexpr ReduceOp kLogcumsumexp{
    .name = "logcumsumexp",
    .on_float = folding("ACC", "-INFINITY", DLB_LOGADDEXP("x0"), DLB_LOGADDEXP("b0")),
    .on_complex = {.fields = {{{"ACC", "-INFINITY"}, {"ACC", "0"}}},
                   .step = "dlb_add_exp(&a0, &a1, x0.x, x0.y);",
                   .combine = "dlb_add_exp(&a0, &a1, b0, b1);",
                   .finish = "y0 = (T)((REAL)a0, (REAL)a1);"}};
// The last of equals wins, and NaN wins over all.
#define DLB_TAKE(v, i, better)                                                                               \
  "const int take = isnan(" v ") || (!isnan(a0) && " v better " a0); a0 = take ? " v " : a0; a1 = take ? " i \
  " : a1;"
#define DLB_TAKE_INT(v, i, better) \
  "const int take = " v better " a0; a0 = take ? " v " : a0; a1 = take ? " i " : a1;"
constexpr ReduceBody running(const char* init, const char* step, const char* combine) {
  return {.fields = {{{"T", init}, {"long", "0"}}},
          .step = step,
          .combine = combine,
          .finish = "y0 = a0; y1 = a1;"};
}
constexpr ReduceOp running_op(const char* name, const ReduceBody& on_float, const ReduceBody& on_int) {
  return {.name = name,
          .on_float = on_float,
          .on_int = on_int,
          .on_bool = on_int,
          .results = {ResultType::Same, ResultType::Index}};
}
constexpr ReduceOp kCummax =
    running_op("cummax", running("T_LOWEST", DLB_TAKE("x0", "i", " >="), DLB_TAKE("b0", "b1", " >=")),
               running("T_LOWEST", DLB_TAKE_INT("x0", "i", " >="), DLB_TAKE_INT("b0", "b1", " >=")));
constexpr ReduceOp kCummin =
    running_op("cummin", running("T_HIGHEST", DLB_TAKE("x0", "i", " <="), DLB_TAKE("b0", "b1", " <=")),
               running("T_HIGHEST", DLB_TAKE_INT("x0", "i", " <="), DLB_TAKE_INT("b0", "b1", " <=")));

const codegen::RegisterOps kScanOps(codegen::RowKind::Scan,
                                    {{kCumsum, "cumsum cumsum.out", "sum"},
                                     {kCumprod, "cumprod cumprod.out", "sum"},
                                     {kCummax, "_cummax_helper", "first"},
                                     {kCummin, "_cummin_helper", "first"},
                                     {kLogcumsumexp, "_logcumsumexp _logcumsumexp.out", "first"}});

constexpr int64_t kCpuGrain = 16384;
constexpr int64_t kGpuChunks = 12;  // work-groups for a compute unit: an H100's holds the tiles of so many

struct Launch {
  ReduceKey key;
  ReduceParams params;
  cl_mem mem[3];
};

void enqueue(Launch& launch, ReduceForm form, const cl::Range& range, Stream& stream, cl_mem workspace) {
  reduce_kernel(launch.key, form, stream.device())
      .launch_with(stream.queue(), range, [&](cl::Kernel::Arguments& arguments) {
        for (size_t i = 0; i < launch.key.operands(); ++i) arguments.add(launch.mem[i]);
        arguments.add(workspace);
        arguments.add_bytes(&launch.params, codegen::params_bytes(launch.key.operands()));
      });
}

// Kept dimensions by stride of the input, joined where all operands allow it; then the scanned one. False
// where they are more than kernels take.
bool describe_dims(Launch& launch, c10::ArrayRef<const at::Tensor*> operands, int64_t dim) {
  ReduceParams& p = launch.params;
  const at::Tensor& input = *operands.back();
  c10::SmallVector<int64_t, 8> order;
  for (int64_t d = 0; d < input.dim(); ++d)
    if (d != dim && input.size(d) != 1) order.push_back(d);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return input.stride(a) < input.stride(b); });
  for (const int64_t d : order) {
    bool joins = p.kept > 0;
    for (size_t i = 0; joins && i < operands.size(); ++i)
      joins = operands[i]->stride(d) == p.operand[i].stride[p.kept - 1] * p.size[p.kept - 1];
    if (joins) {
      p.size[p.kept - 1] *= input.size(d);
      continue;
    }
    if (p.kept + 1 >= codegen::kMaxReduceRank) return false;
    p.size[p.kept] = input.size(d);
    for (size_t i = 0; i < operands.size(); ++i) p.operand[i].stride[p.kept] = operands[i]->stride(d);
    ++p.kept;
  }
  p.rank = p.kept + 1;
  p.size[p.kept] = p.count;
  for (size_t i = 0; i < operands.size(); ++i)
    p.operand[i].stride[p.kept] = input.dim() ? operands[i]->stride(dim) : 0;
  return true;
}

// Splits rows in chunks of a multiple of `least` where there are too few rows to keep the device busy.
void split(ReduceParams& p, int64_t parts, int64_t least) {
  const int64_t splits = std::clamp<int64_t>(std::min(parts, p.count / least), 1, 2048);
  p.per_split = splits == 1 ? p.count : round_up(ceil_div(p.count, splits), least);
  p.splits = static_cast<uint32_t>(ceil_div(p.count, p.per_split));
}

// Scans rows in one launch, in which the work-groups of tiles hand each other what theirs add up to, in as
// many bytes as `accumulator`.
void launch_chained(Launch& launch, size_t accumulator, Stream& stream) {
  ReduceParams& p = launch.params;
  p.per_split = static_cast<int64_t>(codegen::kReduceGroup * codegen::chained_scan_held(launch.key));
  const int64_t tiles = ceil_div(p.count, p.per_split);
  const int64_t sections = ceil_div(tiles, int64_t{codegen::kReduceGroup});
  const auto words = static_cast<int64_t>(ceil_div(accumulator, sizeof(uint32_t)));
  const at::Tensor states = at::zeros({1 + p.outputs * (tiles + sections) * words},
                                      at::dtype(at::kLong).device(kDeviceType, stream.device().index));
  const Buffer buffer = buffer_of(states);
  p.splits = static_cast<uint32_t>(tiles);
  p.workspace = buffer.offset * static_cast<int64_t>(sizeof(int64_t));
  const auto groups = static_cast<size_t>(p.outputs * tiles);
  enqueue(launch, ReduceForm::ScanChained, cl::Range::linear(groups, codegen::kReduceGroup), stream,
          buffer.mem);
}

void launch_all(Launch& launch, Stream& stream) {
  ReduceParams& p = launch.params;
  const cl::Device& device = stream.device();
  const bool cpu = launch.key.cls == cl::DeviceClass::kCpu;
  const size_t input = launch.key.outputs;
  const bool columns = p.kept > 0 && p.operand[input].stride[0] == 1 && p.size[0] >= (cpu ? 8 : 64) &&
                       std::abs(p.operand[input].stride[p.kept]) != 1;
  ReduceForm form = columns && cpu   ? ReduceForm::ScanColumns
                    : cpu || columns ? ReduceForm::ScanRows
                                     : ReduceForm::ScanGroup;
  p.block =
      cpu && columns
          ? static_cast<uint32_t>(std::min<int64_t>(
                static_cast<int64_t>(codegen::reduce_columns(*launch.key.op, launch.key.compute)), p.size[0]))
          : 1;
  const int64_t tasks =
      form == ReduceForm::ScanColumns ? ceil_div(p.size[0], p.block) * (p.outputs / p.size[0]) : p.outputs;
  cl::Range range;
  if (cpu) {
    const int64_t useful = std::clamp<int64_t>(p.outputs * p.count / kCpuGrain, 1, device.compute_units * 4);
    // Chunks read the input twice, which several cores make good, or several chunks of rows side by side.
    const int64_t chunks = form == ReduceForm::ScanRows ? int64_t{params::SCAN_CHUNKS} : 1;
    split(p, tasks * 2 > useful ? 1 : round_up(useful / tasks, chunks),
          std::max<int64_t>(kCpuGrain / p.block / chunks, 1));
    p.per_item = ceil_div(tasks, std::min<int64_t>(tasks, ceil_div(useful, p.splits)));
    range = {2,
             {static_cast<size_t>(ceil_div(tasks, p.per_item)), size_t(ceil_div(p.splits, chunks)), 1},
             {1, 1, 1}};
  } else {
    const bool group = form == ReduceForm::ScanGroup;
    const auto held = static_cast<int64_t>(codegen::scan_held(launch.key));
    // Several short rows share a work-group where one stride leads from each to the next.
    p.lanes = p.kept == 1
                  ? static_cast<uint32_t>(std::min<int64_t>(
                        std::bit_ceil(static_cast<uint64_t>(ceil_div(p.count, held))), codegen::kReduceGroup))
                  : codegen::kReduceGroup;
    const int64_t local = group ? int64_t{codegen::kReduceGroup} : 64;
    const int64_t groups = ceil_div(tasks, group ? local / p.lanes : local);
    split(p, device.compute_units * kGpuChunks / groups, group ? local * held : 64);
    p.per_item = 1;
    range = {2, {static_cast<size_t>(groups * local), p.splits, 1}, {static_cast<size_t>(local), 1, 1}};
  }
  if (p.splits == 1) return enqueue(launch, form, range, stream, launch.mem[0]);
  const size_t accumulator = codegen::accumulator_size(*launch.key.op, launch.key.compute, device.cls);
  if (form == ReduceForm::ScanGroup && device.groups_advance &&
      device.local_mem >= codegen::kChainedLocalMemory)
    return launch_chained(launch, accumulator, stream);
  const size_t bytes = accumulator * p.splits * static_cast<size_t>(p.outputs);
  const c10::DataPtr workspace = allocate_bytes(bytes, static_cast<c10::DeviceIndex>(device.index));
  const MemRef ref = resolve(workspace, workspace.get());
  p.workspace = static_cast<int64_t>(ref.offset);
  p.along = 1;
  enqueue(launch, form, range, stream, ref.mem);
  p.along = 0;
  enqueue(launch, form, range, stream, ref.mem);
}

// Scans `self` along `dim` into outputs of the same shape, in the compute type of `compute`.
void run_scan(const ReduceOp& op, c10::ArrayRef<const at::Tensor*> outputs, const at::Tensor& self,
              int64_t dim, c10::ScalarType compute) {
  if (self.numel() == 0) return;
  Stream& stream = current_stream(self.device().index());
  Launch launch{};
  ReduceKey& key = launch.key;
  key.op = &op;
  key.cls = stream.device().cls;
  key.scan = 1;
  key.compute = codegen::compute_type(dtype_of(compute, op.name));
  check_device_supports(stream.device(), key.compute, op.name);
  TORCH_CHECK_NOT_IMPLEMENTED(has_body(op, compute), "\"", op.name, "\" not implemented for '",
                              c10::toString(compute), "'");
  key.outputs = static_cast<uint8_t>(outputs.size());
  c10::SmallVector<const at::Tensor*, 3> operands(outputs.begin(), outputs.end());
  operands.push_back(&self);
  for (size_t i = 0; i < operands.size(); ++i) {
    key.types[i] = dtype_of(operands[i]->scalar_type(), op.name);
    check_device_supports(stream.device(), key.types[i], op.name);
    const Buffer buffer = buffer_of(*operands[i]);
    launch.mem[i] = buffer.mem;
    launch.params.operand[i].offset = buffer.offset;
  }
  launch.params.count = self.dim() ? self.size(dim) : 1;
  launch.params.outputs = self.numel() / launch.params.count;
  if (describe_dims(launch, operands, dim)) return launch_all(launch, stream);
  // Contiguous tensors have three dimensions at most: before, along and after the scanned one.
  c10::SmallVector<at::Tensor, 2> dense;
  c10::SmallVector<const at::Tensor*, 2> places;
  for (const at::Tensor* out : outputs) dense.push_back(at::empty_like(*out, at::MemoryFormat::Contiguous));
  for (const at::Tensor& out : dense) places.push_back(&out);
  run_scan(op, places, self.contiguous(), dim, compute);
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i]->copy_(dense[i]);
}

template <class Meta, const ReduceOp& Op>
struct Cumulative {
  static at::Tensor into(at::Tensor out, const at::Tensor& self, int64_t dim,
                         std::optional<at::ScalarType> dtype) {
    const c10::DeviceGuard guard(self.device());
    Results<Meta> results(out);
    results.meta(self, dim, dtype);
    results.check_overlap(self);
    run_scan(Op, {&results[0]}, self, at::maybe_wrap_dim(dim, self.dim()), results[0].scalar_type());
    return results[0];
  }
  static at::Tensor call(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
    return into({}, self, dim, dtype);
  }
  static at::Tensor& call_out(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype,
                              at::Tensor& out) {
    into(out, self, dim, dtype);
    return out;
  }
};

// The shapes are the caller's: cummax and cummin allocate.
template <const ReduceOp& Op>
void running_extremum(const at::Tensor& self, at::Tensor& values, at::Tensor& indices, int64_t dim) {
  const c10::DeviceGuard guard(self.device());
  run_scan(Op, {&values, &indices}, self, at::maybe_wrap_dim(dim, self.dim()), self.scalar_type());
}

at::Tensor& logcumsumexp_out(const at::Tensor& self, int64_t dim, at::Tensor& out) {
  const c10::DeviceGuard guard(self.device());
  prepare_out(out, self.sizes(), self.options());
  check_overlap(out, self);
  run_scan(kLogcumsumexp, {&out}, self, at::maybe_wrap_dim(dim, self.dim()), self.scalar_type());
  return out;
}
at::Tensor logcumsumexp(const at::Tensor& self, int64_t dim) {
  const c10::DeviceGuard guard(self.device());
  at::Tensor out = new_result(self.sizes(), self.scalar_type());
  logcumsumexp_out(self, dim, out);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("cumsum", Cumulative<at::meta::structured_cumsum, kCumsum>::call);
  m.impl("cumsum.out", Cumulative<at::meta::structured_cumsum, kCumsum>::call_out);
  m.impl("cumprod", Cumulative<at::meta::structured_cumprod, kCumprod>::call);
  m.impl("cumprod.out", Cumulative<at::meta::structured_cumprod, kCumprod>::call_out);
  m.impl("_cummax_helper", running_extremum<kCummax>);
  m.impl("_cummin_helper", running_extremum<kCummin>);
  m.impl("_logcumsumexp", logcumsumexp);
  m.impl("_logcumsumexp.out", logcumsumexp_out);
}

}  // namespace dlb
