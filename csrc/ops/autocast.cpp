// torch.autocast("ocl"): which ops run in the lower precision, which in float32, which in their widest
// input's dtype. The lists are PyTorch's own, the same as for CUDA.
#undef TORCH_ASSERT_ONLY_METHOD_OPERATORS  // PyTorch's autocast header includes all operators
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace dlb {
namespace {

at::Tensor refuse_binary_cross_entropy(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                       int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: probabilities "
      "from float16 lose what the loss needs. Use torch.nn.functional.binary_cross_entropy_with_logits or "
      "torch.nn.BCEWithLogitsLoss on the values before the sigmoid.");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

#define DLB_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define DLB_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define DLB_FP32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define DLB_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using namespace at;  // PyTorch's signature macros name its types bare
  AT_FORALL_LOWER_PRECISION_FP(DLB_LOWER)
  AT_FORALL_FP32(DLB_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(DLB_FP32_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(DLB_PROMOTE)
  // Recurrent networks are cast as a whole. PyTorch casts each of their products.
  DLB_LOWER(lstm, input)
  DLB_LOWER(lstm, data)
  DLB_LOWER(gru, input)
  DLB_LOWER(gru, data)
  DLB_LOWER(rnn_tanh, input)
  DLB_LOWER(rnn_tanh, data)
  DLB_LOWER(rnn_relu, input)
  DLB_LOWER(rnn_relu, data)
  m.impl("binary_cross_entropy", refuse_binary_cross_entropy);
}

}  // namespace dlb
