// torch.autocast("ocl") of torchvision's ops: they compute in float32, as torchvision has it for CUDA, and
// give results in the input's dtype.
#undef TORCH_ASSERT_ONLY_METHOD_OPERATORS  // PyTorch's autocast header includes all operators
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace dlb::vision {
namespace {

using at::Tensor;

Tensor cast(const Tensor& t) {
  return at::autocast::cached_cast(at::kFloat, t, at::DeviceType::PrivateUse1);
}
template <class Other>
Other cast(Other other) requires(!std::is_same_v<Other, Tensor>) {
  return other;
}

Tensor back(const Tensor& result, at::ScalarType type) {
  return result.to(type);
}
std::tuple<Tensor, Tensor> back(const std::tuple<Tensor, Tensor>& result, at::ScalarType type) {
  return {std::get<0>(result).to(type), std::get<1>(result)};
}

// An op of these arguments behind its first.
template <const char* const& Name, bool CastsBack, class Result, class... Args>
Result in_float(const Tensor& first, Args... args) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(Name, "").typed<Result(const Tensor&, Args...)>();
  if constexpr (CastsBack)
    return back(op.call(cast(first), cast(args)...), first.scalar_type());
  else
    return op.call(cast(first), cast(args)...);
}

constexpr const char* kNms = "torchvision::nms";
constexpr const char* kRoiAlign = "torchvision::roi_align";
constexpr const char* kRoiPool = "torchvision::roi_pool";
constexpr const char* kPsRoiAlign = "torchvision::ps_roi_align";
constexpr const char* kPsRoiPool = "torchvision::ps_roi_pool";
constexpr const char* kDeform = "torchvision::deform_conv2d";

using T = const Tensor&;
using Two = std::tuple<Tensor, Tensor>;

}  // namespace

TORCH_LIBRARY_IMPL(torchvision, AutocastPrivateUse1, m) {
  using I = int64_t;
  m.impl("nms", in_float<kNms, false, Tensor, T, double>);
  m.impl("roi_align", in_float<kRoiAlign, true, Tensor, T, double, I, I, I, bool>);
  m.impl("roi_pool", in_float<kRoiPool, true, Two, T, double, I, I>);
  m.impl("ps_roi_align", in_float<kPsRoiAlign, true, Two, T, double, I, I, I>);
  m.impl("ps_roi_pool", in_float<kPsRoiPool, true, Two, T, double, I, I>);
  m.impl("deform_conv2d", in_float<kDeform, true, Tensor, T, T, T, T, I, I, I, I, I, I, I, I, bool>);
}

}  // namespace dlb::vision
