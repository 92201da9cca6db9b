// Transfers over clEnqueueRead/Write/CopyBuffer, staged through page-locked memory where that avoids a wait.
#include "runtime/transfer.h"

#include <cstring>

#include "cl/recording.h"
#include "runtime/graph.h"
#include "runtime/host_allocator.h"

namespace dlb {
namespace {

// A blocking write of pageable memory waits for everything before it in the queue. Up to this size one more
// memcpy is cheaper; above it the staging memory would be too much.
constexpr size_t kStagingLimit = 64ull << 20;

// Up to this size one more memcpy is cheaper than to wait once more.
constexpr size_t kReadAndWait = 64 << 10;

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

// NVIDIA's driver holds a lock while a blocking transfer waits for the commands before it, and no other
// thread of the process can launch meanwhile. It holds none in clFinish (benchmarks/probes/driver_lock.cpp).
void wait_without_lock(Stream& stream) {
  if (!stream.device().host_memory) stream.synchronize();
}

// Reads to page-locked memory, which needs no blocking read.
void read_and_wait(void* pinned, MemRef from, size_t bytes, Stream& stream) {
  cl::check(read(pinned, from, bytes, stream, false), "clEnqueueReadBuffer");
  stream.synchronize();
}

}  // namespace

void copy_to_device(MemRef to, const void* source, size_t bytes, Stream& stream, bool non_blocking) {
  if (bytes == 0) return;
  if (Graph* const graph = stream.graph()) [[unlikely]] {
    if (!non_blocking || !is_pinned(source))
      graph->refuse(
          "a copy from memory of the host that is pageable or shall be waited for, such as torch.tensor(..., "
          "device=\"ocl\")");
    return graph->tape().add_write(source, to.mem, to.offset, bytes);
  }
  if (non_blocking && is_pinned(source)) return write_later(to, source, bytes, stream);
  if (bytes > kStagingLimit) {
    wait_without_lock(stream);
    return stream.check_wait(write(to, source, bytes, stream, true), "clEnqueueWriteBuffer");
  }
  c10::DataPtr staging = host_allocator()->allocate(bytes);
  std::memcpy(staging.get(), source, bytes);
  write_later(to, staging.get(), bytes, stream);
  host_allocator()->record_event(staging.get(), staging.get_context(), stream.unwrap());
}

void copy_to_host(void* destination, MemRef from, size_t bytes, Stream& stream, bool non_blocking) {
  if (bytes == 0) return;
  TORCH_CHECK(!cl::Recording::current(),
              "what happens next depends on data, and none is computed while recording");
  if (Graph* const graph = stream.graph()) [[unlikely]] {
    if (!non_blocking || !is_pinned(destination))
      graph->refuse("a read by the host, such as .item(), .cpu() or a condition on a tensor");
    return graph->tape().add_read(from.mem, from.offset, destination, bytes);
  }
  const bool host_memory = stream.device().host_memory;
  const bool pinned = (non_blocking || !host_memory) && is_pinned(destination);
  if (non_blocking && pinned)
    return cl::check(read(destination, from, bytes, stream, false), "clEnqueueReadBuffer");
  if (!host_memory && pinned) return read_and_wait(destination, from, bytes, stream);
  if (!host_memory && bytes <= kReadAndWait) {
    const c10::DataPtr staging = host_allocator()->allocate(bytes);
    read_and_wait(staging.get(), from, bytes, stream);
    std::memcpy(destination, staging.get(), bytes);
    return;
  }
  wait_without_lock(stream);
  stream.check_wait(read(destination, from, bytes, stream, true), "clEnqueueReadBuffer");
  stream.raise_device_error();
}

void write_beside_graph(MemRef to, const void* source, size_t bytes, Stream& stream) {
  stream.check_wait(cl::api().clEnqueueWriteBuffer(stream.handle_now(), to.mem, CL_TRUE, to.offset, bytes,
                                                   source, 0, nullptr, nullptr),
                    "clEnqueueWriteBuffer");
}

void copy_between_devices(MemRef to, Stream& to_stream, MemRef from, Stream& from_stream, size_t bytes) {
  if (bytes == 0) return;
  c10::DataPtr staging = host_allocator()->allocate(bytes);
  copy_to_host(staging.get(), from, bytes, from_stream, false);
  write_later(to, staging.get(), bytes, to_stream);
  host_allocator()->record_event(staging.get(), staging.get_context(), to_stream.unwrap());
}

}  // namespace dlb
