// The plainest kernel, which the others are checked against: each result is a sum over all numbers.
#include "cl/rounding.h"
#include "primitives/common/compute_estimates.h"
#include "primitives/fft/tables.h"
#include "primitives/fft/tiles.h"
#include "runtime/fetch_kernel.h"

namespace dlb::fft {
namespace {

Applicability applicable(const FftProblem& p, const cl::Device& device) {
  if (p.is_double() && !device.fp64) return Applicability::no("the device has no double precision");
  return Applicability::yes();
}

double estimate(const FftProblem& p, const cl::Device& device) {
  const double products = static_cast<double>(p.n) * static_cast<double>(p.outputs * p.transforms());
  return reference_microseconds(8 * products, p.is_double() ? c10::kDouble : c10::kFloat, device);
}

params::FftEdge params_of(const FftProblem& p) {
  const auto i32 = [](int64_t v) { return static_cast<int32_t>(v); };
  params::FftEdge e{};
  const auto set = [](params::FftView& view, bool real, int64_t step, const int64_t* batch) {
    const int64_t reals = real ? 1 : 2;
    view.step = reals * step, view.im = real ? 0 : 1;
    for (int64_t d = 0; d < kMostBatchDims; d++) view.batch[d] = reals * batch[d];
  };
  set(e.in, p.kind == kFromReal, p.in_step, p.in_batch);
  set(e.out, p.kind == kToReal, p.out_step, p.out_batch);
  for (size_t d = 0; d < kMostBatchDims; d++) e.sizes[d] = i32(p.batch[d]);
  e.sizes[kMostBatchDims] = 1;
  e.transforms = i32(p.transforms()), e.points = i32(p.n), e.count = i32(p.outputs);
  if (p.inverse || p.kind == kToReal) e.flags |= params::FFT_SWAP_IN;
  if (p.kind == kToReal) e.flags |= params::FFT_HERMITIAN;
  return e;
}

template <class Real>
void launch(const FftProblem& p, cl::Kernel& kernel, params::FftEdge e, Stream& stream,
            const MemoryOperands& o) {
  const auto table = table_of({TableKind::kRoots, p.is_double(), p.n, p.n}, stream);
  const Buffer in = real_place(o.in0, p.types[0]), out = real_place(o.out0, p.result_type());
  e.in.offset = in.offset, e.out.offset = out.offset, e.table = table->buffer.offset;
  const size_t group = std::min<size_t>(64, kernel.max_work_group());
  kernel.launch(stream.queue(),
                cl::Range::linear(ceil_div(static_cast<size_t>(p.transforms() * p.outputs), group), group),
                in.mem, out.mem, table->buffer.mem, e, static_cast<Real>(o.scalar),
                static_cast<int32_t>(p.inputs()), static_cast<int32_t>(p.first_output));
}

std::unique_ptr<Invoker<FftProblem>> invoker(const FftProblem& p, cl::Device& device, const Config&) {
  cl::Kernel& kernel = fetch_kernel(device, {"fft/common.clh", "fft/reference.cl"}, "fft_reference",
                                    options_of(device, p.is_double()));
  return make_invoker<FftProblem>(
      [p, &kernel, e = params_of(p)](Stream& stream, const MemoryOperands& o, MemRef) {
        p.is_double() ? launch<double>(p, kernel, e, stream, o) : launch<float>(p, kernel, e, stream, o);
      });
}

}  // namespace

const Solver<FftProblem>* reference() {
  static const RowSolver<FftProblem> solver({.name = "reference",
                                             .applicable = applicable,
                                             .estimate = estimate,
                                             .configs = one_config<FftProblem>,
                                             .invoker = invoker});
  return &solver;
}

}  // namespace dlb::fft
