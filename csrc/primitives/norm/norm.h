// What batch, group and layer norm share: layouts of rows and columns, the passes over them, and the
// application of coefficients.
#pragma once
#include <ATen/core/Tensor.h>

#include "cl/kernel.h"
#include "codegen/pointwise.h"
#include "primitives/common/team.h"
#include "primitives/norm/problem.h"
#include "runtime/family.h"
#include "runtime/tensor.h"

namespace dlb::norm {

// As norm_layout in norm/norm.cl.
struct Layout {
  int64_t x = 0, dy = 0, mean = 0, rstd = 0, partial = 0;
  int64_t outer_stride = 0, inner_stride = 0, segment_stride = 0;
  uint32_t inner_rows = 1, rows = 1, length = 1, count = 1, per_split = 1, mean_group = 1;
  uint32_t block = 1, padding = 0;
  codegen::Divider length_divider{};
};

// As norm_finish in norm/norm.cl; offsets of -1 say that a tensor is absent.
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
  c10::ScalarType data_scalar, param_scalar, compute_scalar;

  // `param`: any of the weights or running statistics; the input's dtype where none is defined.
  Context(const at::Tensor& input, const at::Tensor& param, const char* op);

  cl::Kernel& kernel(const char* name) const {
    return family_kernel(device, "norm/norm.cl", name, compute, {data, param});
  }
  // A problem of these types without sizes.
  template <class P>
  P problem(const solver::OpOf<P>& op) const {
    P p = op.make();
    p.device = static_cast<int8_t>(device.index);
    p.dtype = p.types[0] = data_scalar;
    p.types[solver::kNormParamType] = param_scalar;
    return p;
  }
  at::Tensor scratch(int64_t elements) const;
  // A team for one of the finish kernels.
  Team finish_team(int64_t rows, uint32_t splits) const;
};

// Throws c10::Error unless weights and statistics have the input's dtype, or float32 beside half or bfloat16.
void check_dtypes(const at::Tensor& input, std::initializer_list<const at::Tensor*> params, const char* op);

// An optional tensor as a kernel argument; offset -1 when it is absent or empty.
Operand optional_operand(const at::Tensor& tensor);

// The same as an operand of a problem.
Buffer buffer_of(const at::Tensor& tensor);

// Results of a pass over the data, in the compute type: [splits][2][rows], means and variances or two sums.
struct Partial {
  at::Tensor values;
  uint32_t splits, per_split;
};

// Passes over x (and dy), over contiguous runs or over interleaved columns; one split where solvers chose.
enum class Form { Rows, Columns };
Partial statistics(const Context& context, Form form, const Layout& layout, const at::Tensor& x);
Partial gradient_sums(const Context& context, Form form, const Layout& layout, const at::Tensor& x,
                      const at::Tensor& dy, const at::Tensor& mean, const at::Tensor& rstd);

// What apply() takes x for: [outer][rows][inner], dense.
struct Extent {
  int64_t outer, rows, inner;
};

// y = (x - mean) * scale + shift with coefficients [3][rows]; with dy, y = dy * k0 - (k1 + (x - mean) * k2)
// with [4][rows], the first of which is the mean. All of x's layout.
void apply(const Context& context, const Extent& extent, const at::Tensor& y, const at::Tensor& x,
           const at::Tensor* dy, const at::Tensor& coefficients);

// The same where each sample has coefficients of its own and is channels-last: [samples][length][channels],
// with rows = samples * channels.
struct ChannelsLast {
  int64_t samples, length, channels;
};
void apply(const Context& context, const ChannelsLast& extent, const at::Tensor& y, const at::Tensor& x,
           const at::Tensor* dy, const at::Tensor& coefficients);

// The element types of a problem made by Context::problem().
struct Types {
  codegen::DType data, param, compute;
  explicit Types(const solver::MemoryProblem& p);
};
inline cl::Kernel& norm_kernel(cl::Device& device, const char* file, const char* name, const Types& types) {
  return family_kernel(device, file, name, types.compute, {types.data, types.param});
}

}  // namespace dlb::norm
