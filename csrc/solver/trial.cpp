// Trials wait for the device, so only threads that may wait run them.
#include "solver/trial.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>

#include "cl/kernel.h"
#include "cl/queue.h"
#include "cl/rounding.h"
#include "runtime/element.h"
#include "runtime/fetch_kernel.h"

namespace dlb::solver {
namespace {

cl::Kernel& trial_kernel(cl::Device& device, c10::ScalarType dtype, const char* name) {
  return fetch_kernel(device, {"common/element.clh", "solver/trial.cl"}, name, element_option(dtype));
}

}  // namespace

double microseconds_between(cl_event begin, cl_event end) {
  cl_ulong from = 0, to = 0;
  DLB_CL(clGetEventProfilingInfo, begin, CL_PROFILING_COMMAND_END, sizeof from, &from, nullptr);
  DLB_CL(clGetEventProfilingInfo, end, CL_PROFILING_COMMAND_END, sizeof to, &to, nullptr);
  return static_cast<double>(to - from) * 1e-3;
}

cl_event mark(Stream& stream) {
  cl_event event = nullptr;
  DLB_CL(clEnqueueMarkerWithWaitList, stream.handle(), 0, nullptr, &event);
  return event;
}

ScratchBuffer::ScratchBuffer(cl::Device& device, uint64_t bytes) {
  cl_int status = CL_SUCCESS;
  mem_ = cl::api().clCreateBuffer(device.context(), CL_MEM_READ_WRITE, std::max<uint64_t>(bytes, 16), nullptr,
                                  &status);
  cl::check(status, "clCreateBuffer");
}

ScratchBuffer::~ScratchBuffer() {
  if (mem_) cl::release_scratch_buffer(mem_);
}

double tolerance(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Half:
      return 2e-3;
    case c10::ScalarType::BFloat16:
      return 1e-2;
    case c10::ScalarType::Float:
    case c10::ScalarType::ComplexFloat:
      return 3e-5;
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      return 1e-12;
    default:
      return 0;
  }
}

Stream& trial_stream(cl::Device& device) {
  static std::mutex mutex;
  static auto* streams = new std::array<Stream*, cl::kDeviceIndices>{};
  std::lock_guard<std::mutex> lock(mutex);
  Stream*& stream = (*streams)[static_cast<size_t>(device.index)];
  if (!stream) {
    stream = new Stream(device, Stream::kInternal);
    stream->enable_profiling();
  }
  return *stream;
}

namespace {

// How the work-items of solver/trial.cl share elements: runs of neighbours on CPUs, interleaved on GPUs (each
// = 0).
struct Walk {
  cl::Range range;
  int64_t each;
};

Walk walk_of(const cl::Device& device, int64_t elements) {
  constexpr int64_t kItems = 1024, kGroup = 64, kGroups = 512;
  elements = std::max<int64_t>(elements, 1);
  if (device.cls != cl::DeviceClass::kCpu)
    return {cl::Range::linear(std::min(kGroups, ceil_div(elements, kGroup)), kGroup), 0};
  const int64_t each = ceil_div(elements, kItems);
  return {cl::Range::linear(ceil_div(elements, each), 1), each};
}

// Bytes of one result in a buffer of results, with its alignment and with the elements behind it that no
// kernel may write.
constexpr int64_t kResultGuard = 256;  // elements
uint64_t result_bytes(int64_t elements, c10::ScalarType dtype) {
  const uint64_t bytes = static_cast<uint64_t>(elements + kResultGuard) * c10::elementSize(dtype);
  return (bytes + 255) / 256 * 256;
}

// Bytes of a buffer that holds all results of a problem, one after the other.
uint64_t results_bytes(const Problem& problem) {
  uint64_t bytes = 0;
  for (const Span& span : problem.op->spans(problem))
    if (span.result) bytes += result_bytes(span.elements, span.dtype);
  return bytes;
}

// Makes all results go into another buffer than the operands'.
void redirect_results(const Problem& problem, Operands& operands, cl_mem to) {
  uint64_t at = 0;
  for (const Span& span : problem.op->spans(problem)) {
    if (!span.result) continue;
    operands.*span.buffer = {to, static_cast<int64_t>(at / c10::elementSize(span.dtype))};
    at += result_bytes(span.elements, span.dtype);
  }
}

// The share of the device's memory that a trial may take, so that it never takes what the program may need.
constexpr uint64_t kMostOfMemory = 16;

void check_size(const Problem& problem, const cl::Device& device) {
  uint64_t bytes = 0;
  for (const auto& span : problem.op->spans(problem))
    bytes += static_cast<uint64_t>(span.elements) * c10::elementSize(span.dtype) * (span.result ? 2 : 1);
  if (bytes > device.global_mem / kMostOfMemory)
    throw cl::Error(
        CL_MEM_OBJECT_ALLOCATION_FAILURE,
        "measuring would take more than 1/" + std::to_string(kMostOfMemory) + " of the device's memory");
}

}  // namespace

Trial::Trial(const Problem& problem, cl::Device& device)
    : problem_(problem),
      device_(device),
      stream_(trial_stream(device)),
      operands_(problem.op->operands()),
      bytes_((check_size(problem, device), results_bytes(problem))),
      got_(std::make_unique<ScratchBuffer>(device, bytes_)),
      want_(std::make_unique<ScratchBuffer>(device, bytes_)) {
  uint32_t seed = 1;
  for (const auto& span : problem.op->spans(problem)) {
    if (span.result) continue;
    buffers_.emplace_back(device, static_cast<uint64_t>(span.elements) * c10::elementSize(span.dtype));
    fill(buffers_.back().mem(), span, seed++ * 0x51ed27u);
    (*operands_).*span.buffer = {buffers_.back().mem(), 0};
  }
  problem.op->make_possible(problem, *operands_, stream_);
}

void ask_for_trial_programs(const Problem& problem, cl::Device& device) {
  for (const auto& span : problem.op->spans(problem)) trial_kernel(device, span.dtype, "trial_fill");
  problem.op->reference().invoker_for(problem, device, {});
}

void Trial::fill(cl_mem mem, const Span& span, uint32_t seed) {
  const Walk walk = walk_of(device_, span.elements);
  const float least = span.positive ? 0 : -1;
  trial_kernel(device_, span.dtype, "trial_fill")
      .launch(stream_.queue(), walk.range, mem, span.elements, walk.each, seed, least);
}

// Fills the results before a run, so that elements which a solution fails to write differ from right ones in
// the same way every time.
void Trial::clear(cl_mem results) {
  const cl_uint zero = 0;
  DLB_CL(clEnqueueFillBuffer, stream_.handle(), results, &zero, 1, 0, bytes_, 0, nullptr, nullptr);
}

// The workspace and the prepared weights of a solution.
void Trial::make_room(const Solution& solution) {
  if (solution.workspace > workspace_bytes_) {
    stream_.synchronize();
    workspace_ = std::make_unique<ScratchBuffer>(device_, solution.workspace);
    workspace_bytes_ = solution.workspace;
  }
  if (solution.prepared == 0 || prepared_for_ == &solution) return;
  stream_.synchronize();
  prepared_ = std::make_unique<ScratchBuffer>(device_, solution.prepared);
  solution.invoker->prepare_any(stream_, *operands_, MemRef{prepared_->mem(), 0});
  prepared_for_ = &solution;
}

void Trial::run(const Solution& solution, const Problem& window, cl_mem result, const Operands* shift) {
  StoredOperands operands = operands_;
  redirect_results(problem(), *operands, result);
  if (shift)
    for (const Span& span : window.op->spans(window))
      ((*operands).*span.buffer).offset += (shift->*span.buffer).offset;
  make_room(solution);
  if (solution.prepared > 0) operands->prepared = {prepared_->mem(), 0};
  solution.invoker->run_any(stream_, *operands, solution.workspace ? MemRef{workspace_->mem(), 0} : MemRef{});
}

double Trial::compare(cl_mem got, cl_mem want) {
  double worst = 0;
  uint64_t at = 0;
  for (const auto& span : problem().op->spans(problem())) {
    if (!span.result) continue;
    const int64_t size = static_cast<int64_t>(c10::elementSize(span.dtype));
    double error =
        compare_one(got, want, static_cast<int64_t>(at) / size, span.elements + kResultGuard, span.dtype);
    if (span.dtype != problem().dtype && error != 0) {
      const double allowed = tolerance(span.dtype), most = tolerance_of(problem());
      error = allowed == 0 ? INFINITY : most > 0 ? error * most / allowed : error <= allowed ? 0 : INFINITY;
    }
    worst = std::max(worst, error);
    at += result_bytes(span.elements, span.dtype);
  }
  return worst;
}

double Trial::compare_one(cl_mem got, cl_mem want, int64_t begin, int64_t elements, c10::ScalarType dtype) {
  const Walk walk = walk_of(device_, elements);
  const size_t items = walk.range.global[0];
  std::vector<float> report(2 * items);
  ScratchBuffer buffer(device_, report.size() * sizeof(float));
  trial_kernel(device_, dtype, "trial_compare")
      .launch(stream_.queue(), walk.range, got, want, begin, elements, walk.each, buffer.mem());
  DLB_CL(clEnqueueReadBuffer, stream_.handle(), buffer.mem(), CL_TRUE, 0, report.size() * sizeof(float),
         report.data(), 0, nullptr, nullptr);
  float difference = 0, magnitude = 0;
  for (size_t i = 0; i < items; i++) {
    difference = std::max(difference, report[2 * i]);
    magnitude = std::max(magnitude, report[2 * i + 1]);
  }
  return difference == 0 ? 0 : difference / std::max(magnitude, 1e-30f);
}

double Trial::error_in_windows(const Solution& solution) {
  prepared_for_ = nullptr;
  clear(got_->mem());
  run(solution, problem(), got_->mem());
  const AnySolver& reference = problem().op->reference();
  double worst = 0;
  for (const StoredCheckWindow& window : problem().op->check_windows(problem())) {
    DLB_CL(clEnqueueCopyBuffer, stream_.handle(), got_->mem(), want_->mem(), 0, 0, bytes_, 0, nullptr,
           nullptr);
    const Solution expected{&reference, {}, reference.invoker_for(*window.problem, device_, {}), 0, 0};
    run(expected, *window.problem, want_->mem(), &*window.shift);
    worst = std::max(worst, compare(got_->mem(), want_->mem()));
  }
  return worst;
}

void Trial::expect_last() {
  std::swap(got_, want_);
}

double Trial::error(const Solution& solution) {
  prepared_for_ = nullptr;
  clear(got_->mem());
  run(solution, problem(), got_->mem());
  return compare(got_->mem(), want_->mem());
}

double Trial::time(const Solution& solution, int runs) {
  make_room(solution);
  const cl_event begin = mark(stream_);
  for (int i = 0; i < runs; i++) run(solution, problem(), got_->mem());
  const cl_event end = mark(stream_);
  stream_.check_wait(cl::api().clWaitForEvents(1, &end), "clWaitForEvents");
  const double all = microseconds_between(begin, end);
  cl::api().clReleaseEvent(begin), cl::api().clReleaseEvent(end);
  return all / runs;
}

}  // namespace dlb::solver
