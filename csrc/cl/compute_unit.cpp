// Vendors' numbers of lanes, which OpenCL does not report.
#include "cl/compute_unit.h"

namespace dlb::cl {
namespace {

cl_uint number(const Device& device, cl_device_info what) {
  cl_uint value = 0;
  DLB_CL(clGetDeviceInfo, device.id, what, sizeof value, &value, nullptr);
  return value;
}

}  // namespace

ComputeUnit compute_unit_of(const Device& device) {
  // No driver reports how wide a unit is, and each vendor calls something else a compute unit: a
  // multiprocessor at NVIDIA (since Maxwell), a compute unit at AMD, an execution unit at Intel.
  constexpr cl_uint kNvidia = 0x10de, kIntel = 0x8086;  // the vendors' numbers in PCI
  constexpr uint32_t kNvidiaLanes = 128, kIntelLanes = 8;
  ComputeUnit unit;
  unit.clock_mhz = number(device, CL_DEVICE_MAX_CLOCK_FREQUENCY);
  const cl_uint vendor = number(device, CL_DEVICE_VENDOR_ID);
  const bool gpu = device.type & CL_DEVICE_TYPE_GPU;
  if (gpu && vendor == kNvidia) unit.lanes = kNvidiaLanes;
  if (gpu && vendor == kIntel) unit.lanes = kIntelLanes;
  return unit;
}

}  // namespace dlb::cl
