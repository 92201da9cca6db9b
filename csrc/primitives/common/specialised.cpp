// Fetches the kernels that belong to one problem.
#include "primitives/common/specialised.h"

#include "cl/program_table.h"
#include "solver/stats.h"

namespace dlb::solver {

std::shared_ptr<cl::Kernel> shared_kernel(cl::Kernel& kernel) {
  return {&kernel, [](cl::Kernel*) {}};
}

std::shared_ptr<cl::Kernel> specialised_kernel(cl::Device& device, const std::string& source,
                                               const std::string& options, const char* name) {
  auto kernel = cl::get_own_kernel(device, source, options, name);
  find_stats().specialised++;
  return kernel;
}

}  // namespace dlb::solver
