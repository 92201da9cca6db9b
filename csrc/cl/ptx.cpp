// Edits PTX, which is text.
#include "cl/ptx.h"

#include <string_view>

namespace dlb::cl {

namespace {

constexpr std::string_view kMark = "//@", kTarget = ".target sm_90", kBlanks = " ,\t\r\n";

}  // namespace

bool needs_sm90a(const std::string& source) {
  return source.find(kMark) != std::string::npos;
}

std::string with_sm90a(const std::string& binary) {
  const size_t target = binary.find(kTarget), after = target + kTarget.size();
  if (target == std::string::npos || after >= binary.size()) return "";
  if (kBlanks.find(binary[after]) == std::string_view::npos) return "";  // a name that only begins alike
  std::string edited = binary.substr(0, after) + "a";
  edited.reserve(binary.size());
  size_t from = after;
  for (size_t mark; (mark = binary.find(kMark, from)) != std::string::npos; from = mark + kMark.size())
    edited.append(binary, from, mark - from);
  return edited.append(binary, from);
}

}  // namespace dlb::cl
