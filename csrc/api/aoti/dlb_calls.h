// The C functions of this library that Inductor's C++ for ocl calls. It also calls PyTorch's own C functions
// for AOTInductor (torch/csrc/inductor/aoti_torch/c/shim.h). Functions return AOTI_TORCH_SUCCESS, or
// AOTI_TORCH_FAILURE with a message in torch_exception_get_what().
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

extern "C" {

struct DlbKernelOpaque;
using DlbKernelHandle = DlbKernelOpaque*;

// An argument of a launch: of a buffer the tensor; of a number its value, or the CPU's tensor of one element
// that has it.
struct DlbArgument {
  AtenTensorHandle tensor;
  int64_t integer;
  double real;
};

// A kernel of OpenCL C, which is built for a device by dlb_aoti_build() or the first launch there. The texts
// must outlive it. `parameters` has a letter for each: r for a buffer, w for one that is written, i or q for
// an int or a long, f or d for a float or a double. A buffer has two arguments in the source, the pointer and
// an offset in bytes (ulong).
AOTI_TORCH_EXPORT AOTITorchError dlb_aoti_new_kernel(const char* name, const char* source,
                                                     const char* parameters, DlbKernelHandle* kernel);
AOTI_TORCH_EXPORT void dlb_aoti_delete_kernel(DlbKernelHandle kernel);

// Builds kernels, or loads them from the program cache, several at a time. Later launches wait for nothing.
AOTI_TORCH_EXPORT AOTITorchError dlb_aoti_build(const DlbKernelHandle* kernels, size_t count, int32_t device);

// Launches so many work-items, `group` of which form a work-group, on the device's current stream. Takes as
// many arguments as the kernel has parameters.
AOTI_TORCH_EXPORT AOTITorchError dlb_aoti_launch(DlbKernelHandle kernel, int32_t device,
                                                 const DlbArgument* arguments, int64_t items, int64_t group);

// Memory on the current device.
AOTI_TORCH_EXPORT AOTITorchError dlb_aoti_allocate(size_t bytes, void** pointer);
AOTI_TORCH_EXPORT AOTITorchError dlb_aoti_free(void* pointer);
// Copies to the device from the host or the device, and waits.
AOTI_TORCH_EXPORT AOTITorchError dlb_aoti_copy(void* to, const void* from, size_t bytes);

AOTI_TORCH_EXPORT AOTITorchError dlb_aoti_set_device(int32_t device);
// Waits for the current stream.
AOTI_TORCH_EXPORT AOTITorchError dlb_aoti_synchronize();

// Ops, with the names and parameters that Inductor gives a device's.
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_ocl_mm_out(AtenTensorHandle out, AtenTensorHandle self,
                                                       AtenTensorHandle mat2);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_ocl__int_mm_out(AtenTensorHandle out, AtenTensorHandle self,
                                                            AtenTensorHandle mat2);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_ocl_bmm_out(AtenTensorHandle out, AtenTensorHandle self,
                                                        AtenTensorHandle mat2);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_ocl_addmm_out(AtenTensorHandle out, AtenTensorHandle self,
                                                          AtenTensorHandle mat1, AtenTensorHandle mat2,
                                                          double beta, double alpha);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_ocl_baddbmm_out(AtenTensorHandle out, AtenTensorHandle self,
                                                            AtenTensorHandle batch1, AtenTensorHandle batch2,
                                                            double beta, double alpha);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_ocl_convolution(
    AtenTensorHandle input, AtenTensorHandle weight, AtenTensorHandle* bias, const int64_t* stride,
    int64_t stride_len, const int64_t* padding, int64_t padding_len, const int64_t* dilation,
    int64_t dilation_len, int32_t transposed, const int64_t* output_padding, int64_t output_padding_len,
    int64_t groups, AtenTensorHandle* ret0);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_ocl_randint_low_out(AtenTensorHandle out, int64_t low,
                                                                int64_t high, const int64_t* size,
                                                                int64_t size_len);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_ocl_scatter_src_out(AtenTensorHandle out, AtenTensorHandle self,
                                                                int64_t dim, AtenTensorHandle index,
                                                                AtenTensorHandle src);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_ocl_scatter_value_out(AtenTensorHandle out, AtenTensorHandle self,
                                                                  int64_t dim, AtenTensorHandle index,
                                                                  double value);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_ocl_scatter_reduce_two_out(
    AtenTensorHandle out, AtenTensorHandle self, int64_t dim, AtenTensorHandle index, AtenTensorHandle src,
    const char* reduce, int32_t include_self);

}  // extern "C"
