// Python bindings of devices, streams, memory and generators.
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "cl/device.h"
#include "runtime/allocator.h"
#include "runtime/generator.h"
#include "runtime/stream.h"

namespace py = pybind11;

namespace {

const char* type_name(const dlb::cl::Device& device) {
  if (device.type & CL_DEVICE_TYPE_GPU) return "gpu";
  return device.type & CL_DEVICE_TYPE_CPU ? "cpu" : "accelerator";
}

py::dict memory_stats(int index) {
  using c10::CachingAllocator::Stat;
  using c10::CachingAllocator::StatArray;
  const auto stats = dlb::allocator()->getDeviceStats(index_or_current(index));
  py::dict result;
  auto add_one = [&](const std::string& key, const Stat& stat) {
    result[(key + ".current").c_str()] = stat.current;
    result[(key + ".peak").c_str()] = stat.peak;
    result[(key + ".allocated").c_str()] = stat.allocated;
    result[(key + ".freed").c_str()] = stat.freed;
  };
  auto add = [&](const char* name, const StatArray& array) {
    static constexpr const char* kPools[] = {"all", "small_pool", "large_pool"};
    for (size_t pool = 0; pool < 3; ++pool) add_one(std::string(name) + "." + kPools[pool], array[pool]);
  };
  add("allocation", stats.allocation);
  add("segment", stats.segment);
  add("active", stats.active);
  add("inactive_split", stats.inactive_split);
  add("allocated_bytes", stats.allocated_bytes);
  add("reserved_bytes", stats.reserved_bytes);
  add("active_bytes", stats.active_bytes);
  add("inactive_split_bytes", stats.inactive_split_bytes);
  add("requested_bytes", stats.requested_bytes);
  add_one("oversize_allocations", stats.oversize_allocations);
  add_one("oversize_segments", stats.oversize_segments);
  result["max_split_size"] = stats.max_split_size;
  result["num_sync_all_streams"] = stats.num_sync_all_streams;
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  result["num_device_alloc"] = stats.num_device_alloc;
  result["num_device_free"] = stats.num_device_free;
  return result;
}

void bind_devices(py::module_& m) {
  m.def("device_count", &dlb::cl::device_count, py::call_guard<py::gil_scoped_release>());
  m.def("current_device", [] { return static_cast<int>(dlb::current_device()); });
  m.def("set_device", [](int i) { dlb::set_current_device(static_cast<c10::DeviceIndex>(i)); });
  m.def("exchange_device", [](int i) {
    const int previous = dlb::current_device();
    if (i >= 0) dlb::set_current_device(static_cast<c10::DeviceIndex>(i));
    return previous;
  });
  m.def(
      "synchronize", [](int i) { dlb::synchronize_device(index_or_current(i)); }, py::arg("device") = -1,
      py::call_guard<py::gil_scoped_release>());
  m.def("stream_is_profiling", [](int i, c10::StreamId stream) {
    return dlb::stream_of(index_or_current(i), stream).is_profiling();
  });
}

void bind_properties(py::module_& m) {
  py::class_<dlb::cl::Device, std::unique_ptr<dlb::cl::Device, py::nodelete>>(m, "_OclDeviceProperties")
      .def_readonly("name", &dlb::cl::Device::name)
      .def_readonly("vendor", &dlb::cl::Device::vendor)
      .def_readonly("platform", &dlb::cl::Device::platform_name)
      .def_readonly("driver_version", &dlb::cl::Device::driver_version)
      .def_readonly("version", &dlb::cl::Device::version)
      .def_readonly("cache_tag", &dlb::cl::Device::cache_tag)
      .def_readonly("vector_floats", &dlb::cl::Device::vector_floats)
      .def_readonly("late_code", &dlb::cl::Device::late_code)
      .def_property_readonly("type", &type_name)
      .def_property_readonly("kernel_class",
                             [](const dlb::cl::Device& device) {
                               return device.cls == dlb::cl::DeviceClass::kCpu ? "cpu" : "gpu";
                             })
      .def_readonly("total_memory", &dlb::cl::Device::global_mem)
      .def_readonly("max_alloc", &dlb::cl::Device::max_alloc)
      .def_readonly("local_mem", &dlb::cl::Device::local_mem)
      .def_readonly("compute_units", &dlb::cl::Device::compute_units)
      .def_property_readonly("has_fp64", [](const dlb::cl::Device& device) { return bool(device.fp64); })
      .def_property_readonly("has_fp16", [](const dlb::cl::Device& device) { return bool(device.fp16); })
      .def_property_readonly(
          "has_tensor_cores",
          [](const dlb::cl::Device& device) { return device.tensor_cores != dlb::cl::TensorCores::kNone; })
      .def_readonly("max_work_group_size", &dlb::cl::Device::max_work_group);
  m.def(
      "device_properties", [](int i) { return &dlb::device_of(index_or_current(i)); },
      py::return_value_policy::reference);
}

void bind_memory(py::module_& m) {
  m.def("memory_stats", &memory_stats);
  m.def("reset_peak_memory_stats", [](int i) { dlb::allocator()->resetPeakStats(index_or_current(i)); });
  m.def("reset_accumulated_memory_stats",
        [](int i) { dlb::allocator()->resetAccumulatedStats(index_or_current(i)); });
  m.def(
      "empty_cache", [] { dlb::allocator()->emptyCache(); }, py::call_guard<py::gil_scoped_release>());
  m.def("mem_get_info", [](int i) { return dlb::allocator()->getMemoryInfo(index_or_current(i)); });
  m.def("limit_memory", [](int i, double fraction) { dlb::limit_memory(index_or_current(i), fraction); });
}

}  // namespace

void bind_runtime(py::module_& m) {
  bind_devices(m);
  bind_properties(m);
  bind_memory(m);
  m.def("default_generator", [](int i) { return dlb::default_generator(static_cast<c10::DeviceIndex>(i)); });
}
