// Batches of matrices as kernels take them.
#include "ops/linalg/matrix.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "ops/matmul/product.h"
#include "solver/settings.h"

namespace dlb::linalg {
namespace {

// Keeps products of the calling thread in full precision: factorizations amplify what TF32 rounds off.
class FullPrecision {
 public:
  FullPrecision() : previous_(solver::exchange_thread_fp32_precision("ieee")) {}
  ~FullPrecision() { solver::exchange_thread_fp32_precision(previous_); }
  FullPrecision(const FullPrecision&) = delete;

 private:
  const char* const previous_;
};

int64_t batch_of(const Tensor& matrices) {
  int64_t batch = 1;
  for (int64_t d = 0; d < matrices.dim() - 2; ++d) batch *= matrices.size(d);
  return batch;
}

}  // namespace

Tensor collapse(const Tensor& matrices) {
  return matrices.dim() == 3 ? matrices
                             : matrices.view({batch_of(matrices), matrices.size(-2), matrices.size(-1)});
}

Tensor collapse_or_copy(const Tensor& matrices) {
  return matrices.dim() == 3 ? matrices
                             : matrices.reshape({batch_of(matrices), matrices.size(-2), matrices.size(-1)});
}

Tensor collapse_vectors(const Tensor& vectors) {
  return collapse(vectors.unsqueeze(-1));
}

Tensor column_major_copy(const Tensor& matrices) {
  auto sizes = matrices.sizes().vec();
  std::swap(sizes[sizes.size() - 1], sizes[sizes.size() - 2]);
  const Tensor copy = at::empty(sizes, matrices.options()).mT();
  copy.copy_(matrices);
  return copy;
}

Tensor empty_column_major(int64_t batch, int64_t m, int64_t n, const at::TensorOptions& options) {
  return at::empty({batch, n, m}, options).mT();
}

void add_product(const Tensor& out, const Tensor& a, const Tensor& b, double alpha) {
  const FullPrecision guard;
  product_into("linalg", out, a, b, out, 1, alpha);
}

void set_product(const Tensor& out, const Tensor& a, const Tensor& b) {
  const FullPrecision guard;
  product_into("linalg", out, a, b, Tensor(), 0, 1);
}

bool has_small_tile(const cl::Device& device) {
  // A tile of the widest elements and its right-hand sides. OpenCL 1.2 promises 32 KiB, which GPUs' tiles
  // fit.
  constexpr uint64_t kLargest =
      sizeof(double) * 2 * params::LINALG_TILE_CPU * (params::LINALG_TILE_CPU + params::LINALG_LANES_CPU);
  return device.cls != cl::DeviceClass::kCpu || device.local_mem < kLargest;
}

int64_t tile_of(const Tensor& tensor) {
  return has_small_tile(device_of(tensor.device().index())) ? params::LINALG_TILE_GPU
                                                            : params::LINALG_TILE_CPU;
}

int64_t block_of(const Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? params::LINALG_BLOCK : params::LINALG_BLOCK_WIDE;
}

bool goes_by_blocks(const Tensor& tensor, int64_t n) {
  constexpr int64_t kMost = params::LU_MOST_ROWS * params::LINALG_GROUP;
  return device_of(tensor.device().index()).cls != cl::DeviceClass::kCpu && n > tile_of(tensor) && n <= kMost;
}

bool goes_by_panels(const Tensor& tensor, int64_t columns) {
  constexpr int64_t kMost = 512;
  return device_of(tensor.device().index()).cls == cl::DeviceClass::kCpu && columns > tile_of(tensor) &&
         columns <= kMost;
}

bool is_small(const Tensor& tensor, int64_t size) {
  return device_of(tensor.device().index()).cls != cl::DeviceClass::kCpu && size <= params::LINALG_SMALL;
}

void add_argument(cl::Kernel::Arguments& arguments, const Tensor& matrices) {
  params::Matrix matrix{};
  Buffer buffer;
  if (matrices.defined() && matrices.numel() != 0) {
    buffer = buffer_of(matrices);
    matrix = {buffer.offset, matrices.stride(0), matrices.stride(1), matrices.stride(2)};
  }
  arguments.add(buffer.mem);
  arguments.add(matrix);
}

Place::Place(const Tensor& tensor, const char* op)
    : stream(current_stream(tensor.device().index())), type(dtype_of(tensor.scalar_type(), op)) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble ||
                                  tensor.scalar_type() == at::kComplexFloat ||
                                  tensor.scalar_type() == at::kComplexDouble,
                              "\"", op, "\" not implemented for '", c10::toString(tensor.scalar_type()), "'");
  check_device_supports(stream.device(), type, op);
}

params::Jobs Place::jobs(int64_t count, int64_t work) const {
  params::Jobs jobs{static_cast<uint32_t>(count), 1};
  if (cpu()) {
    constexpr int64_t kGrain = 20000, kItemsPerUnit = 8;
    const int64_t items = std::clamp<int64_t>(count * std::max<int64_t>(work, 1) / kGrain, 1,
                                              stream.device().compute_units * kItemsPerUnit);
    jobs.per_item = static_cast<uint32_t>((count + items - 1) / items);
  }
  return jobs;
}

cl::Range Place::range(const params::Jobs& jobs, int64_t items) const {
  if (cpu()) return cl::Range::linear((jobs.count + jobs.per_item - 1) / jobs.per_item, 1);
  size_t local = 32;
  while (local < params::LINALG_GROUP && static_cast<int64_t>(local) < items) local *= 2;
  return cl::Range::linear(jobs.count, local);
}

}  // namespace dlb::linalg
