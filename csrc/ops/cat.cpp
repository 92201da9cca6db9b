// cat: several inputs per launch where they are blocks of rows in the output's layout, else a strided and
// casting copy of each.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/cat_meta.h>
#include <ATen/ops/narrow.h>

#include <numeric>

#include "codegen/pointwise.h"
#include "kernels/cat/params.h"
#include "ops/common/structured.h"
#include "ops/index/access.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

constexpr uint32_t kInputs = params::CAT_INPUTS;

// A tensor as `rows` rows of `length` neighbouring elements, `pitch` apart, in elements.
struct Rows {
  int64_t rows, length, pitch;
};

// Dimensions `order` (outermost first) of `t`, those from position `split` on forming the row; nothing when
// the strides do not allow it.
std::optional<Rows> as_rows(const at::Tensor& t, const at::DimVector& order, size_t split) {
  Rows r{1, 1, 0};
  for (size_t i = order.size(); i-- > 0;) {
    const auto d = static_cast<size_t>(order[i]);
    const int64_t size = t.sizes()[d], stride = t.strides()[d];
    if (size == 1) continue;
    if (i >= split) {
      if (stride != r.length) return std::nullopt;
      r.length *= size;
    } else {
      if (r.rows == 1) r.pitch = stride;
      if (stride != r.pitch * r.rows) return std::nullopt;
      r.rows *= size;
    }
  }
  return r;
}

class Concatenation {
 public:
  Concatenation(const at::Tensor& out, int64_t dim)
      : out_(out),
        dim_(dim),
        order_(static_cast<size_t>(out.dim())),
        stream_(current_stream(out.device().index())) {
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int64_t a, int64_t b) { return out.stride(a) > out.stride(b); });
    split_ = static_cast<size_t>(std::find(order_.begin(), order_.end(), dim) - order_.begin());
    form_ = as_rows(out, order_, split_);
    blocks_.out_offset = buffer_of(out).offset;
    if (form_) blocks_.out_pitch = form_->pitch;
  }

  void add(const at::Tensor& input) {
    const int64_t size = input.size(dim_);
    if (!add_block(input)) at::narrow(out_, dim_, start_, size).copy_(input);
    start_ += size;
  }

  void flush() {
    if (blocks_.inputs == 0) return;
    for (uint32_t k = blocks_.inputs; k < kInputs; ++k) mem_[k] = mem_[0];
    const size_t bytes = widen();
    cl::Device& device = stream_.device();
    const Split split = split_work(device, blocks_.first[blocks_.inputs]);
    fetch_kernel(device, "cat/cat.cl", "dlb_cat", codegen::DType::U8, {}, width_option(bytes))
        .launch_with(stream_.queue(), split.range, [&](auto& arguments) {
          for (cl_mem input : mem_) arguments.add(input);
          arguments.add(buffer_of(out_).mem);
          arguments.add(blocks_);
        });
    blocks_.inputs = 0;
    blocks_.out_offset = buffer_of(out_).offset;
    blocks_.out_pitch = form_->pitch;
  }

 private:
  bool add_block(const at::Tensor& input) {
    if (!form_ || input.scalar_type() != out_.scalar_type() || input.is_conj() || input.is_neg())
      return false;
    const auto rows = as_rows(input, order_, split_);
    if (!rows || input.numel() >= (int64_t{1} << 30)) return false;
    if (blocks_.inputs == kInputs ||
        int64_t{blocks_.first[blocks_.inputs]} + input.numel() >= (int64_t{1} << 31))
      flush();
    const uint32_t k = blocks_.inputs++;
    const Buffer buffer = buffer_of(input);
    mem_[k] = buffer.mem;
    blocks_.offset[k] = buffer.offset;
    blocks_.pitch[k] = rows->pitch;
    blocks_.length[k].divisor = static_cast<uint32_t>(rows->length);
    // The other dimensions inside a row are the same for all inputs.
    blocks_.start[k] = start_ * (rows->length / input.size(dim_));
    blocks_.first[0] = 0;
    blocks_.first[k + 1] = blocks_.first[k] + static_cast<uint32_t>(input.numel());
    return true;
  }

  // Copies elements of up to 16 bytes where everything is a multiple of them. Returns their size.
  size_t widen() {
    int64_t common = blocks_.out_offset | blocks_.out_pitch;
    for (uint32_t k = 0; k < blocks_.inputs; ++k)
      common |= blocks_.offset[k] | blocks_.pitch[k] | blocks_.start[k] | blocks_.length[k].divisor;
    size_t bytes = out_.itemsize();
    int64_t factor = 1;
    while (bytes * 2 <= 16 && common % (factor * 2) == 0) factor *= 2, bytes *= 2;
    blocks_.out_offset /= factor, blocks_.out_pitch /= factor;
    for (uint32_t k = 0; k < blocks_.inputs; ++k) {
      blocks_.offset[k] /= factor, blocks_.pitch[k] /= factor, blocks_.start[k] /= factor;
      blocks_.first[k + 1] /= static_cast<uint32_t>(factor);
      blocks_.length[k] = codegen::make_divider(blocks_.length[k].divisor / static_cast<uint32_t>(factor));
    }
    return bytes;
  }

  const at::Tensor& out_;
  const int64_t dim_;
  at::DimVector order_;  // dimensions of the output as they lie in memory, outermost first
  size_t split_;         // position of dim_ in order_
  std::optional<Rows> form_;
  Stream& stream_;
  int64_t start_ = 0;
  params::CatParams blocks_{};
  cl_mem mem_[kInputs];
};

void concatenate(const at::ITensorListRef& tensors, int64_t dim, const at::Tensor& result) {
  const c10::OptionalDeviceGuard guard = guard_of(result.device());
  Concatenation all(result, dim);
  for (const at::Tensor& t : tensors) {
    TORCH_CHECK(t.device() == result.device(),
                "Expected all tensors to be on the same device, but found at least two "
                "devices, ",
                result.device(), " and ", t.device(), "!");
    at::assert_no_overlap(result, t);
    if (t.numel() != 0) all.add(t);  // an empty tensor of one dimension goes with any shape
  }
  all.flush();
}

at::Tensor& cat_out(const at::ITensorListRef& tensors, int64_t dim, at::Tensor& out) {
  OutOp<at::meta::structured_cat> op(out);
  const auto checked = op.meta(tensors, dim);
  const at::Tensor& result = op.result();
  if (result.numel() == 0) return op.finish(), out;
  at::assert_no_internal_overlap(result);
  concatenate(tensors, checked.dim, result);
  op.finish();
  return out;
}

at::Tensor cat(const at::ITensorListRef& tensors, int64_t dim) {
  NewOp<at::meta::structured_cat> op;
  const auto checked = op.meta(tensors, dim);
  if (op[0].numel() != 0) concatenate(tensors, checked.dim, op[0]);
  return std::move(op[0]);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("cat", cat);
  m.impl("cat.out", cat_out);
}

}  // namespace dlb
