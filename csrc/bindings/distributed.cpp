// Python bindings of the process group backend; without functions where torch was built without distributed.
#undef TORCH_ASSERT_ONLY_METHOD_OPERATORS  // c10d's headers take in all of ATen
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#ifdef DLB_DISTRIBUTED
#include "distributed/backend.h"
#include "distributed/threads.h"
#endif

namespace py = pybind11;

void bind_distributed(py::module_& m) {
#ifdef DLB_DISTRIBUTED
  m.def("make_oclgloo", &dlb::distributed::make_backend, py::arg("gloo"),
        py::call_guard<py::gil_scoped_release>());
#endif
}

void stop_distributed(std::chrono::milliseconds limit) noexcept {
#ifdef DLB_DISTRIBUTED
  dlb::distributed::stop_all(limit);
#endif
}
