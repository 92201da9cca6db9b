// The checks of the indices of sparse compressed tensors. One kernel makes all of them, and its result is
// waited for, since a wrong tensor must not come into being.
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <limits>

#include "kernels/sparse/params.h"
#include "ops/sparse/parts.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb::sparse {
namespace {

using at::Tensor;

// Compressed indices [.., lines + 1] and plain indices [.., nnz], which are less than `size`.
void validate(bool by_rows, const Tensor& compressed, const Tensor& plain, int64_t lines, int64_t size,
              int64_t nnz) {
  const std::string begins = by_rows ? "crow_indices" : "ccol_indices",
                    places = by_rows ? "col_indices" : "row_indices";
  const char* const line_name = by_rows ? "nrows" : "ncols";
  const char* const size_name = by_rows ? "ncols" : "nrows";
  TORCH_CHECK(compressed.size(-1) == lines + 1, begins, " have wrong shape: ", begins,
              ".shape[-1] = ", compressed.size(-1), " is not equal to ", line_name, " + 1 = ", lines + 1);
  TORCH_CHECK(plain.size(-1) == nnz, places, " have wrong shape: ", places, ".shape[-1] = ", plain.size(-1),
              " is not equal to nnz = ", nnz);
  if (plain.scalar_type() == at::kInt) {
    const auto fits = [](int64_t value, const char* what) {
      TORCH_CHECK(value <= std::numeric_limits<int32_t>::max(), "32-bit integer overflow in ", what, " = ",
                  value);
    };
    fits(size, by_rows ? "column dimension" : "row dimension");
    fits(lines, by_rows ? "row dimension" : "column dimension");
    fits(nnz, "nnz");
  }
  TORCH_CHECK(compressed.scalar_type() == plain.scalar_type(), begins, " and ", places,
              " must have one dtype, but they have ", compressed.scalar_type(), " and ", plain.scalar_type());
  const int64_t count = std::max(compressed.numel() / (lines + 1) * lines, plain.numel());
  if (count == 0) return;
  const auto type = dtype_of(plain.scalar_type(), "indices of sparse tensors");
  const Tensor from = compressed.contiguous(), to = plain.numel() ? plain.contiguous() : from;
  const Tensor found = at::zeros({1}, plain.options().dtype(at::kInt));
  Stream& stream = current_stream(plain.device().index());
  const Buffer a = buffer_of(from), b = buffer_of(to), bits = buffer_of(found);
  params::SparseValidate p{};
  p.compressed = a.offset, p.plain = b.offset, p.found = bits.offset;
  p.batches = compressed.numel() / (lines + 1), p.lines = lines, p.size = size, p.nnz = nnz;
  const bool cpu = stream.device().cls == cl::DeviceClass::kCpu;
  const size_t most = size_t{stream.device().compute_units} * (cpu ? 4 : 1024), group = cpu ? 1 : 64;
  const size_t items = std::min(most, (static_cast<size_t>(count) + group - 1) / group * group);
  fetch_kernel(stream.device(), "sparse/validate.cl", "dlb_sparse_validate", codegen::compute_type(type),
               {type})
      .launch(stream.queue(), cl::Range::linear(items, group), a.mem, b.mem, bits.mem, p);
  const int32_t wrong = found.item<int32_t>();
  const auto check = [&](int32_t bit, const auto&... what) {
    TORCH_CHECK(!(wrong & bit), "`", what..., "` is not satisfied.");
  };
  check(params::SPARSE_PLAIN_BOUNDS, "0 <= ", places, " < ", size_name);
  check(params::SPARSE_FIRST, begins, "[..., 0] == 0");
  check(params::SPARSE_LAST, begins, "[..., -1] == nnz");
  check(params::SPARSE_STEPS, "0 <= ", begins, "[..., 1:] - ", begins, "[..., :-1] <= ", size_name);
  check(params::SPARSE_ORDER, places, "[..., ", begins, "[..., i - 1]:", begins,
        "[..., i]] for all i = 1, ..., ", line_name,
        " are sorted and distinct along the last dimension values");
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_validate_compressed_sparse_indices", validate);
}

}  // namespace dlb::sparse
