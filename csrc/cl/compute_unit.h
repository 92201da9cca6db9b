// The speed of a device's compute units, as far as drivers report it.
#pragma once
#include <cstdint>

#include "cl/device.h"

namespace dlb::cl {

struct ComputeUnit {
  uint32_t clock_mhz = 0;  // the highest clock; 0 where the driver does not report it
  uint32_t lanes = 64;     // float32 multiply-adds that a unit of a GPU begins in a cycle
};

// Asks the driver. Throws Error.
ComputeUnit compute_unit_of(const Device& device);

}  // namespace dlb::cl
