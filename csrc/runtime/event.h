// Events: markers in a stream that can be waited for, by the host or by other streams, and timed.
#pragma once
#include <memory>

#include "runtime/stream.h"

namespace dlb {

class Event {
 public:
  explicit Event(bool timing) : timing_(timing) {}
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Records an event without timing after what is in the stream now.
  static std::shared_ptr<Event> record_new(Stream& stream);

  // Marks this point of the stream; an earlier mark is forgotten. In a capture that is a point of the graph:
  // streams that wait for it join the capture, and the host can neither wait for it nor ask for its state.
  void record(Stream& stream);
  // Makes later work of the stream wait for the mark. Does nothing when the event was never recorded. A
  // stream that is captured waits here and now for what was recorded outside of the capture.
  void block(Stream& stream) const;
  // True when never recorded, or when the work before the mark is done.
  bool query() const;
  // Waits; raises what kernels before it on the stream recorded (see Stream::synchronize).
  void synchronize() const;
  // Milliseconds from this mark to `end`, both recorded with timing. Waits for both. Throws c10::Error
  // otherwise.
  double elapsed_ms(const Event& end) const;

 private:
  uint64_t timestamp() const;  // device ns
  void refuse_captured() const;
  const bool timing_;
  cl_event marker_ = nullptr;
  Stream* stream_ = nullptr;
  uint64_t capture_ = 0;  // Graph::capture_id() of the capture that it was recorded in; 0: in none
};

}  // namespace dlb
