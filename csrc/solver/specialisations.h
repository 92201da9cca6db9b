// Whether kernels compiled for single problems have been faster on a device, by solver. The find store
// remembers it, since each costs a compilation.
#pragma once
#include <optional>
#include <string>

#include "cl/device.h"

namespace dlb::solver {

// Whether another kernel of the solver ("name@revision") may be compiled for one problem; then
// end_specialisation() must follow.
bool begin_specialisation(const cl::Device& device, const std::string& solver);
// Whether it was faster. Nothing where it was not measured to the end, which says nothing about the solver.
void end_specialisation(const cl::Device& device, const std::string& solver, std::optional<bool> won);

}  // namespace dlb::solver
