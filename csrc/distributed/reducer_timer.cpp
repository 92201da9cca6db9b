// The clock of DistributedDataParallel's logger.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace c10d {
namespace {

// Times of the host: events with the device's times would move the streams to profiling queues, on which
// launches are dearer, in every program that trains with DistributedDataParallel.
class OclTimer final : public Timer {
 public:
  explicit OclTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const int64_t from = getTimeRef(start), to = getTimeRef(end);
    if (from == kUnsetTime || to == kUnsetTime || to < from) return std::nullopt;
    return to - from;
  }
};

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, OclTimer);

}  // namespace
}  // namespace c10d
