// Launches of the kernels behind a pass.
#include "primitives/norm/finish.h"

namespace dlb::norm {
namespace {

// `last`: the kernel's last argument, which says how the work is divided.
template <class Last>
void launch(const Context& context, const FinishKernel& kernel, params::NormFinish params,
            const cl::Range& range, const Last& last, std::initializer_list<FinishBuffer> buffers) {
  cl::Kernel& found =
      fetch_kernel(context.device, kernel.file, kernel.name, context.compute, {context.data, context.param});
  found.launch_with(context.stream.queue(), range, [&](auto& arguments) {
    for (const FinishBuffer& each : buffers) {
      const Buffer buffer = optional_buffer(each.tensor);
      params.*each.offset = buffer.offset;
      arguments.add(buffer.mem);
    }
    arguments.add(params);
    arguments.add(last);
  });
}

}  // namespace

params::NormFinish finish_of(const Partial& partial, int64_t rows, int64_t count) {
  params::NormFinish p{};
  p.rows = static_cast<uint32_t>(rows), p.count = static_cast<uint32_t>(count);
  p.splits = partial.splits, p.per_split = partial.per_split;
  return p;
}

void launch_finish(const Context& context, const FinishKernel& kernel, params::NormFinish params,
                   const Team& team, std::initializer_list<FinishBuffer> buffers) {
  launch(context, kernel, params, range_of(context.device, team), team, buffers);
}

void launch_finish(const Context& context, const FinishKernel& kernel, params::NormFinish params,
                   const params::NormTiles& tiles, std::initializer_list<FinishBuffer> buffers) {
  const size_t chunks = (tiles.items + tiles.per_group - 1) / tiles.per_group;
  launch(context, kernel, params, cl::Range::linear(chunks * tiles.blocks, kTeamGroup), tiles, buffers);
}

}  // namespace dlb::norm
