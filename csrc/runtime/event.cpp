// Events over OpenCL markers.
#include "runtime/event.h"

#include <c10/util/Exception.h>

#include "runtime/graph.h"

namespace dlb {

Event::~Event() {
  if (marker_ && !cl::in_bad_fork()) cl::api().clReleaseEvent(marker_);
}

std::shared_ptr<Event> Event::record_new(Stream& stream) {
  auto event = std::make_shared<Event>(false);
  event->record(stream);
  return event;
}

void Event::record(Stream& stream) {
  if (Graph* const graph = stream.graph()) [[unlikely]] {
    capture_ = graph->capture_id();
    stream_ = &stream;
    return;
  }
  capture_ = 0;
  if (timing_) stream.enable_profiling();
  const cl::Command command(stream.use());
  cl_event marker = nullptr;
  DLB_CL(clEnqueueMarkerWithWaitList, command.queue(), 0, nullptr, &marker);
  DLB_CL(clFlush, command.queue());  // another queue or query() may look at it from now on
  if (marker_) cl::api().clReleaseEvent(marker_);
  marker_ = marker;
  stream_ = &stream;
}

void Event::block(Stream& stream) const {
  if (capture_) [[unlikely]]
    return Graph::join(capture_, stream);
  if (!marker_ || stream_ == &stream) return;
  if (stream.graph()) [[unlikely]]
    return stream_->check_wait(cl::api().clWaitForEvents(1, &marker_), "clWaitForEvents");
  if (&stream.device() != &stream_->device())
    return synchronize();  // devices have contexts of their own, and events cannot cross contexts
  const cl::Command command(stream.use());
  DLB_CL(clEnqueueBarrierWithWaitList, command.queue(), 1, &marker_, nullptr);
}

void Event::refuse_captured() const {
  TORCH_CHECK(
      !capture_,
      "operation not permitted on an event last recorded in a capturing stream: a graph's events only "
      "order streams within its capture. Record the event outside, behind replay().");
}

bool Event::query() const {
  refuse_captured();
  if (!marker_) return true;
  cl_int status = CL_QUEUED;
  DLB_CL(clGetEventInfo, marker_, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr);
  return status <= CL_COMPLETE;
}

void Event::synchronize() const {
  refuse_captured();
  if (!marker_) return;
  stream_->check_wait(cl::api().clWaitForEvents(1, &marker_), "clWaitForEvents");
  stream_->raise_device_error();
}

uint64_t Event::timestamp() const {
  cl_ulong ns = 0;
  DLB_CL(clGetEventProfilingInfo, marker_, CL_PROFILING_COMMAND_END, sizeof ns, &ns, nullptr);
  return ns;
}

double Event::elapsed_ms(const Event& end) const {
  TORCH_CHECK(timing_ && end.timing_,
              "Both events must be created with enable_timing=True to measure elapsed time.");
  refuse_captured(), end.refuse_captured();
  TORCH_CHECK(marker_ && end.marker_, "Both events must be recorded before calculating elapsed time.");
  synchronize();
  end.synchronize();
  return (static_cast<double>(end.timestamp()) - static_cast<double>(timestamp())) * 1e-6;
}

}  // namespace dlb
