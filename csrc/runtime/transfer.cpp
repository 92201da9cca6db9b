// Transfers over clEnqueueRead/Write/CopyBuffer, staged through page-locked memory where that avoids a wait.
#include "runtime/transfer.h"

#include <cstring>

#include "cl/recording.h"
#include "runtime/host_allocator.h"

namespace dlb {
namespace {

// A blocking write of pageable memory waits for everything before it in the queue. Up to this size one more
// memcpy is cheaper; above it the staging memory would be too much.
constexpr size_t kStagingLimit = 64ull << 20;

// Returns the status of the driver's call, which waits when `blocking`.
cl_int write(MemRef to, const void* source, size_t bytes, Stream& stream, bool blocking) {
  cl::Command command(stream.use(), cl::CommandKind::kWrite, "Memcpy HtoD", bytes);
  return cl::api().clEnqueueWriteBuffer(command.queue(), to.mem, blocking ? CL_TRUE : CL_FALSE, to.offset,
                                        bytes, source, 0, nullptr, command.event());
}

void write_later(MemRef to, const void* source, size_t bytes, Stream& stream) {
  cl::check(write(to, source, bytes, stream, false), "clEnqueueWriteBuffer");
}

cl_int read(void* destination, MemRef from, size_t bytes, Stream& stream, bool blocking) {
  cl::Command command(stream.use(), cl::CommandKind::kRead, "Memcpy DtoH", bytes);
  return cl::api().clEnqueueReadBuffer(command.queue(), from.mem, blocking ? CL_TRUE : CL_FALSE, from.offset,
                                       bytes, destination, 0, nullptr, command.event());
}

}  // namespace

void copy_to_device(MemRef to, const void* source, size_t bytes, Stream& stream, bool non_blocking) {
  if (bytes == 0) return;
  if (non_blocking && is_pinned(source)) return write_later(to, source, bytes, stream);
  if (bytes > kStagingLimit)
    return stream.check_wait(write(to, source, bytes, stream, true), "clEnqueueWriteBuffer");
  c10::DataPtr staging = host_allocator()->allocate(bytes);
  std::memcpy(staging.get(), source, bytes);
  write_later(to, staging.get(), bytes, stream);
  host_allocator()->record_event(staging.get(), staging.get_context(), stream.unwrap());
}

void copy_to_host(void* destination, MemRef from, size_t bytes, Stream& stream, bool non_blocking) {
  if (bytes == 0) return;
  TORCH_CHECK(!cl::Recording::current(),
              "what happens next depends on data, and none is computed while recording");
  const bool asynchronous = non_blocking && is_pinned(destination);
  const cl_int status = read(destination, from, bytes, stream, !asynchronous);
  if (asynchronous) return cl::check(status, "clEnqueueReadBuffer");
  stream.check_wait(status, "clEnqueueReadBuffer");
  stream.raise_device_error();
}

void copy_between_devices(MemRef to, Stream& to_stream, MemRef from, Stream& from_stream, size_t bytes) {
  if (bytes == 0) return;
  c10::DataPtr staging = host_allocator()->allocate(bytes);
  copy_to_host(staging.get(), from, bytes, from_stream, false);
  write_later(to, staging.get(), bytes, to_stream);
  host_allocator()->record_event(staging.get(), staging.get_context(), to_stream.unwrap());
}

void fill_device(MemRef to, const void* pattern, size_t pattern_bytes, size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  cl::Command command(stream.use(), cl::CommandKind::kFill, "Memset", bytes);
  DLB_CL(clEnqueueFillBuffer, command.queue(), to.mem, pattern, pattern_bytes, to.offset, bytes, 0, nullptr,
         command.event());
}

}  // namespace dlb
