// Transforms that do not fit a tile, as transforms along the dimensions of a matrix with two or three of
// them.
#pragma once
#include <vector>

#include "primitives/fft/tiles.h"

namespace dlb::fft {

// Lengths whose product is `points`, each of which fits a tile; empty where there are none. Two where that is
// possible.
std::vector<int64_t> split_points(int64_t points, const cl::Device& device, bool is_double);

// A problem's launches. The batch is computed in chunks whose numbers stay in a cache between them.
class LongTransform {
 public:
  // `padded`: 0, or the length of the transforms by which Bluestein's algorithm computes one.
  LongTransform(const FftProblem& p, int64_t padded, cl::Device& device);
  static uint64_t workspace(const FftProblem& p, int64_t padded, const cl::Device& device);
  // Microseconds.
  static double estimate(const FftProblem& p, int64_t padded, const cl::Device& device);

  void run(Stream& stream, const MemoryOperands& o, MemRef work) const;

 private:
  struct Edge {
    cl::Kernel* kernel = nullptr;
    params::FftEdge params{};
    std::optional<TableKey> table;
    int64_t items = 0;  // of a transform
  };
  // Where a run's operands lie, and the chunk: the first transform and their number.
  struct Run {
    Stream& stream;
    Buffer in, out, buffers[2];
    MemRef rest;
    int64_t first, count;
  };
  void add_steps(const params::FftView& in, bool in_place, const params::FftView& out, int32_t flags,
                 std::vector<TileLaunch>& list) const;
  Edge make_edge(const char* kernel, const params::FftView& in, const params::FftView& out) const;
  params::FftView scratch_view(int64_t length) const;
  void add_steps_across(const params::FftView& in, const params::FftView& out, int32_t flags);
  void run_edge(const Run& run, const Edge& edge, const Buffer& in, const Buffer& out, double scale) const;
  void run_steps(const Run& run, const std::vector<TileLaunch>& steps, const Buffer& in, const Buffer& middle,
                 const Buffer& out, double scale) const;
  void run_direct(const Run& run, double scale) const;
  void run_padded(const Run& run, double scale) const;
  Buffer shifted(const Buffer& buffer, int64_t first, int64_t length) const;
  void plan_direct();
  void plan_padded();

  FftProblem problem_;
  Form form_;
  cl::Device& device_;
  bool is_double_;
  int64_t length_ = 0, padded_ = 0;  // of the transforms in steps, and Bluestein's
  std::vector<int64_t> factors_;
  bool across_ = false;  // neighbours in memory are of different transforms, in the buffer too
  std::vector<TileLaunch> forward_, backward_;
  std::optional<Edge> before_, after_, chirp_in_, multiply_, chirp_out_;
};

}  // namespace dlb::fft
