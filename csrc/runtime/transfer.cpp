// Transfers over clEnqueueRead/Write/CopyBuffer, staged through page-locked memory where that avoids a wait.
#include "runtime/transfer.h"

#include <cstring>

#include "runtime/host_allocator.h"

namespace dlb {
namespace {

// A blocking write of pageable memory waits for everything before it in the queue. One more memcpy is cheaper
// up to here; above, the staging memory itself would be a burden.
constexpr size_t kStagingLimit = 64ull << 20;

}  // namespace

void copy_to_device(MemRef to, const void* source, size_t bytes, Stream& stream, bool non_blocking) {
  if (bytes == 0) return;
  if (non_blocking && is_pinned(source)) {
    DLB_CL(clEnqueueWriteBuffer, stream.handle(), to.mem, CL_FALSE, to.offset, bytes, source, 0, nullptr,
           nullptr);
    return;
  }
  if (bytes > kStagingLimit) {
    stream.check_wait(cl::api().clEnqueueWriteBuffer(stream.handle(), to.mem, CL_TRUE, to.offset, bytes,
                                                     source, 0, nullptr, nullptr),
                      "clEnqueueWriteBuffer");
    return;
  }
  c10::DataPtr staging = host_allocator()->allocate(bytes);
  std::memcpy(staging.get(), source, bytes);
  DLB_CL(clEnqueueWriteBuffer, stream.handle(), to.mem, CL_FALSE, to.offset, bytes, staging.get(), 0, nullptr,
         nullptr);
  host_allocator()->record_event(staging.get(), staging.get_context(), stream.unwrap());
}

void copy_to_host(void* destination, MemRef from, size_t bytes, Stream& stream, bool non_blocking) {
  if (bytes == 0) return;
  TORCH_CHECK(!cl::Recording::current(),
              "what happens next depends on data, and none is computed while recording");
  const bool asynchronous = non_blocking && is_pinned(destination);
  const cl_int status =
      cl::api().clEnqueueReadBuffer(stream.handle(), from.mem, asynchronous ? CL_FALSE : CL_TRUE, from.offset,
                                    bytes, destination, 0, nullptr, nullptr);
  if (asynchronous) return cl::check(status, "clEnqueueReadBuffer");
  stream.check_wait(status, "clEnqueueReadBuffer");
  stream.raise_device_error();
}

void copy_between_devices(MemRef to, Stream& to_stream, MemRef from, Stream& from_stream, size_t bytes) {
  if (bytes == 0) return;
  c10::DataPtr staging = host_allocator()->allocate(bytes);
  copy_to_host(staging.get(), from, bytes, from_stream, false);
  DLB_CL(clEnqueueWriteBuffer, to_stream.handle(), to.mem, CL_FALSE, to.offset, bytes, staging.get(), 0,
         nullptr, nullptr);
  host_allocator()->record_event(staging.get(), staging.get_context(), to_stream.unwrap());
}

void fill_device(MemRef to, const void* pattern, size_t pattern_bytes, size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  DLB_CL(clEnqueueFillBuffer, stream.handle(), to.mem, pattern, pattern_bytes, to.offset, bytes, 0, nullptr,
         nullptr);
}

}  // namespace dlb
