// Asks the driver's list of extensions, then its compiler.
#include "cl/feature.h"

#include <sstream>

#include "cl/build.h"
#include "cl/device.h"
#include "cl/log.h"

namespace dlb::cl {

void Feature::find_in(const std::string& extensions) {
  std::istringstream words(extensions);
  for (std::string word; words >> word;) listed_ = listed_ || word == extension_;
}

Feature::operator bool() const {
  if (!listed_) return false;
  std::call_once(asked_, [this] {
    const std::string enable = std::string("#pragma OPENCL EXTENSION ") + extension_ + " : enable\n";
    builds_ = builds(device_, enable + kernel_);
    if (!builds_)
      log(1, std::string("no ") + extension_ + "," + device_.name + " lists it and does not build it");
  });
  return builds_;
}

}  // namespace dlb::cl
