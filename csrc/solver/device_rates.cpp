// Derives rates, and reads and writes measured ones. The stored line:
//   dlbackend-rates 1 bytes=20000 launch_us=5 ...
#include "solver/device_rates.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <mutex>

#include "cl/compute_unit.h"
#include "cl/settings.h"
#include "cl/stores/disk_cache.h"
#include "solver/settings.h"

namespace dlb::solver {
namespace {

// Raise the number when the meaning of a rate changes: then the rates that are stored are not found any more.
constexpr const char* kRatesMagic = "dlbackend-rates 1";
constexpr const char* kStoreSubject = "rates 1";

// A core does two multiply-adds of its widest vectors in a cycle, but 512 bits count once: cores have one
// such unit, or two that two threads share, or none and use the narrower ones together.
constexpr double kMostPerCycle = 16;
// Bytes per microsecond that one core copies, and that all cores copy together when the memory's channels are
// full.
constexpr double kCoreBytes = 8000, kMostHostBytes = 2e5;
// Bytes that a GPU's memory moves in the time of a float32 operation: from 1/20 with stacked memory to 1/80.
constexpr double kGpuBytesPerOperation = 1.0 / 32;

DeviceRates derive_cpu(const cl::Device& device, const cl::ComputeUnit& unit) {
  const double clock = unit.clock_mhz ? unit.clock_mhz : 3000, units = device.compute_units;
  DeviceRates rates;
  rates.bytes = std::min(kCoreBytes * units, kMostHostBytes);
  rates.launch_us = 10;
  rates.float32 = 2 * std::min(2.0 * device.vector_floats, kMostPerCycle) * clock * units;
  rates.float64 = rates.float32 / 2;
  rates.int32 = rates.float32 / 2;  // products of integers take two steps of the units for vectors
  // A bfloat16 instruction on vectors does twice the products of one on floats; one on tiles, 16 times.
  const cl::Bf16 bf16 = device.bf16();
  rates.matrix16 = rates.float32 * (bf16 == cl::Bf16::kTiles ? 16 : bf16 == cl::Bf16::kVectors ? 2 : 1);
  rates.matrix_tf32 = rates.float32;
  return rates;
}

DeviceRates derive_gpu(const cl::Device& device, const cl::ComputeUnit& unit) {
  const double clock = unit.clock_mhz ? unit.clock_mhz : 1500;
  DeviceRates rates;
  rates.float32 = 2.0 * unit.lanes * clock * device.compute_units;
  rates.bytes = kGpuBytesPerOperation * rates.float32;
  rates.launch_us = 4;
  // GPUs made for double compute it at half the rate, others at 1/32 or 1/64. The guess is the larger rate:
  // with too small a rate tiles would be left out that may be the fastest, with too large a rate some are
  // only measured in vain.
  rates.float64 = rates.float32 / (device.fp64.listed() ? 2 : 64);
  rates.int32 = rates.float32 / 2;
  const bool tensor_cores =
      device.tensor_cores != cl::TensorCores::kNone;  // emulated ones count as real ones
  const bool hopper = device.wgmma.listed();
  rates.matrix16 = rates.float32 * (hopper ? 9 : tensor_cores ? 4 : 1);  // from 2 to 16 times
  rates.matrix_tf32 = rates.matrix16 / (tensor_cores ? 2 : 1);
  return rates;
}

struct Known {
  std::once_flag once;
  DeviceRates derived, taken;
};

const Known& known_of(const cl::Device& device) {
  static auto* all = new std::array<Known, cl::kDeviceIndices>;
  Known& known = (*all)[static_cast<size_t>(device.index)];
  std::call_once(known.once, [&] {
    const cl::ComputeUnit unit = cl::compute_unit_of(device);
    known.derived = device.cls == cl::DeviceClass::kCpu ? derive_cpu(device, unit) : derive_gpu(device, unit);
    const auto stored = uses_measured_rates() ? load_rates(device) : std::nullopt;
    known.taken = stored.value_or(known.derived);
  });
  return known;
}

// Reads " name=number" from the front of the text; false where it is something else.
bool take_rate(std::string_view& text, std::string_view name, double& rate) {
  const std::string head = " " + std::string(name) + "=";
  if (text.substr(0, head.size()) != head) return false;
  text.remove_prefix(head.size());
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (error != std::errc{} || !std::isfinite(rate) || rate <= 0) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

}  // namespace

double DeviceRates::plain(c10::ScalarType dtype) const {
  const c10::ScalarType real = c10::toRealValueType(dtype);
  if (real == c10::ScalarType::Double) return float64;
  return c10::isIntegralType(real, /*includeBool=*/true) ? int32 : float32;
}

std::string DeviceRates::text() const {
  std::string out = kRatesMagic;
  for (const RateField& field : kRateFields) {
    char number[32];
    const auto end =
        std::to_chars(number, number + sizeof number, this->*field.rate, std::chars_format::general, 6).ptr;
    out += " " + std::string(field.name) + "=" + std::string(number, end);
  }
  return out + "\n";
}

std::optional<DeviceRates> DeviceRates::parse(const std::string& line) {
  std::string_view text = line;
  const std::string_view magic = kRatesMagic;
  if (text.substr(0, magic.size()) != magic) return std::nullopt;
  text.remove_prefix(magic.size());
  DeviceRates rates;
  for (const RateField& field : kRateFields)
    if (!take_rate(text, field.name, rates.*field.rate)) return std::nullopt;
  if (text != "\n") return std::nullopt;
  rates.measured = true;
  return rates;
}

const DeviceRates& rates_of(const cl::Device& device) {
  const Known& known = known_of(device);
  return deterministic_now() ? known.derived : known.taken;
}

const DeviceRates& derived_rates(const cl::Device& device) {
  return known_of(device).derived;
}

std::string rates_key(const cl::Device& device) {
  return cl::find_key(device, kStoreSubject);
}

std::optional<DeviceRates> load_rates(const cl::Device& device) {
  const auto text = cl::find_disk_cache().load(rates_key(device));
  return text ? DeviceRates::parse(*text) : std::nullopt;
}

void store_rates(const cl::Device& device, const DeviceRates& rates) {
  cl::find_disk_cache().store(rates_key(device), rates.text());
}

bool uses_measured_rates() {
  static const bool uses = cl::settings::rates() != "derived";
  return uses;
}

}  // namespace dlb::solver
