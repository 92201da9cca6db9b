// Finds functions by scanning for identifiers: the groups are small, and texts are scanned once per kernel.
#include "codegen/functions.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "cl/embedded.h"

namespace dlb::codegen {
namespace {

constexpr std::string_view kFolder = "common/math/";

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

// Calls f with each identifier that begins like those of the library.
template <class F>
void for_each_name(std::string_view text, F&& f) {
  for (size_t at = 0; at < text.size();) {
    if (!is_word(text[at])) {
      ++at;
      continue;
    }
    size_t end = at;
    while (end < text.size() && is_word(text[end])) ++end;
    const std::string_view word = text.substr(at, end - at);
    if (word.starts_with("dlb_") || word.starts_with("DLB_")) f(word);
    at = end;
  }
}

struct Group {
  std::string_view text;
  std::set<size_t> needs;  // other groups
};

// The definitions of each group. The first group is the base, whose macros are no functions.
class Index {
 public:
  static const Index& get() {
    static const auto* index = new Index;
    return *index;
  }

  const std::vector<Group>& groups() const { return groups_; }

  // The group that defines the name, or groups().size().
  size_t group_of(std::string_view name) const {
    const auto it = defined_.find(name);
    return it == defined_.end() ? groups_.size() : it->second;
  }
  bool is_function(std::string_view name) const {
    const size_t group = group_of(name);
    return group != 0 && group != groups_.size();
  }

 private:
  Index() {
    groups_.push_back({cl::embedded_source(std::string(kFolder) + "base.clh"), {}});
    for (const cl::EmbeddedFile* file = cl::kEmbeddedFiles; file->name; ++file)
      if (std::string_view(file->name).starts_with(kFolder) &&
          !std::string_view(file->name).ends_with("/base.clh"))
        groups_.push_back({file->text, {}});
    for (size_t g = 0; g < groups_.size(); ++g) define_names(g);
    for (size_t g = 0; g < groups_.size(); ++g)
      for_each_name(groups_[g].text, [&](std::string_view name) {
        if (const size_t other = group_of(name); other != g && other != groups_.size())
          groups_[g].needs.insert(other);
      });
  }

  // A name is defined by "#define NAME" and by "DLB_INLINE type NAME(".
  void define_names(size_t group) {
    const std::string_view text = groups_[group].text;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const std::string_view line = text.substr(at, end - at);
      size_t skip = 0;
      if (line.starts_with("#define ")) skip = line.find(' ') + 1;
      if (line.starts_with("DLB_INLINE ")) skip = line.find(' ', line.find(' ') + 1) + 1;
      if (skip) defined_.emplace(word_at(line, skip), group);
      at = end + 1;
    }
  }
  static std::string_view word_at(std::string_view line, size_t at) {
    size_t end = at;
    while (end < line.size() && is_word(line[end])) ++end;
    return line.substr(at, end - at);
  }

  std::vector<Group> groups_;
  std::map<std::string_view, size_t> defined_;
};

void append(size_t group, std::set<size_t>& done, std::string& source) {
  if (!done.insert(group).second) return;
  const Group& what = Index::get().groups()[group];
  for (const size_t other : what.needs) append(other, done, source);
  source += what.text;
}

}  // namespace

std::vector<std::string> functions_used(std::string_view text) {
  std::set<std::string> names;
  for_each_name(text, [&](std::string_view name) {
    if (Index::get().is_function(name)) names.emplace(name);
  });
  return {names.begin(), names.end()};
}

bool uses_functions(std::string_view text) {
  bool found = false;
  for_each_name(text, [&](std::string_view name) { found |= Index::get().is_function(name); });
  return found;
}

std::string functions_source(std::string_view text) {
  std::string source;
  std::set<size_t> done;
  for_each_name(text, [&](std::string_view name) {
    if (const size_t group = Index::get().group_of(name); group != Index::get().groups().size())
      append(group, done, source);
  });
  return source;
}

}  // namespace dlb::codegen
