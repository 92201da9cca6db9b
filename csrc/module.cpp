// Python bindings: dlbackend._C. Loading it registers kernels and allocators but opens no driver.
#include <torch/csrc/utils/pybind.h>

#include "cl/device.h"
#include "cl/driver_cache.h"
#include "cl/log.h"
#include "cl/paths.h"
#include "cl/program.h"
#include "module_ops.h"
#include "module_stores.h"
#include "ops/fallback.h"
#include "runtime/allocator.h"
#include "runtime/generator.h"
#include "runtime/hooks.h"
#include "runtime/host_allocator.h"
#include "runtime/stream.h"
#include "solver/find.h"

namespace py = pybind11;

namespace {

c10::DeviceIndex index_or_current(int index) {
  return index < 0 ? dlb::current_device() : static_cast<c10::DeviceIndex>(index);
}

const char* type_name(const dlb::cl::Device& device) {
  if (device.type & CL_DEVICE_TYPE_GPU) return "gpu";
  return device.type & CL_DEVICE_TYPE_CPU ? "cpu" : "accelerator";
}

py::dict memory_stats(int index) {
  using c10::CachingAllocator::StatArray;
  const auto stats = dlb::allocator()->getDeviceStats(index_or_current(index));
  py::dict result;
  auto add = [&](const char* name, const StatArray& array) {
    static constexpr const char* kPools[] = {"all", "small_pool", "large_pool"};
    for (size_t pool = 0; pool < 3; ++pool) {
      const std::string key = std::string(name) + "." + kPools[pool];
      result[(key + ".current").c_str()] = array[pool].current;
      result[(key + ".peak").c_str()] = array[pool].peak;
      result[(key + ".allocated").c_str()] = array[pool].allocated;
      result[(key + ".freed").c_str()] = array[pool].freed;
    }
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
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  result["num_device_alloc"] = stats.num_device_alloc;
  result["num_device_free"] = stats.num_device_free;
  return result;
}

py::dict kernel_stats() {
  const auto stats = dlb::cl::kernel_stats();
  py::dict result;
  result["compiled"] = stats.compiled;
  result["loaded"] = stats.loaded;
  result["compiled_elsewhere"] = stats.compiled_elsewhere;
  result["loaded_from_pack"] = stats.loaded_from_pack;
  result["compile_seconds"] = stats.compile_seconds;
  result["launches"] = stats.launches;
  result["specialised"] = dlb::solver::find_stats().specialised.load();
  result["evicted"] = stats.evicted + dlb::solver::evicted_choices();
  return result;
}

py::dict find_stats() {
  const auto& stats = dlb::solver::find_stats();
  py::dict result;
  result["hits"] = stats.hits.load();
  result["misses"] = stats.misses.load();
  result["precedents"] = stats.precedents.load();
  result["searches"] = stats.searches.load();
  result["measured"] = stats.measured.load();
  result["verified"] = stats.verified.load();
  result["rejected"] = stats.rejected.load();
  result["swapped"] = stats.swapped.load();
  result["benchmark_seconds"] = static_cast<double>(stats.benchmark_ns.load()) * 1e-9;
  return result;
}

void shutdown() {
  dlb::solver::stop_background();
  dlb::finish_all_queues();
  dlb::cl::record_driver_folders();
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
  m.def("shutdown", &shutdown, py::call_guard<py::gil_scoped_release>());
  m.def("is_in_bad_fork", &dlb::cl::in_bad_fork);
  m.def("opencl_library", &dlb::cl::library_name);
  m.def("cache_dir", &dlb::cl::cache_dir);
  bind_ops(m);
  bind_stores(m);

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
      .def_readonly("total_memory", &dlb::cl::Device::global_mem)
      .def_readonly("max_alloc", &dlb::cl::Device::max_alloc)
      .def_readonly("local_mem", &dlb::cl::Device::local_mem)
      .def_readonly("compute_units", &dlb::cl::Device::compute_units)
      .def_readonly("has_fp64", &dlb::cl::Device::fp64)
      .def_readonly("has_fp16", &dlb::cl::Device::fp16)
      .def_property_readonly(
          "has_tensor_cores",
          [](const dlb::cl::Device& device) { return device.tensor_cores != dlb::cl::TensorCores::kNone; })
      .def_readonly("max_work_group_size", &dlb::cl::Device::max_work_group);
  m.def(
      "device_properties", [](int i) { return &dlb::device_of(index_or_current(i)); },
      py::return_value_policy::reference);

  m.def("memory_stats", &memory_stats);
  m.def("reset_peak_memory_stats", [](int i) { dlb::allocator()->resetPeakStats(index_or_current(i)); });
  m.def("reset_accumulated_memory_stats",
        [](int i) { dlb::allocator()->resetAccumulatedStats(index_or_current(i)); });
  m.def(
      "empty_cache", [] { dlb::allocator()->emptyCache(); }, py::call_guard<py::gil_scoped_release>());
  m.def("mem_get_info", [](int i) { return dlb::allocator()->getMemoryInfo(index_or_current(i)); });
  m.def("limit_memory", [](int i, double fraction) { dlb::limit_memory(index_or_current(i), fraction); });
  m.def("default_generator", [](int i) { return dlb::default_generator(static_cast<c10::DeviceIndex>(i)); });

  m.def("fallback_report", &dlb::fallback_report);
  m.def("reset_fallback_report", &dlb::reset_fallback_report);
  m.def("kernel_stats", &kernel_stats);
  namespace solver = dlb::solver;
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def("find_stats", &find_stats);
  m.def("force_solver", &solver::force);
  m.def("solver_names", &solver::solver_names);
  m.def("explain_problem", &solver::explain, py::arg("key"), py::arg("device") = 0, no_gil);
  m.def("solutions", &solver::solutions, py::arg("key"), py::arg("device") = 0, no_gil);
  m.def("tune_problem", &solver::tune, py::arg("key"), py::arg("device") = 0, py::arg("exhaustive") = true,
        no_gil);
  m.def("find_record", &solver::find_record, py::arg("key"), py::arg("device") = 0);
  m.def("store_find_record", &solver::store_find_record, py::arg("key"), py::arg("text"),
        py::arg("device") = 0);
  m.def("find_place", &solver::find_place, py::arg("device") = 0);
  m.def("load_find_record", &solver::load_find_record, py::arg("place"), py::arg("key"), py::arg("text"));
  m.def("drop_find_records", &solver::drop_find_records);
  m.def("solved_problems", &solver::solved_problems);
  m.def("wait_for_background", &solver::wait_for_background, no_gil);
  m.def("find_mode", &solver::find_mode_name);
  m.def("set_find_mode", &solver::set_find_mode);
  m.def("find_share", &solver::find_share);
  m.def("set_find_share", &solver::set_find_share);
  m.def("fp32_precision", &solver::fp32_precision);
  m.def("set_fp32_precision", &solver::set_fp32_precision);
  m.def("exchange_thread_fp32_precision", &solver::exchange_thread_fp32_precision);
  m.def("set_prefer_reusable", &solver::set_prefer_reusable, py::arg("everywhere"), py::arg("ops") = "");
  m.def("exchange_thread_prefers_reusable", &solver::exchange_thread_prefers_reusable);
  m.def("deterministic", &solver::deterministic);
  m.def("set_deterministic", &solver::set_deterministic);
  m.def("verbosity", &dlb::cl::verbosity);
  m.def("set_verbosity", &dlb::cl::set_verbosity);
}
