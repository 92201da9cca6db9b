// Random number generators of ocl: Philox 4x32-10 counters, reproducible per seed on every device.
#pragma once
#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <atomic>
#include <optional>
#include <utility>

#include "cl/launch_record.h"

namespace dlb {

class OclGenerator final : public c10::GeneratorImpl {
 public:
  explicit OclGenerator(c10::DeviceIndex device);

  // While the generator is used in a capture, whose numbers its state says only when the graph is replayed,
  // the state can be neither read nor set.
  void set_current_seed(uint64_t seed) override;  // also resets the offset
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;  // sets and returns a seed that differs from call to call
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // Reserves `count` counter steps (each gives four 32-bit numbers) per work-item and returns {seed, first
  // offset}. The caller holds mutex_.
  std::pair<uint64_t, uint64_t> reserve(uint64_t count);

  // Counts the captures that use the generator.
  void note_capture(int change) { captures_ += change; }

  static c10::DeviceType device_type();

 private:
  OclGenerator* clone_impl() const override;
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
  std::atomic<int> captures_{0};
  void refuse_in_capture(const char* call) const;
};

// What an op that draws numbers gives its kernel. In a capture both words have sources, which each replay
// sets anew.
struct PhiloxDraw {
  cl::LiveWord seed, counter;
};

// The default generator of a device (the current one for -1). Throws c10::Error for a device that does not
// exist.
const at::Generator& default_generator(c10::DeviceIndex device);

// Seed and first counter for an op that draws `count` counter steps per work-item from the given generator or
// the default one, on the current device. Throws c10::Error for a generator of another device.
PhiloxDraw reserve_philox(const std::optional<at::Generator>& generator, uint64_t count);

}  // namespace dlb
