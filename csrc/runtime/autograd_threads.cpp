#include "runtime/autograd_threads.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>

#include <future>
#include <thread>

#include "cl/log.h"
#include "runtime/stream.h"

namespace dlb {
namespace {

std::atomic<bool> g_started{false};

// A device's thread takes one task after another. Once it runs this pass, it has dropped all before. The pass
// itself holds nothing of Python's, because the thread that calls this was not made by Python.
void run_empty_pass(c10::DeviceIndex device) {
  const at::Tensor x = at::empty({0}, at::device({kDeviceType, device})).requires_grad_();
  const at::Tensor y = x.view({0, 1});
  torch::autograd::grad({y}, {x}, {y.detach()});
}

}  // namespace

void note_autograd_thread() noexcept {
  g_started.store(true, std::memory_order_relaxed);
}

void wait_for_autograd_threads(std::chrono::milliseconds limit) noexcept {
  if (!g_started.load(std::memory_order_relaxed) || cl::in_bad_fork()) return;
  try {
    std::packaged_task<void()> passes([devices = used_devices()] {
      for (const c10::DeviceIndex device : devices) run_empty_pass(device);
    });
    std::future<void> done = passes.get_future();
    std::thread(std::move(passes)).detach();
    if (done.wait_for(limit) == std::future_status::ready) done.get();
  } catch (const std::exception& error) {
    cl::log(1, std::string("waiting for autograd's threads at exit: ") + error.what());
  }
}

}  // namespace dlb
