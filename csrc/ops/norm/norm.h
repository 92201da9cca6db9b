// What batch, group and layer norm share: layouts of rows and columns, splitting them over the device, and
// the launches of the kernels in norm.cl.
#pragma once
#include <ATen/core/Tensor.h>

#include "codegen/pointwise.h"
#include "ops/common/family.h"
#include "ops/common/team.h"
#include "ops/common/tensor.h"

namespace dlb::norm {

// As norm_layout in norm.cl.
struct Layout {
  int64_t x = 0, dy = 0, mean = 0, rstd = 0, partial = 0;
  int64_t outer_stride = 0, inner_stride = 0, segment_stride = 0;
  uint32_t inner_rows = 1, rows = 1, length = 1, count = 1, per_split = 1, mean_group = 1;
  codegen::Divider length_divider{};
};

// As norm_finish in norm.cl; offsets of -1 say that a tensor is absent.
struct Finish {
  int64_t mean = -1, rstd = -1, weight = -1, bias = -1, running_mean = -1, running_var = -1, grad_weight = -1,
          grad_bias = -1;
  int64_t partial = 0, coefficients = 0;
  uint32_t rows = 0, splits = 1, count = 1, per_split = 1;
  uint32_t groups = 1, channels = 0, samples = 1, length = 1;
  float eps_high = 0, eps_low = 0, momentum_high = 0, momentum_low = 0;
  int32_t training = 0, padding = 0;

  void set_eps(double eps) { eps_high = float(eps), eps_low = float(eps - eps_high); }
  void set_momentum(double m) { momentum_high = float(m), momentum_low = float(m - momentum_high); }
};

// One normalisation's device, stream and element types.
struct Context {
  Stream& stream;
  cl::Device& device;
  codegen::DType data, param, compute;
  c10::ScalarType compute_scalar;

  // `param`: any of the weights or running statistics; the input's dtype where none is defined.
  Context(const at::Tensor& input, const at::Tensor& param, const char* op);

  cl::Kernel& kernel(const char* name) const {
    return family_kernel(device, "norm.cl", name, compute, {data, param});
  }
  at::Tensor scratch(int64_t elements) const;
  // A team for one of the finish kernels.
  Team finish_team(int64_t rows, uint32_t splits) const;
};

// An optional tensor as a kernel argument; offset -1 when it is absent or empty.
Operand optional_operand(const at::Tensor& tensor);

// Partial results of a pass over the data: [splits][2][rows] in the compute type.
struct Partial {
  at::Tensor values;
  uint32_t splits, per_split;
};

// Passes over x (and dy), over contiguous runs or over interleaved columns.
enum class Form { Rows, Columns };
Partial statistics(const Context& context, Form form, Layout layout, const at::Tensor& x);
Partial gradient_sums(const Context& context, Form form, Layout layout, const at::Tensor& x,
                      const at::Tensor& dy, const at::Tensor& mean, const at::Tensor& rstd);

// y = (x - mean) * scale + shift and dx = dy * k0 - (k1 + (x - mean) * k2), with `coefficients` ([3] or [4]
// sets of `size` values) that stretch over x by `strides` (elements; 0 along dimensions they do not depend
// on).
void apply_forward(const at::Tensor& y, const at::Tensor& x, const at::Tensor& coefficients, int64_t size,
                   at::IntArrayRef strides);
void apply_backward(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x,
                    const at::Tensor& coefficients, int64_t size, at::IntArrayRef strides);

}  // namespace dlb::norm
