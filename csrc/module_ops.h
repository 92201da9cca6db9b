// Python bindings of the table of ops.
#pragma once
#include <pybind11/pybind11.h>

// Adds op_table() and device_functions().
void bind_ops(pybind11::module_& m);
