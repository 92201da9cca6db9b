// Fractional max pooling and its gradients.
#include <ATen/ops/empty.h>
#include <ATen/ops/fractional_max_pool2d_backward_meta.h>
#include <ATen/ops/fractional_max_pool2d_meta.h>
#include <ATen/ops/fractional_max_pool3d_meta.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "codegen/pointwise.h"
#include "kernels/pool/params.h"
#include "ops/common/structured.h"
#include "primitives/common/split.h"
#include "runtime/fetch_kernel.h"
#include "runtime/tensor.h"

namespace dlb {
namespace {

using at::IntArrayRef;
using at::Tensor;

// All contiguous; sizes [N,] C, spatial...
void run(const Tensor& x, const Tensor& samples, const Tensor& y, const Tensor& index, IntArrayRef kernel,
         int axes) {
  Stream& stream = current_stream(x.device().index());
  const auto type = dtype_of(x.scalar_type(), "fractional_max_pool");
  check_device_supports(stream.device(), type, "fractional_max_pool");
  TORCH_CHECK(x.numel() < (int64_t{1} << 31), "fractional_max_pool: 2^31 elements or more are not supported");
  params::FractionalParams p{};
  p.x = buffer_of(x).offset, p.samples = buffer_of(samples).offset;
  p.y = buffer_of(y).offset, p.index = buffer_of(index).offset;
  for (int axis = 0; axis < 3; ++axis) {
    const int own = axis - (3 - axes);  // among the op's own axes
    p.in[axis] = own < 0 ? 1 : static_cast<int32_t>(x.size(x.dim() - axes + own));
    p.out[axis] = codegen::make_divider(own < 0 ? 1 : static_cast<uint32_t>(y.size(y.dim() - axes + own)));
    p.size[axis] = own < 0 ? 1 : static_cast<int32_t>(kernel[static_cast<size_t>(own)]);
    // Two axes have their random numbers in the order W, H; three in the order D, H, W.
    p.sample[axis] = own < 0 ? -1 : axes == 2 ? 1 - own : own;
  }
  p.axes = axes;
  p.count = static_cast<uint32_t>(y.numel());
  const Split split = split_work(stream.device(), p.count, 1024);
  p.per_item = split.per_item;
  fetch_kernel(stream.device(), "pool/fractional.cl", "fractional_max_pool", codegen::compute_type(type),
               {type})
      .launch(stream.queue(), split.range, buffer_of(x).mem, buffer_of(samples).mem, buffer_of(y).mem,
              buffer_of(index).mem, p);
}

// `samples` is read at [sample, channel, axis]. PyTorch's meta functions check it for three axes at most.
void check_samples(const Tensor& self, const Tensor& samples, int axes) {
  const bool batched = self.dim() == axes + 2;
  const int64_t batch = batched ? self.size(0) : 1, channels = self.size(batched ? 1 : 0);
  TORCH_CHECK(samples.dim() == 3, "Expect _random_samples to have 3 dimensions, but got sizes ",
              samples.sizes());
  TORCH_CHECK(samples.size(0) >= batch, "Expect _random_samples.size(0) no less than input batch size ",
              batch, ", but got sizes ", samples.sizes());
  TORCH_CHECK(samples.size(1) == channels, "Expect _random_samples.size(1) equals to input channel size ",
              channels, ", but got sizes ", samples.sizes());
  TORCH_CHECK(samples.size(2) == axes, "Expect _random_samples.size(2) equals to ", axes, ", but got sizes ",
              samples.sizes());
}

void check_types(const Tensor& self, const Tensor& samples) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_floating_point(), "\"fractional_max_pool\" not implemented for '",
                              c10::toString(self.scalar_type()), "'");
  TORCH_CHECK(samples.scalar_type() == self.scalar_type(),
              "Expect _random_samples to have the same dtype as input, but ", "they have ",
              samples.scalar_type(), " and ", self.scalar_type());
}

template <class Meta, int Axes>
std::tuple<Tensor&, Tensor&> fractional_out(const Tensor& self, IntArrayRef kernel, IntArrayRef output_size,
                                            const Tensor& samples, Tensor& out, Tensor& indices) {
  check_types(self, samples);
  OutOp<Meta, 2> op({out, indices});
  op.meta(self, kernel, output_size, samples);
  check_samples(self, samples, Axes);
  const Tensor &y = op.result(0), &places = op.result(1);
  if (y.numel()) run(self.contiguous(), samples.contiguous(), y, places, kernel, Axes);
  op.finish();
  return {out, indices};
}

void add_by_places(const Tensor& grad_output, const Tensor& indices, const Tensor& grad_input, int64_t axes) {
  TORCH_CHECK(indices.scalar_type() == at::kLong, "expected scalar type Long but found ",
              indices.scalar_type());
  TORCH_CHECK(indices.sizes() == grad_output.sizes(),
              "fractional_max_pool: expected indices of the gradient's sizes ", grad_output.sizes(),
              ", but got ", indices.sizes());
  grad_input.zero_();
  if (grad_output.numel())
    grad_input.flatten(-axes).scatter_add_(-1, indices.flatten(-axes), grad_output.flatten(-axes));
}

Tensor& fractional2d_backward(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel,
                              IntArrayRef output_size, const Tensor& indices, Tensor& grad_input) {
  OutOp<at::meta::structured_fractional_max_pool2d_backward> op(grad_input);
  op.meta(grad_output, self, kernel, output_size, indices);
  add_by_places(grad_output, indices, op.result(), 2);
  op.finish();
  return grad_input;
}

Tensor fractional3d_backward(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel,
                             IntArrayRef output_size, const Tensor& indices) {
  TORCH_CHECK(self.dim() == 4 || self.dim() == 5,
              "fractional_max_pool3d_backward: expected a 4D or 5D input, got ", self.sizes());
  at::DimVector expected(self.sizes());
  TORCH_CHECK(output_size.size() == 3, "fractional_max_pool3d_backward: output_size must have 3 numbers");
  std::copy(output_size.begin(), output_size.end(), expected.end() - 3);
  TORCH_CHECK(grad_output.sizes() == IntArrayRef(expected),
              "fractional_max_pool3d_backward: expected a gradient of sizes ", IntArrayRef(expected),
              ", got ", grad_output.sizes());
  Tensor grad_input = at::empty(self.sizes(), self.options());
  add_by_places(grad_output, indices, grad_input, 3);
  return grad_input;
}
Tensor& fractional3d_backward_out(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel,
                                  IntArrayRef output_size, const Tensor& indices, Tensor& grad_input) {
  check_out(grad_input, self.options());
  const Tensor result = fractional3d_backward(grad_output, self, kernel, output_size, indices);
  at::native::resize_output(grad_input, self.sizes());
  return grad_input.copy_(result);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::meta;
  m.impl("fractional_max_pool2d.output", fractional_out<structured_fractional_max_pool2d, 2>);
  m.impl("fractional_max_pool3d.output", fractional_out<structured_fractional_max_pool3d, 3>);
  m.impl("fractional_max_pool2d_backward.grad_input", fractional2d_backward);
  m.impl("fractional_max_pool3d_backward", fractional3d_backward);
  m.impl("fractional_max_pool3d_backward.grad_input", fractional3d_backward_out);
}

}  // namespace dlb
