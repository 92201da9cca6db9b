// Tries solutions of a problem on synthetic operands: are they right, and how long do they take.
#pragma once
#include <c10/core/ScalarType.h>

#include <memory>
#include <vector>

#include "solver/op.h"

namespace dlb::solver {

// A buffer outside the caching allocator, asked of the driver once and given back to it: for the library's
// own streams (Stream::kInternal), which launch on the calling thread.
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
// The tolerance of a problem: operands that are rounded to TF32 count as float16, which is as exact.
inline double tolerance_of(const Problem& problem) {
  return tolerance(problem.tf32 ? c10::ScalarType::Half : problem.dtype);
}

// Asks for the programs that a trial needs, besides those of the solution.
void ask_for_trial_programs(const Problem& problem, cl::Device& device);

// A marker in the stream's queue, which must take times; the caller releases it.
cl_event mark(Stream& stream);
// Microseconds from the completion of one marker to that of the other. Both must be complete.
double microseconds_between(cl_event begin, cl_event end);

// The device's stream for trials, whose queue takes times.
Stream& trial_stream(cl::Device& device);

// Operands of one problem, and the results that solutions must give. One thread at a time per device.
class Trial {
 public:
  // Allocates and fills the operands. Throws cl::Error or c10::OutOfMemoryError when memory does not suffice.
  Trial(const Problem& problem, cl::Device& device);

  // Error of a solution against the reference solver, in windows at both ends of the result; relative to the
  // largest result, the worst of several. Results of another dtype than the problem's count by their
  // tolerance: what is allowed there is what tolerance_of() the problem allows.
  double error_in_windows(const Solution& solution);

  // Makes the last result the one that error() compares with.
  void expect_last();

  // Error of a solution against the expected result, everywhere, gaps and bytes behind it included.
  double error(const Solution& solution);

  // Microseconds of one run, of so many one after the other. The first run of a solution in a process takes
  // longer: check it before.
  double time(const Solution& solution, int runs);

 private:
  // Runs the solution with the results in `result`; `shift` is added to the offsets of the window's operands.
  void run(const Solution& solution, const Problem& problem, cl_mem result, const Operands* shift = nullptr);
  void make_room(const Solution& solution);
  double compare(cl_mem got, cl_mem want);
  double compare_one(cl_mem got, cl_mem want, int64_t begin, int64_t elements, c10::ScalarType dtype);
  void clear(cl_mem results);
  void fill(cl_mem mem, const Span& span, uint32_t seed);

  const Problem& problem() const { return *problem_; }

  const StoredProblem problem_;
  cl::Device& device_;
  Stream& stream_;
  std::vector<ScratchBuffer> buffers_;
  StoredOperands operands_;
  const uint64_t bytes_;  // of a buffer of results
  std::unique_ptr<ScratchBuffer> got_, want_, workspace_, prepared_;
  uint64_t workspace_bytes_ = 0;
  const Solution* prepared_for_ = nullptr;  // whose prepared weights there are
};

}  // namespace dlb::solver
