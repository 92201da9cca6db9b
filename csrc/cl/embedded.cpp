// Looks up embedded OpenCL sources by path.
#include "cl/embedded.h"

#include <stdexcept>

namespace dlb::cl {

const char* embedded_source(const std::string& name) {
  for (const EmbeddedFile* file = kEmbeddedFiles; file->name; ++file)
    if (name == file->name) return file->text;
  throw std::logic_error("no embedded kernel file " + name);
}

}  // namespace dlb::cl
