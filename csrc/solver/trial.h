// Tries solutions of a problem on synthetic operands: are they right, and how long do they take.
#pragma once
#include <c10/core/ScalarType.h>

#include <memory>
#include <vector>

#include "solver/solver.h"

namespace dlb::solver {

// A buffer of its own, outside the caching allocator: tried once, given back to the driver.
class ScratchBuffer {
 public:
  // Throws cl::Error when the driver has no memory.
  ScratchBuffer(cl::Device& device, uint64_t bytes);
  ~ScratchBuffer();
  ScratchBuffer(ScratchBuffer&& other) noexcept : mem_(std::exchange(other.mem_, nullptr)) {}
  ScratchBuffer(const ScratchBuffer&) = delete;
  cl_mem mem() const { return mem_; }

 private:
  cl_mem mem_ = nullptr;
};

// The largest error that a right result may have, relative to the largest result: rounding of the dtype's
// storage, and for the arithmetic in float what Winograd's F(4x4, 3x3), the least accurate algorithm here,
// needs (docs/numerics.md). Zero for integers.
double tolerance(c10::ScalarType type);
// The same of a problem: operands rounded to TF32 are as exact as float16.
template <class Problem>
double tolerance_of(const Problem& problem) {
  if constexpr (requires { problem.tf32; })
    if (problem.tf32) return tolerance(c10::ScalarType::Half);
  return tolerance(problem.dtype);
}

// Asks for the programs that trying a solution takes.
template <class Problem>
void ask_for_trial_programs(const Problem& problem, cl::Device& device);

// A marker in the stream's queue, which must take times; the caller releases it.
cl_event mark(Stream& stream);
// From the completion of one to that of the other, which are both complete.
double microseconds_between(cl_event begin, cl_event end);

// The queue that solutions are tried on, with timestamps; one per device.
Stream& trial_stream(cl::Device& device);

// What one result takes of a buffer of results: elements behind it that nothing may touch, and alignment,
// included.
constexpr int64_t kResultGuard = 256;  // elements
inline uint64_t result_bytes(int64_t elements, c10::ScalarType dtype) {
  const uint64_t bytes = static_cast<uint64_t>(elements + kResultGuard) * c10::elementSize(dtype);
  return (bytes + 255) / 256 * 256;
}

// Operands of one problem, and the results that solutions must give. One thread at a time per device.
template <class Problem>
class Trial {
 public:
  // Allocates and fills the operands. Throws cl::Error or c10::OutOfMemoryError when memory does not suffice.
  Trial(const Problem& problem, cl::Device& device);

  // Error of a solution against the reference solver, on parts at both ends of the result; relative to the
  // largest result, the worst of several. Results of another dtype than the problem's count by their
  // tolerance: what is allowed there is what tolerance() of the problem's dtype allows.
  double error_of_parts(const Solution<Problem>& solution);

  // Makes the last result the one that error() compares with.
  void expect_last();

  // Error of a solution against the expected result, everywhere, gaps and bytes behind it included.
  double error(const Solution<Problem>& solution);

  // Microseconds of one run, of so many one after the other. The first run of a solution in a process takes
  // longer: check it before.
  double time(const Solution<Problem>& solution, int runs);

 private:
  void run(const Solution<Problem>& solution, const Problem& problem, typename Problem::Operands operands,
           cl_mem result, const typename Problem::Operands* shift = nullptr);
  void make_room(const Solution<Problem>& solution);
  double compare(cl_mem got, cl_mem want);
  double compare_one(cl_mem got, cl_mem want, int64_t begin, int64_t elements, c10::ScalarType dtype);
  void clear(cl_mem results);
  void fill(cl_mem mem, const Span<typename Problem::Operands>& span, uint32_t seed);

  const Problem problem_;
  cl::Device& device_;
  Stream& stream_;
  std::vector<ScratchBuffer> buffers_;
  typename Problem::Operands operands_{};
  const uint64_t bytes_;  // of a buffer of results
  std::unique_ptr<ScratchBuffer> got_, want_, workspace_, prepared_;
  uint64_t workspace_bytes_ = 0;
  const Solution<Problem>* prepared_for_ = nullptr;  // whose prepared weights there are
};

// Bytes of a buffer that holds all results of a problem, one behind the other.
template <class Problem>
uint64_t results_bytes(const Problem& problem) {
  uint64_t bytes = 0;
  for (const auto& span : problem.spans())
    if (span.result) bytes += result_bytes(span.elements, span.dtype);
  return bytes;
}

// Puts all results into another buffer than the operands say.
template <class Problem>
void redirect_results(const Problem& problem, typename Problem::Operands& operands, MemRef to) {
  uint64_t at = to.offset;
  for (const auto& span : problem.spans()) {
    if (!span.result) continue;
    operands.*span.buffer = {to.mem, static_cast<int64_t>(at / c10::elementSize(span.dtype))};
    at += result_bytes(span.elements, span.dtype);
  }
}

}  // namespace dlb::solver
