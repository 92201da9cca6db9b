// Ops that Inductor's C++ calls directly (aoti/dlb_calls.h). It calls others through PyTorch's proxy
// executor.
#include <ATen/ops/_int_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/scatter_reduce.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

#include "api/aoti/dlb_calls.h"

namespace {

at::Tensor& operand(AtenTensorHandle handle) {
  return *torch::aot_inductor::tensor_handle_to_tensor_pointer(handle);
}

AtenTensorHandle new_handle(at::Tensor tensor) {
  return torch::aot_inductor::tensor_pointer_to_tensor_handle(new at::Tensor(std::move(tensor)));
}

at::IntArrayRef list(const int64_t* values, int64_t count) {
  return {values, static_cast<size_t>(count)};
}

}  // namespace

AOTITorchError aoti_torch_ocl_mm_out(AtenTensorHandle out, AtenTensorHandle self, AtenTensorHandle mat2) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ at::mm_out(operand(out), operand(self), operand(mat2)); });
}

AOTITorchError aoti_torch_ocl__int_mm_out(AtenTensorHandle out, AtenTensorHandle self,
                                          AtenTensorHandle mat2) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      { at::_int_mm_out(operand(out), operand(self), operand(mat2)); });
}

AOTITorchError aoti_torch_ocl_bmm_out(AtenTensorHandle out, AtenTensorHandle self, AtenTensorHandle mat2) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ at::bmm_out(operand(out), operand(self), operand(mat2)); });
}

AOTITorchError aoti_torch_ocl_addmm_out(AtenTensorHandle out, AtenTensorHandle self, AtenTensorHandle mat1,
                                        AtenTensorHandle mat2, double beta, double alpha) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      { at::addmm_out(operand(out), operand(self), operand(mat1), operand(mat2), beta, alpha); });
}

AOTITorchError aoti_torch_ocl_baddbmm_out(AtenTensorHandle out, AtenTensorHandle self,
                                          AtenTensorHandle batch1, AtenTensorHandle batch2, double beta,
                                          double alpha) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      { at::baddbmm_out(operand(out), operand(self), operand(batch1), operand(batch2), beta, alpha); });
}

AOTITorchError aoti_torch_ocl_convolution(AtenTensorHandle input, AtenTensorHandle weight,
                                          AtenTensorHandle* bias, const int64_t* stride, int64_t stride_len,
                                          const int64_t* padding, int64_t padding_len,
                                          const int64_t* dilation, int64_t dilation_len, int32_t transposed,
                                          const int64_t* output_padding, int64_t output_padding_len,
                                          int64_t groups, AtenTensorHandle* ret0) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    const std::optional<at::Tensor> added = bias ? std::optional(operand(*bias)) : std::nullopt;
    *ret0 = new_handle(at::convolution(operand(input), operand(weight), added, list(stride, stride_len),
                                       list(padding, padding_len), list(dilation, dilation_len),
                                       transposed != 0, list(output_padding, output_padding_len), groups));
  });
}

AOTITorchError aoti_torch_ocl_randint_low_out(AtenTensorHandle out, int64_t low, int64_t high,
                                              const int64_t* size, int64_t size_len) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      { at::randint_out(operand(out), low, high, list(size, size_len)); });
}

AOTITorchError aoti_torch_ocl_scatter_src_out(AtenTensorHandle out, AtenTensorHandle self, int64_t dim,
                                              AtenTensorHandle index, AtenTensorHandle src) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      { at::scatter_out(operand(out), operand(self), dim, operand(index), operand(src)); });
}

AOTITorchError aoti_torch_ocl_scatter_value_out(AtenTensorHandle out, AtenTensorHandle self, int64_t dim,
                                                AtenTensorHandle index, double value) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      { at::scatter_out(operand(out), operand(self), dim, operand(index), value); });
}

AOTITorchError aoti_torch_ocl_scatter_reduce_two_out(AtenTensorHandle out, AtenTensorHandle self, int64_t dim,
                                                     AtenTensorHandle index, AtenTensorHandle src,
                                                     const char* reduce, int32_t include_self) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    at::scatter_reduce_out(operand(out), operand(self), dim, operand(index), operand(src), reduce,
                           include_self != 0);
  });
}
