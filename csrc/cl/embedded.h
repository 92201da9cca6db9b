// The OpenCL sources of csrc/kernels, compiled into the library by cmake/embed_kernels.py.
#pragma once
#include <string>

namespace dlb::cl {

struct EmbeddedFile {
  const char* name;
  const char* text;
};
extern const EmbeddedFile kEmbeddedFiles[];  // ends with {nullptr, nullptr}

// The text of csrc/kernels/<name>, a path such as "reduce/scan.clh". Throws std::logic_error for a file that
// is not embedded.
const char* embedded_source(const std::string& name);

}  // namespace dlb::cl
