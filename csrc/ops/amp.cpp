// Gradient scaling of automatic mixed precision: what GradScaler calls.
#include "ops/foreach/foreach.h"

namespace dlb {
namespace {

using codegen::PointwiseOp;

// Inputs x0 gradient, x1 inverse scale, x2 found_inf, in memory at b3 (outputs and inputs are numbered
// together). Many work-items may write the same 1 there. An inverse scale of 1 leaves values as they are, as
// CUDA has it.
constexpr PointwiseOp kUnscale{.name = "amp_unscale",
                               .on_float = "bad |= !isfinite(x0); y0 = x1 == 1 ? x0 : x0 * x1;"};
constexpr const char* kUnscaleSetup = "int bad = 0;";
constexpr const char* kUnscaleAfter = "if (bad) *b3 = 1;";

void check_one_float(const at::Tensor& t, const char* name) {
  TORCH_CHECK(t.numel() == 1, name, " must be a 1-element tensor.");
  TORCH_CHECK(t.scalar_type() == at::kFloat, name, " must be a float tensor.");
  TORCH_CHECK(t.device().type() == kDeviceType, name, " must be on ocl, not on ", t.device(), ".");
}

void unscale_part(TensorList part, const at::Tensor& found_inf, const at::Tensor& inv_scale) {
  MultiTensor call(kUnscale, part[0].scalar_type(), kUnscaleSetup, kUnscaleAfter);
  call.output(part).input_in_place(0).single(inv_scale).single(found_inf);
  TORCH_CHECK(call.run(),
              "_amp_foreach_non_finite_check_and_unscale_: gradients overlap each other in memory");
}

void unscale_(TensorList grads, at::Tensor& found_inf, const at::Tensor& inv_scale) {
  if (grads.empty()) return;
  check_one_float(found_inf, "found_inf");
  check_one_float(inv_scale, "inv_scale");
  const c10::DeviceGuard guard(grads[0].device());
  for (const at::Tensor& g : grads) {
    TORCH_CHECK(g.device() == grads[0].device(), "scaled_grads must be on the same device.");
    TORCH_CHECK(at::isFloatingType(g.scalar_type()), "scaled_grads must be floating, got ", g.scalar_type());
    TORCH_CHECK(g.layout() == c10::kStrided, "one of scaled_grads was not a strided tensor.");
  }
  if (fast_op(&kUnscale, false, {grads})) {
    unscale_part(grads, found_inf, inv_scale);
  } else {
    for (const at::Tensor& g : grads) {
      if (g.is_non_overlapping_and_dense()) {
        unscale_part(g, found_inf, inv_scale);
      } else {
        const at::Tensor dense = g.contiguous();
        unscale_part(dense, found_inf, inv_scale);
        g.copy_(dense);
      }
    }
  }
  bump_versions(grads);
}

// y0 scale, y1 growth tracker; x2 found_inf. The scale never grows to infinity.
constexpr PointwiseOp kUpdateScale{
    .name = "amp_update_scale",
    .on_float =
        "const T successes = x1 + 1, grown = x0 * s0; const int grow = x2 == 0 && successes >= s2; "
        "y0 = x2 != 0 ? x0 * s1 : (grow && isfinite(grown) ? grown : x0); "
        "y1 = x2 != 0 || grow ? 0 : successes;",
    .scalars = 3};

const codegen::RegisterOps kAmpOps(codegen::RowKind::MultiTensor,
                                   {{kUnscale, "_amp_foreach_non_finite_check_and_unscale_", "list",
                                     kUnscaleSetup, kUnscaleAfter},
                                    {kUpdateScale, "_amp_update_scale_", "list"}});

at::Tensor& update_scale_(at::Tensor& scale, at::Tensor& growth_tracker, const at::Tensor& found_inf,
                          double growth_factor, double backoff_factor, int64_t growth_interval) {
  check_one_float(scale, "current_scale");
  check_one_float(found_inf, "found_inf");
  TORCH_CHECK(growth_tracker.numel() == 1, "growth_tracker must be a 1-element tensor.");
  TORCH_CHECK(growth_tracker.scalar_type() == at::kInt, "growth_tracker must be an int tensor.");
  TORCH_CHECK(growth_tracker.device().type() == kDeviceType, "growth_tracker must be on ocl.");
  const c10::DeviceGuard guard(scale.device());
  MultiTensor call(kUpdateScale, at::kFloat);
  call.output(scale).output(growth_tracker).input_in_place(0).input_in_place(1).single(found_inf);
  call.scalar(growth_factor).scalar(backoff_factor).scalar(growth_interval);
  TORCH_CHECK(call.run(), "_amp_update_scale_: scale and growth_tracker overlap in memory");
  return scale;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_amp_foreach_non_finite_check_and_unscale_", unscale_);
  m.impl("_amp_update_scale_", update_scale_);
}

}  // namespace dlb
