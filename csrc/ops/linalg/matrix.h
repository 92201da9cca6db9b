// Code that the ops of dense linear algebra share: batches of matrices as kernels take them, launches over a
// batch, and products that keep float32's precision.
#pragma once
#include <ATen/core/Tensor.h>

#include "kernels/linalg/params.h"
#include "primitives/common/team.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb::linalg {

using at::Tensor;

// The tensor [.., m, n] as [batch, m, n] in the same memory. Throws c10::Error for batch dimensions that do
// not collapse.
Tensor collapse(const Tensor& matrices);
// The same, or a copy where batch dimensions do not collapse.
Tensor collapse_or_copy(const Tensor& matrices);
// The tensor [.., n] as [batch, n, 1].
Tensor collapse_vectors(const Tensor& vectors);

// A copy whose matrices are column-major, their lazy conjugation carried out. Batch dimensions stay.
Tensor column_major_copy(const Tensor& matrices);
// An uninitialised [batch, m, n] of column-major matrices.
Tensor empty_column_major(int64_t batch, int64_t m, int64_t n, const at::TensorOptions& options);

// out += alpha a b for [batch, ., .], never in TF32.
void add_product(const Tensor& out, const Tensor& a, const Tensor& b, double alpha);
// out = a b.
void set_product(const Tensor& out, const Tensor& a, const Tensor& b);

// The largest matrix that kernels with a tile take.
int64_t tile_of(const Tensor& tensor);

// Rows and columns of the blocks that kernels/linalg/block.clh takes: of larger matrices than a tile, on
// GPUs.
int64_t block_of(const Tensor& tensor);
// Whether a matrix of n rows is factored and solved with by those: more than a tile has, and not so many that
// the general product's larger tiles gain more than its launches cost.
bool goes_by_blocks(const Tensor& tensor, int64_t n);

// Whether kernels/linalg/cpu_blocks.clh's programs take a matrix of so many columns: on CPUs, more than a
// tile has, and not so many that products deeper than a panel gain by reading the rest of the matrix less
// often.
bool goes_by_panels(const Tensor& tensor, int64_t columns);
// The distance between columns of so many numbers in scratch: room for a vector behind them, and not a power
// of two, which would compete for few sets of the caches.
inline int64_t padded_column(int64_t rows) {
  return (rows + 15) / 16 * 16 + 16;
}

// Whether kernels/linalg/gpu_small.cl takes matrices of so many rows or columns, whichever are more.
bool is_small(const Tensor& tensor, int64_t size);

// Whether tiles are as on GPUs: on those, and on CPUs whose driver has too little local memory for larger
// ones.
bool has_small_tile(const cl::Device& device);

// Passes a tensor [batch, m, n] to a kernel: its buffer and its params::Matrix. The tensor may be undefined.
void add_argument(cl::Kernel::Arguments& arguments, const Tensor& matrices);
inline void add_argument(cl::Kernel::Arguments& arguments, int value) {
  arguments.add(static_cast<cl_int>(value));
}
inline void add_argument(cl::Kernel::Arguments& arguments, int64_t value) {
  arguments.add(static_cast<cl_int>(value));
}
inline void add_argument(cl::Kernel::Arguments& arguments, const cl::Local& room) {
  arguments.add(room);
}

// Where a kernel of linear algebra runs, for tensors of that dtype. Raises NotImplementedError for dtypes
// other than float32, float64, complex64 and complex128, naming the op.
struct Place {
  Stream& stream;
  codegen::DType type;

  Place(const Tensor& tensor, const char* op);
  bool cpu() const { return stream.device().cls == cl::DeviceClass::kCpu; }
  cl::Kernel& kernel(const char* file, const char* name) const {
    const bool small = cpu() && has_small_tile(stream.device());
    return fetch_kernel(stream.device(), file, name, type, {type}, small ? "-DLINALG_SMALL_TILE" : "");
  }
  // `count` jobs of about `work` operations: a work-group of at most `items` work-items each on GPUs.
  params::Jobs jobs(int64_t count, int64_t work) const;
  cl::Range range(const params::Jobs& jobs, int64_t items) const;
};

// The number of parts in which work-items share each of `batch` matrices, at most so many.
inline int64_t parts_of_each(const Place& place, int64_t batch, int64_t most) {
  const int64_t units = place.stream.device().compute_units;
  return std::clamp<int64_t>((units + batch - 1) / batch, 1, std::max<int64_t>(most, 1));
}

// Runs a kernel over jobs (FOR_JOBS of kernels/linalg/linalg.clh); arguments as add_argument() takes them.
template <class... Args>
void run_jobs(const Place& place, const char* file, const char* name, int64_t count, int64_t work,
              int64_t items, const Args&... args) {
  const params::Jobs jobs = place.jobs(count, work);
  place.kernel(file, name).launch_with(place.stream.queue(), place.range(jobs, items), [&](auto& arguments) {
    (add_argument(arguments, args), ...);
    arguments.add(jobs);
  });
}

// Runs a kernel for GPUs with so many work-groups. `options` as of fetch_kernel().
template <class... Args>
void run_groups(const Place& place, const char* file, const char* name, const char* options, int64_t groups,
                int64_t items, const Args&... args) {
  fetch_kernel(place.stream.device(), file, name, place.type, {place.type}, options)
      .launch_with(place.stream.queue(), cl::Range::linear(groups, items),
                   [&](auto& arguments) { (add_argument(arguments, args), ...); });
}

// Runs one whose work-groups have LINALG_GROUP work-items: those of kernels/linalg/block.clh, and
// gpu_lu_columns.cl.
template <class... Args>
void run_blocks(const Place& place, const char* file, const char* name, int64_t groups, const Args&... args) {
  run_groups(place, file, name, "", groups, params::LINALG_GROUP, args...);
}

// Runs one of kernels/linalg/gpu_small.cl for `batch` matrices of at most `size` rows and columns.
template <class... Args>
void run_small(const Place& place, const char* name, int64_t size, int64_t batch, const Args&... args) {
  const int64_t lanes = size <= 8 ? 8 : 16, teams = params::LINALG_SMALL_GROUP / lanes;
  run_groups(place, "linalg/gpu_small.cl", name, lanes == 8 ? "-DSIZE=8" : "-DSIZE=16",
             (batch + teams - 1) / teams, params::LINALG_SMALL_GROUP, args..., batch);
}

// Runs a kernel with a work-item for each of `rows` (FOR_ROWS of kernels/common/team.clh).
template <class... Args>
void run_rows(const Place& place, const char* file, const char* name, int64_t rows, int64_t work,
              const Args&... args) {
  const Team team = make_team(place.stream.device(), rows, work, 1);
  place.kernel(file, name)
      .launch_with(place.stream.queue(), range_of(place.stream.device(), team), [&](auto& arguments) {
        (add_argument(arguments, args), ...);
        arguments.add(team);
      });
}

}  // namespace dlb::linalg
