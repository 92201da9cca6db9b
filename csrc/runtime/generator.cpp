// Philox generator state; the numbers themselves are made in kernels (csrc/kernels/common/philox.clh).
#include "runtime/generator.h"

#include <ATen/Utils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/graph.h"
#include "runtime/stream.h"

namespace dlb {
namespace {
constexpr size_t kStateBytes = 2 * sizeof(uint64_t);  // seed, offset: as CUDA's
}

OclGenerator::OclGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(kDeviceType, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

c10::DeviceType OclGenerator::device_type() {
  return kDeviceType;
}

void OclGenerator::refuse_in_capture(const char* call) const {
  TORCH_CHECK(captures_ == 0, "Cannot call ", call,
              " of an ocl generator that is used in a capture: each replay of the graph draws what the state "
              "says then. Do it before the capture or between replays.");
}

uint64_t OclGenerator::get_offset() const {
  refuse_in_capture("get_offset()");
  return offset_;
}

uint64_t OclGenerator::current_seed() const {
  refuse_in_capture("current_seed()");
  return seed_;
}

void OclGenerator::set_current_seed(uint64_t seed) {
  refuse_in_capture("set_current_seed()");
  seed_ = seed;
  offset_ = 0;
}

void OclGenerator::set_offset(uint64_t offset) {
  refuse_in_capture("set_offset()");
  offset_ = offset;
}

uint64_t OclGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void OclGenerator::set_state(const c10::TensorImpl& state) {
  refuse_in_capture("set_state()");
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == static_cast<int64_t>(kStateBytes), "RNG state must have ", kStateBytes,
              " bytes");
  uint64_t words[2];
  std::memcpy(words, state.data(), sizeof words);
  seed_ = words[0];
  offset_ = words[1];
}

c10::intrusive_ptr<c10::TensorImpl> OclGenerator::get_state() const {
  refuse_in_capture("get_state()");
  at::Tensor state =
      at::empty({static_cast<int64_t>(kStateBytes)}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  const uint64_t words[2] = {seed_, offset_};
  std::memcpy(state.data_ptr(), words, sizeof words);
  return state.getIntrusivePtr();
}

std::pair<uint64_t, uint64_t> OclGenerator::reserve(uint64_t count) {
  const uint64_t first = offset_;
  offset_ += count;
  return {seed_, first};
}

OclGenerator* OclGenerator::clone_impl() const {
  auto* copy = new OclGenerator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::mutex mutex;
  static auto* generators = new std::vector<at::Generator>;
  if (device < 0) device = current_device();
  std::lock_guard<std::mutex> lock(mutex);
  if (generators->empty())
    for (int i = 0; i < cl::device_count(); ++i)
      generators->push_back(at::make_generator<OclGenerator>(static_cast<c10::DeviceIndex>(i)));
  if (static_cast<size_t>(device) >= generators->size()) device_of(device);  // throws
  return (*generators)[static_cast<size_t>(device)];
}

PhiloxDraw reserve_philox(const std::optional<at::Generator>& given, uint64_t count) {
  const at::Generator& chosen = given && given->defined() ? *given : default_generator(current_device());
  TORCH_CHECK(chosen.device().type() == kDeviceType, "Expected a 'ocl' device type for generator but found '",
              chosen.device().type(), "'");
  const c10::Device here(kDeviceType, current_device());
  TORCH_CHECK(chosen.device() == here, "Expected a '", here, "' generator device but found '",
              chosen.device(), "'");
  auto* generator = chosen.get<OclGenerator>();
  if (Graph* const graph = current_stream(here.index()).graph()) [[unlikely]]
    return graph->draw(chosen, count);
  std::lock_guard<std::mutex> lock(generator->mutex_);
  const auto [seed, offset] = generator->reserve(count);
  return {{seed}, {offset}};
}

}  // namespace dlb
