// torch.profiler and torch.autograd.profiler for the device: times of kernels and transfers.
#pragma once

namespace dlb {

// Makes the device known to PyTorch's profilers. To be called once.
void register_profiler();

}  // namespace dlb
