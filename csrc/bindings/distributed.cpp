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
  using namespace dlb::distributed;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  m.def("host_identity", &host_identity);
  py::class_<Segment, std::shared_ptr<Segment>>(m, "Segment")
      .def(py::init<int>(), py::arg("ranks"))
      .def(py::init<const std::string&, int>(), py::arg("address"), py::arg("index"))
      .def_property_readonly("address", &Segment::address);
  m.def(
      "make_oclgloo",
      [](BackendPtr gloo, std::shared_ptr<Segment> segment, std::vector<std::vector<int>> hosts,
         BackendPtr between) {
        c10::intrusive_ptr<SharedMemory> shared;
        if (segment)
          shared = c10::make_intrusive<SharedMemory>(gloo, std::move(segment), std::move(hosts),
                                                     std::move(between));
        return make_backend(std::move(gloo), std::move(shared));
      },
      py::arg("gloo"), py::arg("segment"), py::arg("hosts"), py::arg("between"),
      py::call_guard<py::gil_scoped_release>());
#endif
}

void stop_distributed(std::chrono::milliseconds limit) noexcept {
#ifdef DLB_DISTRIBUTED
  dlb::distributed::stop_all(limit);
#endif
}
