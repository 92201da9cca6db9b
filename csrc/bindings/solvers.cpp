// Python bindings of statistics, problems and solvers.
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "cl/statistics.h"
#include "solver/background.h"
#include "solver/budget.h"
#include "solver/choice.h"
#include "solver/find_record.h"
#include "solver/inspect.h"
#include "solver/measure_rates.h"
#include "solver/settings.h"
#include "solver/stats.h"

namespace py = pybind11;

namespace {

py::dict kernel_stats() {
  const auto stats = dlb::cl::kernel_stats();
  py::dict result;
  result["compiled"] = stats.compiled;
  result["loaded"] = stats.loaded;
  result["compiled_elsewhere"] = stats.compiled_elsewhere;
  result["optimised"] = stats.optimised;
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
  result["precedents"] = stats.bucket_choices.load();
  result["searches"] = stats.searches.load();
  result["measured"] = stats.measured.load();
  result["verified"] = stats.verified.load();
  result["rejected"] = stats.rejected.load();
  result["swapped"] = stats.swapped.load();
  result["benchmark_seconds"] = static_cast<double>(stats.benchmark_ns.load()) * 1e-9;
  return result;
}

// The solvers of every op as find records name them: "op:name@revision".
std::vector<std::string> solver_revisions() {
  std::vector<std::string> names;
  for (const auto* op : dlb::solver::ops())
    for (const auto* solver : op->solvers())
      names.push_back(std::string(op->name()) + ":" + dlb::solver::revision_name(*solver));
  return names;
}

// The rates by name, and whether they were measured.
py::dict rates_dict(const dlb::solver::DeviceRates& rates) {
  py::dict result;
  for (const auto& field : dlb::solver::kRateFields) result[field.name] = rates.*field.rate;
  result["measured"] = rates.measured;
  return result;
}

py::dict measure_rates(int index) {
  const auto measured = [&] {
    const py::gil_scoped_release no_gil;
    return dlb::solver::measure_rates(dlb::device_of(static_cast<c10::DeviceIndex>(index)));
  };
  return rates_dict(measured());
}

}  // namespace

void bind_solvers(py::module_& m) {
  m.def("kernel_stats", &kernel_stats);
  namespace solver = dlb::solver;
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def("find_stats", &find_stats);
  m.def(
      "set_search_allowance",
      [](double burst, double worth, double marking, double lasting, uint32_t lasting_runs) {
        solver::set_allowance(solver::Allowance{burst, worth, marking, lasting, lasting_runs});
      },
      py::arg("burst_us"), py::arg("worth_us"), py::arg("marking_us"), py::arg("lasting_us"),
      py::arg("lasting_runs"), "What searches may cost, for tests: see solver/budget.h.");
  m.def(
      "reset_search_allowance", [] { solver::set_allowance(std::nullopt); },
      "Gives each device class its own allowance back.");
  m.def("force_solver", &solver::force);
  m.def("solver_names", &solver::solver_names);
  m.def("solver_revisions", &solver_revisions);
  m.def("explain_problem", &solver::explain, py::arg("key"), py::arg("device") = 0, no_gil);
  m.def("solutions", &solver::solutions, py::arg("key"), py::arg("device") = 0, no_gil);
  m.def("tune_problem", &solver::tune, py::arg("key"), py::arg("device") = 0, py::arg("exhaustive") = true,
        no_gil);
  m.def(
      "device_rates",
      [](int device) {
        return rates_dict(solver::rates_of(dlb::device_of(static_cast<c10::DeviceIndex>(device))));
      },
      py::arg("device") = 0);
  m.def("measure_rates", &measure_rates, py::arg("device") = 0);
  m.def(
      "parse_rates",
      [](const std::string& text) {
        const auto rates = solver::DeviceRates::parse(text);
        return rates ? py::object(rates_dict(*rates)) : py::none();
      },
      "The rates of a stored line, or None for one that cannot be used; for tests.");
  m.def(
      "rates_key",
      [](int device) { return solver::rates_key(dlb::device_of(static_cast<c10::DeviceIndex>(device))); },
      py::arg("device") = 0);
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
}
