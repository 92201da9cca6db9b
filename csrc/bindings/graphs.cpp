// Python bindings of graphs.
#include <torch/csrc/utils/pybind.h>

#include <fstream>
#include <memory>

#include "bindings/bindings.h"
#include "runtime/graph.h"
#include "runtime/graph_outputs.h"

namespace py = pybind11;

void bind_graphs(py::module_& m) {
  using dlb::Graph;
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<Graph, std::shared_ptr<Graph>>(m, "_OclGraph")
      .def(py::init<>())
      .def("capture_begin", &Graph::begin, py::arg("pool"), released)
      .def("capture_end", &Graph::end, released)
      .def("replay", &Graph::replay, released)
      .def("reset", &Graph::reset, released)
      .def("pool", &Graph::pool)
      .def("has_capture", &Graph::has_capture)
      .def("captures", &Graph::captures)
      .def("register_generator_state", &Graph::register_generator, py::arg("generator"))
      .def("describe", &Graph::describe);
  py::class_<dlb::GraphOutputs>(m, "GraphOutputs")
      .def(py::init<const std::vector<at::Tensor>&>(), py::arg("captured"))
      .def("renew", &dlb::GraphOutputs::renew, released);
  m.def("graph_pool_handle", [] { return dlb::new_pool_id(false); });
  m.def("is_current_stream_capturing", [] { return dlb::current_stream().graph() != nullptr; });
}
