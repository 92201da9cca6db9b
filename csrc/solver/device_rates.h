// How fast a device computes, moves bytes and starts kernels: what solvers' estimates are made of.
#pragma once
#include <c10/core/ScalarType.h>

#include <iterator>
#include <optional>
#include <string>

#include "cl/device.h"

namespace dlb::solver {

// Rates of a whole device, per microsecond. They are measured once per device and driver and kept in the find
// store (solver/measure_rates.h); until then they are derived from what the driver tells.
struct DeviceRates {
  double bytes = 0;  // copied through memory larger than the caches: those read and those written
  // Microseconds of a kernel that waits for the one before it and does nothing, while the host is ahead.
  double launch_us = 0;
  // Operations of all compute units together, a multiply-add being two.
  double float32 = 0, float64 = 0, int32 = 0;
  // The same in products of matrices by instructions made for them: with operands of 16 bits, and of float32
  // rounded to TF32. Where a device has none, the rate of float32.
  double matrix16 = 0, matrix_tf32 = 0;
  bool measured = false;

  // Operations per microsecond in plain code that computes in what a dtype is computed in.
  double plain(c10::ScalarType dtype) const;

  // One line, in the C locale whatever the process's.
  std::string text() const;
  // Measured rates; nothing for a line that text() does not make, or with a rate that is not a number above
  // zero.
  static std::optional<DeviceRates> parse(const std::string& text);
};

// The rates by name, in the order of the text.
struct RateField {
  const char* name;
  double DeviceRates::*rate;
};
constexpr RateField kRateFields[] = {
    {"bytes", &DeviceRates::bytes},
    {"launch_us", &DeviceRates::launch_us},
    {"float32", &DeviceRates::float32},
    {"float64", &DeviceRates::float64},
    {"int32", &DeviceRates::int32},
    {"matrix16", &DeviceRates::matrix16},
    {"matrix_tf32", &DeviceRates::matrix_tf32},
};

// The rates that estimates use: the measured ones that the find store had when the process first asked for
// this device's, else the derived ones. The derived ones are used too while deterministic_now() holds, so
// that every process chooses alike, and where DLBACKEND_RATES is "derived". The values never change within a
// process. Cheap, and never waits for a device.
const DeviceRates& rates_of(const cl::Device& device);

// Rates from the clock, units and vectors that the driver reports, with ratios that are common among devices
// of its class. They serve choices that must come out alike in every process: those that a stored config does
// not name.
const DeviceRates& derived_rates(const cl::Device& device);

// The key of the device's rates in the find store, what the store has under it now, and storing rates there.
// Storing changes nothing in this process.
std::string rates_key(const cl::Device& device);
std::optional<DeviceRates> load_rates(const cl::Device& device);
void store_rates(const cl::Device& device, const DeviceRates& rates);

// Whether rates may be measured and measured ones be used: DLBACKEND_RATES is not "derived".
bool uses_measured_rates();

}  // namespace dlb::solver
