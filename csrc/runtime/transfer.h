// Byte transfers between host and device and between devices, ordered by a stream.
#pragma once
#include "runtime/allocator.h"
#include "runtime/stream.h"

namespace dlb {

// Copies from host to device. The source may be reused when this returns, unless it is page-locked and the
// copy `non_blocking`: then the caller keeps it alive and unchanged until the stream has done the copy (by
// recording it with host_allocator()). Pageable sources of usual sizes are staged, so that the call does not
// wait for earlier work. While the stream is captured, refuses what is not page-locked and `non_blocking`; so
// does copy_to_host().
void copy_to_device(MemRef destination, const void* source, size_t bytes, Stream& stream, bool non_blocking);

// Copies from device to host. Waits for the data and raises what kernels reported, unless the destination is
// page-locked and the copy `non_blocking`.
void copy_to_host(void* destination, MemRef source, size_t bytes, Stream& stream, bool non_blocking);

// Writes from the host here and now, also while the stream is captured, and waits: for memory whose contents
// never change.
void write_beside_graph(MemRef destination, const void* source, size_t bytes, Stream& stream);

// Copies between two devices, through host memory. Waits for the source.
void copy_between_devices(MemRef destination, Stream& to, MemRef source, Stream& from, size_t bytes);

}  // namespace dlb
