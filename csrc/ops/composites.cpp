// Ops whose only kernel in PyTorch is registered for all devices, yet reads its tensors as the CPU's memory.
#include <torch/library.h>

#include <algorithm>

#include "ops/fallback.h"

namespace dlb {
namespace {

constexpr const char* kOnTheCpu[] = {
    "_nnpack_spatial_convolution", "_rowwise_prune",           "_saturate_weight_to_fp16",
    "_sobol_engine_draw",          "_sobol_engine_ff_",        "_sobol_engine_initialize_state_",
    "_sobol_engine_scramble_",     "choose_qparams_optimized", "mkldnn_convolution",
};

// Their tensors hold pointers to packed weights, which no copy keeps alive.
constexpr const char* kOfTheCpuAlone[] = {
    "fbgemm_linear_fp16_weight",
    "fbgemm_linear_fp16_weight.out",
    "fbgemm_linear_fp16_weight_fp32_activation",
    "fbgemm_linear_fp16_weight_fp32_activation.out",
    "fbgemm_linear_int8_weight",
    "fbgemm_linear_int8_weight_fp32_activation",
    "fbgemm_linear_quantize_weight",
    "fbgemm_pack_gemm_matrix_fp16",
    "fbgemm_pack_quantized_matrix",
    "fbgemm_pack_quantized_matrix.KN",
};

void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, c10::toString(op.operator_name()),
                              " packs weights for kernels of the CPU alone: call it with tensors on the CPU");
}

// Ops that PyTorch makes of others for any device, except that the host reads one argument, sizes.
constexpr const char* kReadSizes[] = {
    "_pack_padded_sequence_backward",
    "_pad_packed_sequence",
    "_reshape_from_tensor",
};

void with_sizes_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto sizes = std::find_if(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return argument.name() == "batch_sizes" || argument.name() == "shape";
  });
  auto& value = *(stack->end() - (arguments.end() - sizes));
  value = value.toTensor().cpu();
  op.redispatchBoxed(c10::DispatchKeySet(), stack);  // where a composite kernel is found for no key at all
}

void register_sizes(torch::Library& m) {
  for (const char* name : kReadSizes)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&with_sizes_on_host>());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : kOnTheCpu) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>());
  for (const char* name : kOfTheCpuAlone) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  register_sizes(m);
}

// A kernel for the device alone would hide the composite one from autograd.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  register_sizes(m);
}

}  // namespace dlb
