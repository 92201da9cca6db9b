// Ops that are one copy: channel_shuffle and narrow_copy.
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace dlb {
namespace {

using at::Tensor;

Tensor channel_shuffle(const Tensor& self, int64_t groups) {
  TORCH_CHECK(self.dim() > 2, "channel_shuffle expects input with > 2 dims, but got input with sizes ",
              self.sizes());
  const int64_t channels = self.size(1);
  TORCH_CHECK(groups > 0,
              "Number of groups to divide channels in must be positive. Value of groups:", groups);
  TORCH_CHECK(channels % groups == 0, "Number of channels must be divisible by groups. Got ", channels,
              " channels and ", groups, " groups.");
  Tensor out = at::empty(self.sizes(), self.options().memory_format(self.suggest_memory_format()));
  if (out.numel() == 0) return out;
  // Views on both sides: neither has to be contiguous.
  const auto parts = [&](const Tensor& t, int64_t first, int64_t second) {
    at::DimVector sizes(t.sizes()), strides(t.strides());
    sizes[1] = second, sizes.insert(sizes.begin() + 1, first);
    strides.insert(strides.begin() + 1, strides[1] * second);
    return t.as_strided(sizes, strides);
  };
  parts(out, channels / groups, groups).copy_(parts(self, groups, channels / groups).transpose(1, 2));
  return out;
}

Tensor& narrow_copy_out(const Tensor& self, int64_t dim, int64_t start, int64_t length, Tensor& out) {
  TORCH_CHECK(self.dim() > 0, "narrow() cannot be applied to a 0-dim tensor.");
  TORCH_CHECK(self.scalar_type() == out.scalar_type(), "Expected out tensor to have dtype ",
              self.scalar_type(), ", but got ", out.scalar_type(), " instead");
  const Tensor part = self.narrow(dim, start, length);
  at::native::resize_output(out, part.sizes());
  return out.copy_(part);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("channel_shuffle", channel_shuffle);
  m.impl("narrow_copy.out", narrow_copy_out);
}

}  // namespace dlb
