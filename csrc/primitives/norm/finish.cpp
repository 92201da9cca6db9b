// Launches of the kernels behind a pass.
#include "primitives/norm/finish.h"

namespace dlb::norm {

params::NormFinish finish_of(const Partial& partial, int64_t rows, int64_t count) {
  params::NormFinish p{};
  p.rows = static_cast<uint32_t>(rows), p.count = static_cast<uint32_t>(count);
  p.splits = partial.splits, p.per_split = partial.per_split;
  return p;
}

void launch_finish(const Context& context, const FinishKernel& kernel, params::NormFinish params,
                   const Team& team, std::initializer_list<FinishBuffer> buffers) {
  cl::Kernel& found =
      fetch_kernel(context.device, kernel.file, kernel.name, context.compute, {context.data, context.param});
  found.launch_with(context.stream.queue(), range_of(context.device, team), [&](auto& arguments) {
    for (const FinishBuffer& each : buffers) {
      const Buffer buffer = optional_buffer(each.tensor);
      params.*each.offset = buffer.offset;
      arguments.add(buffer.mem);
    }
    arguments.add(params);
    arguments.add(team);
  });
}

}  // namespace dlb::norm
