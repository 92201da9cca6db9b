// The fused forms of attention and of a whole layer that nn.MultiheadAttention and nn.TransformerEncoderLayer
// call in eval mode, for padded and for nested batches.
//
// The steps around matrix products are few launches here; the products and the softmax are the device's own.
#include <ATen/NestedTensorImpl.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <ATen/ops/_addmm_activation.h>
#include <ATen/ops/_native_multi_head_attention.h>
#include <ATen/ops/_native_multi_head_attention_native.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/library.h>

namespace dlb {
namespace {

using at::Tensor;
using at::native::get_nested_tensor_impl;
using OptionalTensor = std::optional<Tensor>;

// The kinds of mask, as nn.MultiheadAttention counts them: one for all of a batch, one of a batch's keys, or
// whole.
enum class MaskType : int64_t { kSource = 0, kPadding = 1, kWhole = 2 };

// A mask that broadcasts with scores of shape [batch, heads, queries, keys].
Tensor broadcast_mask(const Tensor& mask, const Tensor& scores, std::optional<int64_t> mask_type) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "Mask should be a boolean tensor");
  TORCH_CHECK(mask_type.has_value(), "Mask Type should be defined");
  TORCH_CHECK(*mask_type >= 0 && *mask_type <= 2,
              "Mask Type should be 0 (src_mask), 1 (src_key_padding_mask), or 2 (default_mask)");
  const MaskType type{*mask_type};
  if (type == MaskType::kWhole) {
    TORCH_CHECK(mask.sizes() == scores.sizes(), "For mask_type == 2 mask shape should match input shape");
    return mask;
  }
  const bool padding = type == MaskType::kPadding;
  TORCH_CHECK(scores.dim() == 4 && mask.dim() == 2 && mask.size(1) == scores.size(3) &&
                  mask.size(0) == scores.size(padding ? 0 : 2),
              "For mask_type == ", *mask_type, " the mask should be ",
              padding ? "[batch, keys]" : "[queries, keys]", " of the input, but their shapes are ",
              mask.sizes(), " and ", scores.sizes());
  return padding ? mask.view({mask.size(0), 1, 1, mask.size(1)}) : mask;
}

// Where the mask is true the result is 0, in a row that is masked altogether NaN, as on the CPU.
Tensor masked_softmax(const Tensor& self, const Tensor& mask, std::optional<int64_t> dim,
                      std::optional<int64_t> mask_type) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(self.scalar_type()),
                              "\"masked_softmax\" not implemented for '", c10::toString(self.scalar_type()),
                              "'");
  const Tensor lowest =
      self.masked_fill(broadcast_mask(mask, self, mask_type), -std::numeric_limits<double>::infinity());
  return at::_softmax(lowest, dim.value_or(self.dim() - 1), false);
}

Tensor masked_softmax_backward(const Tensor& grad, const Tensor& output, const Tensor& mask,
                               std::optional<int64_t> dim) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "Mask should be a boolean tensor");
  TORCH_CHECK(grad.sizes() == mask.sizes(), "Mask shape should match grad shape");
  const Tensor unmasked = output.masked_fill(mask, 0);  // it is NaN in rows that are masked altogether
  return at::_softmax_backward_data(grad, unmasked, dim.value_or(output.dim() - 1), output.scalar_type());
}

// qkv [batch, length, 3 * embed] to queries, keys and values [batch, heads, length, embed / heads], the bias
// added, the queries scaled. Nested batches are padded.
std::tuple<Tensor, Tensor, Tensor> transform_bias_rescale_qkv(const Tensor& qkv, const Tensor& bias,
                                                              int64_t heads) {
  const Tensor padded = (qkv.is_nested() ? qkv.to_padded_tensor(0) : qkv).contiguous();
  const int64_t batch = padded.size(0), length = padded.size(1), width = padded.size(2);
  TORCH_CHECK(width % 3 == 0 && width / 3 % heads == 0, "the last size of qkv, ", width,
              ", should be three times a multiple of num_heads, ", heads);
  const int64_t size = width / 3 / heads;
  Tensor all = at::empty({3, batch, heads, length, size}, padded.options());
  Tensor as_given = all.permute({1, 3, 0, 2, 4});
  at::add_out(as_given, padded.view({batch, length, 3, heads, size}),
              bias.contiguous().view({3, heads, size}));
  Tensor queries = all.select(0, 0);
  queries.mul_(1 / std::sqrt(static_cast<double>(size)));
  return {queries, all.select(0, 1), all.select(0, 2)};
}

// The fused attention of a batch with itself, without a mask: no matrix of scores. Undefined where it does
// not apply, or where the arguments are such that PyTorch's own implementation complains.
Tensor self_attention(const Tensor& x, int64_t embed, int64_t heads, const Tensor& qkv_weight,
                      const Tensor& qkv_bias) {
  if (x.is_nested() || x.dim() != 3 || x.size(2) != embed || heads <= 0 || embed % heads != 0 ||
      x.numel() == 0 || qkv_weight.dim() != 2 || qkv_weight.size(0) != 3 * embed ||
      qkv_weight.size(1) != embed || qkv_bias.dim() != 1 || qkv_bias.size(0) != 3 * embed)
    return {};
  const int64_t batch = x.size(0), length = x.size(1);
  const Tensor all = at::linear(x, qkv_weight, qkv_bias)
                         .view({batch, length, 3, heads, embed / heads})
                         .permute({2, 0, 3, 1, 4});
  const Tensor attended =
      at::scaled_dot_product_attention(all.select(0, 0), all.select(0, 1), all.select(0, 2));
  return attended.transpose(1, 2).reshape({batch, length, embed});
}

// A masked batch takes PyTorch's steps, whose rows that are masked altogether are NaN.
std::tuple<Tensor, Tensor> multi_head_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                                int64_t embed, int64_t heads, const Tensor& qkv_weight,
                                                const Tensor& qkv_bias, const Tensor& proj_weight,
                                                const Tensor& proj_bias, const OptionalTensor& mask,
                                                bool need_weights, bool average,
                                                std::optional<int64_t> mask_type) {
  if (query.is_same(key) && query.is_same(value) && !need_weights && !(mask && mask->defined())) {
    const Tensor attended = self_attention(query, embed, heads, qkv_weight, qkv_bias);
    if (attended.defined()) return {at::linear(attended, proj_weight, proj_bias), Tensor()};
  }
  return at::native::native_multi_head_attention_cpu(query, key, value, embed, heads, qkv_weight, qkv_bias,
                                                     proj_weight, proj_bias, mask, need_weights, average,
                                                     mask_type);
}

struct Norm {
  const Tensor &weight, &bias;
  double eps;

  // Normalises the rows of a buffer; padded and nested batches both are such rows.
  Tensor operator()(const Tensor& rows) const {
    return std::get<0>(at::native_layer_norm(rows, {rows.size(1)}, weight, bias, eps));
  }
};

struct FeedForward {
  const Tensor &weight1, &bias1, &weight2, &bias2;
  bool use_gelu;

  Tensor operator()(const Tensor& rows) const {
    const Tensor hidden = at::_addmm_activation(bias1, rows, weight1.t(), 1, 1, use_gelu);
    return at::addmm(bias2, hidden, weight2.t());
  }
};

// A batch as rows of the embedding, whether it is padded or nested, and back.
Tensor rows_of(const Tensor& batch, int64_t embed) {
  return (batch.is_nested() ? get_nested_tensor_impl(batch)->get_buffer() : batch.contiguous())
      .view({-1, embed});
}

Tensor like(const Tensor& batch, const Tensor& rows) {
  if (!batch.is_nested()) return rows.view(batch.sizes());
  return at::native::wrap_buffer(rows.view({-1}), get_nested_tensor_impl(batch)->get_nested_sizes());
}

Tensor encoder_layer(const Tensor& src, int64_t embed, int64_t heads, const Tensor& qkv_weight,
                     const Tensor& qkv_bias, const Tensor& proj_weight, const Tensor& proj_bias,
                     bool use_gelu, bool norm_first, double eps, const Tensor& norm_weight1,
                     const Tensor& norm_bias1, const Tensor& norm_weight2, const Tensor& norm_bias2,
                     const Tensor& weight1, const Tensor& bias1, const Tensor& weight2, const Tensor& bias2,
                     const OptionalTensor& mask, std::optional<int64_t> mask_type) {
  const Norm norm1{norm_weight1, norm_bias1, eps}, norm2{norm_weight2, norm_bias2, eps};
  const FeedForward feed_forward{weight1, bias1, weight2, bias2, use_gelu};
  if (src.is_nested())
    TORCH_CHECK(at::native::nested_tensor_impl_is_contiguous(get_nested_tensor_impl(src)),
                "_transformer_encoder_layer_fwd: nested tensors must be contiguous");
  const Tensor x = rows_of(src, embed);
  if (x.numel() == 0) return src.clone();
  const auto attention = [&](const Tensor& rows) {
    const Tensor batch = like(src, rows);
    return rows_of(std::get<0>(at::_native_multi_head_attention(batch, batch, batch, embed, heads, qkv_weight,
                                                                qkv_bias, proj_weight, proj_bias, mask,
                                                                /*need_weights=*/false, true, mask_type)),
                   embed);
  };
  if (norm_first) {
    const Tensor attended = attention(norm1(x)).add_(x);
    return like(src, feed_forward(norm2(attended)).add_(attended));
  }
  const Tensor attended = norm1(attention(x).add_(x));
  return like(src, norm2(feed_forward(attended).add_(attended)));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_masked_softmax", masked_softmax);
  m.impl("_masked_softmax_backward", masked_softmax_backward);
  m.impl("_transform_bias_rescale_qkv", transform_bias_rescale_qkv);
  m.impl("_native_multi_head_attention", multi_head_attention);
  m.impl("_transformer_encoder_layer_fwd", encoder_layer);
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_transform_bias_rescale_qkv", transform_bias_rescale_qkv);
  m.impl("_native_multi_head_attention", multi_head_attention);
  m.impl("_transformer_encoder_layer_fwd", encoder_layer);
}

}  // namespace dlb
