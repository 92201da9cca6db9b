// Launches of fft/stockham.cl and, on GPUs, of fft/registers.cl: transforms that fit a tile.
#pragma once
#include <optional>

#include "cl/kernel.h"
#include "primitives/fft/fft.h"
#include "primitives/fft/tables.h"

namespace dlb::fft {

// The task of a launch. Views are complete but for offsets, which each run has.
struct TileTask {
  int64_t n = 1, points = 1;  // of the passes, and of the transform (fewer: Bluestein's algorithm)
  params::FftView in{}, out{};
  int64_t lanes = 1;  // side by side
  int64_t sizes[params::FFT_BATCH_DIMS] = {1, 1, 1, 1, 1};
  int64_t in_count = 1, out_count = 1, capacity = 1;
  int32_t flags = 0;
  int64_t step_points = 0;  // FFT_STEPS: of the longer transform
};

// Transforms side by side that a CPU computes at once; 1 on GPUs, where a tile's lanes depend on its length.
int64_t tile_width(const cl::Device& device, bool is_double);
// Numbers of a transform that a tile can hold.
int64_t most_in_tile(const cl::Device& device, bool is_double);
// Whether a tile can hold the transforms of the task.
bool fits_tile(const TileTask& task, const cl::Device& device, bool is_double);

class TileLaunch {
 public:
  TileLaunch(const TileTask& task, cl::Device& device, bool is_double);

  // Bytes of scratch memory for batches of at most so many transforms in place of all, times lanes.
  static uint64_t workspace(const TileTask& task, const cl::Device& device, bool is_double);

  // Transforms the batch indices [first, first + count), where batch dimensions count all but the lanes.
  // Offsets in real numbers. `work` has workspace() bytes.
  void run(Stream& stream, const Buffer& in, const Buffer& out, int64_t first, int64_t count, double scale,
           MemRef work) const;

 private:
  template <class Real>
  void launch(Stream& stream, const Buffer& in, const Buffer& out, params::FftTiles p, double scale,
              MemRef work) const;

  params::FftTiles p_{};
  bool is_double_;
  cl::Device& device_;
  size_t group_ = 1, local_bytes_ = 0;
  std::optional<TableKey> real_, chirp_, spectrum_, steps_;
  TableKey twiddle_;
  cl::Kernel& kernel_;
};

// The whole batch of a problem as a task: which dimension lies across a tile's lanes.
TileTask task_of(const FftProblem& p, const Form& form, const cl::Device& device);
// An invoker of one launch for all of it.
std::unique_ptr<Invoker<FftProblem>> tile_invoker(const FftProblem& p, const TileTask& task,
                                                  cl::Device& device);
// Tiles that the task fills, times their lanes: lanes that do nothing cost the same on CPUs.
double padded_transforms(const TileTask& task, const cl::Device& device, bool is_double);

}  // namespace dlb::fft
