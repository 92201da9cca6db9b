// Python bindings: one function for each subject of dlbackend._C.
#pragma once
#include <pybind11/pybind11.h>

#include <chrono>

#include "runtime/stream.h"

// Devices, streams, memory and generators.
void bind_runtime(pybind11::module_& m);

// Graphs that are captured and replayed.
void bind_graphs(pybind11::module_& m);

// Kernels from a user's source.
void bind_kernels(pybind11::module_& m);

// The table of op rows: op_table() and device_functions().
void bind_ops(pybind11::module_& m);

// Statistics of kernels and searches, and everything about problems and solvers.
void bind_solvers(pybind11::module_& m);

// Stores on disk, packs, and the programs in them; for command-line tools and tests.
void bind_stores(pybind11::module_& m);

// make_oclgloo(), where torch has distributed.
void bind_distributed(pybind11::module_& m);

// Ends the threads of process groups, at exit; waits for pending collectives, but not longer than that.
void stop_distributed(std::chrono::milliseconds limit) noexcept;

// The device of that index; below 0 stands for the current one.
inline c10::DeviceIndex index_or_current(int index) {
  return index < 0 ? dlb::current_device() : static_cast<c10::DeviceIndex>(index);
}
