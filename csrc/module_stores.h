// Python bindings of the stores on disk and of packs, for command-line tools and tests.
#pragma once
#include <pybind11/pybind11.h>

void bind_stores(pybind11::module_& m);
