// Python bindings: dlbackend._C. Loading it registers kernels and allocators but opens no driver.
#include <torch/csrc/utils/pybind.h>

#include "api/dlbackend.h"
#include "bindings/bindings.h"
#include "cl/device.h"
#include "cl/log.h"
#include "cl/stores/paths.h"
#include "ops/fallback.h"
#include "runtime/autograd_threads.h"
#include "runtime/hooks.h"
#include "runtime/stream.h"

namespace py = pybind11;

namespace {

constexpr std::chrono::seconds kAutogradLimit{10};  // as long as PyTorch itself waits for these threads

// Collectives that no peer has joined until then are left behind: a process must end.
constexpr std::chrono::seconds kCollectivesLimit{5};

// At Python's exit the engine's threads still run, and need the interpreter.
void shut_down() {
  stop_distributed(kCollectivesLimit);
  dlb::wait_for_autograd_threads(kAutogradLimit);
  dlb::shutdown();
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.def(
      "torch_minor", [] { return DLB_TORCH_MINOR; }, "The torch minor version this library was built for.");
  m.def("set_python_prefix", &dlb::cl::set_python_prefix,
        "Tells where a pip-installed OpenCL driver may lie.");
  m.def("set_package_dir", &dlb::cl::set_package_dir, "Tells where the package's packs lie.");
  m.def("register_hooks", &dlb::register_hooks, "Takes PyTorch's accelerator slot. Idempotent.");
  m.def("why_no_device", [] {
    try {
      dlb::cl::device(0);
    } catch (const dlb::cl::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  });
  m.def("shutdown", &shut_down, py::call_guard<py::gil_scoped_release>());
  m.def("is_in_bad_fork", &dlb::cl::in_bad_fork);
  m.def("opencl_library", &dlb::cl::library_name);
  m.def("cache_dir", &dlb::cl::cache_dir);
  m.def("fallback_report", &dlb::fallback_report);
  m.def("reset_fallback_report", &dlb::reset_fallback_report);
  m.def("verbosity", &dlb::cl::verbosity);
  m.def("set_verbosity", &dlb::cl::set_verbosity);
  bind_runtime(m);
  bind_graphs(m);
  bind_kernels(m);
  bind_solvers(m);
  bind_ops(m);
  bind_stores(m);
  bind_distributed(m);
}
