// PyTorch's hooks for the accelerator slot.
#pragma once

namespace dlb {

// Takes the accelerator slot: from then on torch.accelerator is ocl. Idempotent. Not done at library load,
// because PyTorch then prefers ocl over CUDA, whose backward passes stop working.
void register_hooks();

}  // namespace dlb
