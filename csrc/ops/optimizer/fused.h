// Code that fused optimizer steps share: checks of their lists and the operands that all of them have.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "ops/foreach/foreach.h"

namespace dlb {

// The learning rate, as a number or a tensor of one element on the device or the CPU.
struct LearningRate {
  double number = 0;
  const at::Tensor* tensor = nullptr;
  void add_to(MultiTensor& call) const {
    if (tensor)
      call.single_or_value(*tensor);
    else
      call.value(number);
  }
};

// Gradient scaling as GradScaler asks for it: gradients are divided by grad_scale (and stored so), and
// nothing is done when found_inf is not 0.
struct Scaling {
  const std::optional<at::Tensor>& grad_scale;
  const std::optional<at::Tensor>& found_inf;
  bool stores_gradients() const { return grad_scale.has_value(); }
  void add_to(MultiTensor& call) const {
    grad_scale ? call.single_or_value(*grad_scale) : call.value(1.0);
    found_inf ? call.single_or_value(*found_inf) : call.value(0.0);
  }
};

// Whether tensor i of a list is as dense as its parameter, on the device of the first, of the list's dtype.
bool fits_fused(TensorList params, TensorList list, size_t i);

// Raises unless the lists agree in length, sizes, dense layout and device, each list in one dtype, and the
// parameters are floating. Empty lists are allowed where an optimizer does not need them.
void check_fused_lists(const char* op, at::ArrayRef<TensorList> lists);

// Gradients in the layout of their parameters: `grads` itself, or copies in `storage` where some differ.
TensorList aligned_gradients(TensorList params, TensorList grads, Tensors& storage);

}  // namespace dlb
