// Python bindings of the stores on disk and of packs. Keys and payloads are bytes; a read gives what is wrong
// with an entry as text, empty for a sound one.
#include "bindings/bindings.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cl/build.h"
#include "cl/program_table.h"
#include "cl/recording.h"
#include "cl/stores/disk_cache.h"
#include "cl/stores/driver_cache.h"
#include "cl/stores/pack.h"
#include "cl/stores/portable_program.h"
#include "cl/stores/stored_program.h"

namespace py = pybind11;

namespace {

using dlb::cl::DiskCache;
using dlb::cl::Fault;
using dlb::cl::Pack;
using dlb::cl::PackWriter;
using dlb::cl::Record;
using dlb::cl::StoreKind;

constexpr const char* kKinds[] = {"", "program", "find"};

StoreKind kind_of(const std::string& name) {
  if (name == kKinds[1]) return StoreKind::kProgram;
  if (name == kKinds[2]) return StoreKind::kFind;
  throw py::value_error("a store's kind is program or find, not " + name);
}

const char* name_of(StoreKind kind) {
  const auto number = static_cast<uint32_t>(kind);
  return number < std::size(kKinds) ? kKinds[number] : "";
}

// (fault, kind, key, payload)
py::tuple read_result(Fault fault, const Record& record) {
  if (fault != Fault::kNone) return py::make_tuple(dlb::cl::describe(fault), "", py::bytes(), py::bytes());
  return py::make_tuple("", name_of(record.kind), py::bytes(record.key), py::bytes(record.payload));
}

py::object load(DiskCache& cache, const std::string& key) {
  std::optional<std::string> payload;
  {
    py::gil_scoped_release release;
    payload = cache.load(key);
  }
  return payload ? py::object(py::bytes(*payload)) : py::none();
}

py::list files(const DiskCache& cache) {
  py::list result;
  for (const auto& file : cache.files())
    result.append(py::make_tuple(file.name, file.bytes, static_cast<double>(file.used) * 1e-9));
  return result;
}

py::list items(Pack& pack) {
  py::list result;
  for (const auto& item : pack.items()) result.append(py::make_tuple(name_of(item.kind), item.bytes));
  return result;
}

void bind_disk_cache(py::module_& m) {
  py::class_<DiskCache>(m, "DiskCache")
      .def(py::init([](const std::string& kind, const std::string& folder, uint64_t bytes, uint64_t entries,
                       bool over_packs) {
             return new DiskCache(kind_of(kind), folder, {bytes, entries},
                                  over_packs ? &dlb::cl::system_packs : nullptr);
           }),
           py::arg("kind"), py::arg("folder"), py::arg("max_bytes"), py::arg("max_entries"),
           py::arg("over_packs") = false)
      .def_property_readonly("kind", [](const DiskCache& cache) { return name_of(cache.kind()); })
      .def_property_readonly("folder", &DiskCache::folder)
      .def_property_readonly("max_bytes", [](const DiskCache& cache) { return cache.limits().bytes; })
      .def_property_readonly("max_entries", [](const DiskCache& cache) { return cache.limits().entries; })
      .def("load", &load)
      .def("store", &DiskCache::store, py::call_guard<py::gil_scoped_release>())
      .def("prune", &DiskCache::prune, py::call_guard<py::gil_scoped_release>())
      .def("files", &files)
      .def("read",
           [](const DiskCache& cache, const std::string& name) -> py::object {
             Record record;
             const Fault fault = cache.read(name, record);
             return fault == Fault::kMissing ? py::object(py::none()) : read_result(fault, record);
           })
      .def("remove", &DiskCache::remove);
  m.def("program_cache", &dlb::cl::program_disk_cache, py::return_value_policy::reference);
  m.def("find_cache", &dlb::cl::find_disk_cache, py::return_value_policy::reference);
}

void bind_driver_cache(py::module_& m) {
  using dlb::cl::OwnDriverCache;
  py::class_<OwnDriverCache>(m, "DriverCache")
      .def_property_readonly("kind", [](const OwnDriverCache&) { return "driver"; })
      .def_property_readonly("folder", &OwnDriverCache::root)
      .def_property_readonly("max_bytes", &OwnDriverCache::max_bytes)
      .def("files",
           [](const OwnDriverCache& cache) {
             py::list result;
             for (const auto& folder : cache.folders())
               result.append(
                   py::make_tuple(folder.name, folder.bytes, static_cast<double>(folder.used) * 1e-9));
             return result;
           })
      .def("read",
           [](const OwnDriverCache& cache, const std::string& name) {
             return py::make_tuple(cache.fault(name), "", py::bytes(), py::bytes());
           })
      .def("remove", &OwnDriverCache::remove)
      .def("prune", &OwnDriverCache::prune, py::call_guard<py::gil_scoped_release>());
  m.def("driver_cache", &dlb::cl::own_driver_programs, py::return_value_policy::reference);
}

// A thread that builds calls `progress` with the number of programs done. No more are built when it returns
// false or raises.
size_t prefetch(int device, const std::vector<std::pair<std::string, std::string>>& programs,
                unsigned threads, const std::function<bool(size_t)>& progress) {
  std::vector<dlb::cl::ProgramSource> sources;
  for (const auto& [source, options] : programs) sources.push_back({source, options});
  std::exception_ptr error;
  py::gil_scoped_release release;
  const size_t ready = dlb::cl::prefetch(dlb::cl::device(device), sources, threads, [&](size_t done) {
    if (!progress) return true;
    py::gil_scoped_acquire acquire;
    try {
      return progress(done);
    } catch (...) {
      if (!error) error = std::current_exception();
      return false;
    }
  });
  if (error) std::rethrow_exception(error);
  return ready;
}

// The calling thread's recording, from begin_recording() to end_recording().
thread_local std::unique_ptr<dlb::cl::Recording> t_recording;

void begin_recording() {
  t_recording = std::make_unique<dlb::cl::Recording>();
}
std::vector<std::pair<std::string, std::string>> end_recording() {
  std::vector<std::pair<std::string, std::string>> programs;
  if (t_recording)
    for (const auto& [source, options] : t_recording->programs()) programs.emplace_back(source, options);
  t_recording.reset();
  return programs;
}

void bind_programs(py::module_& m) {
  m.def("begin_recording", &begin_recording);
  m.def("end_recording", &end_recording);
  m.def("prefetch", &prefetch, py::arg("device"), py::arg("programs"), py::arg("threads") = 0,
        py::arg("progress") = nullptr);
  m.def("complete_binary", [](int device, const std::string& key) {
    py::gil_scoped_release release;
    const std::string binary = dlb::cl::complete_binary(dlb::cl::device(device), key);
    py::gil_scoped_acquire acquire;
    return py::bytes(binary);
  });
  m.def("portable_program", [](int device, const std::string& key, const std::string& binary) -> py::object {
    const auto program = dlb::cl::portable_program(dlb::cl::device(device), key, binary);
    if (!program) return py::none();
    return py::make_tuple(py::bytes(program->key), py::bytes(program->payload));
  });
  m.def("is_note", [](const std::string& stored) { return dlb::cl::is_note(stored); });
}

void bind_packs(py::module_& m) {
  py::class_<Pack>(m, "Pack")
      .def(py::init<std::string>(), py::arg("path"))
      .def_property_readonly("path", &Pack::path)
      .def("items", &items)
      .def("faults", &Pack::faults)
      .def("read", [](Pack& pack, size_t index) {
        if (index >= pack.items().size()) throw py::index_error("no such entry in " + pack.path());
        Record record;
        const Fault fault = pack.read(pack.items()[index], record);
        return read_result(fault, record);
      });
  py::class_<PackWriter>(m, "PackWriter")
      .def(py::init<std::string>(), py::arg("path"))
      .def("add",
           [](PackWriter& writer, const std::string& kind, std::string key, std::string payload) {
             writer.add({kind_of(kind), std::move(key), std::move(payload)});
           })
      .def("finish", &PackWriter::finish)
      .def("discard", &PackWriter::discard);
  m.def("system_packs", [] {
    py::list result;
    for (const auto& pack : dlb::cl::system_packs())
      result.append(py::cast(pack.get(), py::return_value_policy::reference));
    return result;
  });
}

}  // namespace

void bind_stores(py::module_& m) {
  bind_disk_cache(m);
  bind_driver_cache(m);
  bind_packs(m);
  bind_programs(m);
}
