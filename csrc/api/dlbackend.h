// Public C++ API: a libtorch program calls dlb::init() once, and then has the device "ocl". Streams, memory
// statistics and waiting are libtorch's own (<ATen/DeviceAccelerator.h>); kernels from expressions are in
// template.h.
#pragma once

namespace dlb {

// Names PyTorch's PrivateUse1 slot "ocl" and takes it, so that torch::Device("ocl:0") exists and tensors can
// be made there. Opens no driver: the first use of a device does. Registers what must be done before the
// process ends, as `import dlbackend` does in Python. Safe to call from any thread and more than once. Throws
// c10::Error when another extension holds the slot.
void init();

// Ends background work and finishes what was enqueued. Runs by itself at exit, when PyTorch's autograd
// engine, which is made after init(), has already waited for its threads.
void shutdown();

}  // namespace dlb
