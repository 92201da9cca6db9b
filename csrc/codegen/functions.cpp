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

// Calls f with each identifier of the text.
template <class F>
void for_each_word(std::string_view text, F&& f) {
  for (size_t at = 0; at < text.size();) {
    if (!is_word(text[at])) {
      ++at;
      continue;
    }
    size_t end = at;
    while (end < text.size() && is_word(text[end])) ++end;
    f(text.substr(at, end - at));
    at = end;
  }
}

bool is_ours(std::string_view word) {
  return word.starts_with("dlb_") || word.starts_with("DLB_");
}

// Calls f with each identifier that begins like those of the library.
template <class F>
void for_each_name(std::string_view text, F&& f) {
  for_each_word(text, [&](std::string_view word) {
    if (is_ours(word)) f(word);
  });
}

struct Group {
  std::string_view text;
  std::set<size_t> needs;  // other groups
};

// The definitions of each group. The first group is the base, whose macros are no functions; the last is the
// arithmetic of complex numbers, which compute_macros() puts in front of all others.
class Index {
 public:
  static const Index& get() {
    static const auto* index = new Index;
    return *index;
  }

  const std::vector<Group>& groups() const { return groups_; }

  // The group that defines the name, or none().
  size_t group_of(std::string_view name) const {
    const auto it = defined_.find(name);
    return it == defined_.end() || it->second == groups_.size() - 1 ? none() : it->second;
  }
  size_t none() const { return groups_.size(); }
  bool is_function(std::string_view name) const {
    const size_t group = group_of(name);
    return group != 0 && group != none();
  }
  // Whether the definition depends on the compute type.
  bool depends_on_type(std::string_view name) const {
    const auto it = defined_.find(name);
    return it != defined_.end() && it->second != 0;
  }

 private:
  Index() {
    groups_.push_back({cl::embedded_source(std::string(kFolder) + "base.clh"), {}});
    for (const cl::EmbeddedFile* file = cl::kEmbeddedFiles; file->name; ++file)
      if (std::string_view(file->name).starts_with(kFolder) &&
          !std::string_view(file->name).ends_with("/base.clh"))
        groups_.push_back({file->text, {}});
    groups_.push_back({cl::embedded_source("common/complex.clh"), {}});
    for (size_t g = 0; g < groups_.size(); ++g) define_names(g);
    for (size_t g = 0; g < groups_.size(); ++g)
      for_each_name(groups_[g].text, [&](std::string_view name) {
        if (const size_t other = group_of(name); other != g && other != none())
          groups_[g].needs.insert(other);
      });
  }

  // What a line defines: a macro, a function or constant, a structure.
  void define_names(size_t group) {
    const std::string_view text = groups_[group].text;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const std::string_view line = text.substr(at, end - at);
      std::string_view name;
      if (line.starts_with("#define "))
        name = first_word(line.substr(8));
      else if (line.starts_with("DLB_INLINE ") || line.starts_with("inline ") ||
               line.starts_with("constant "))
        name = last_word(line.substr(0, line.find_first_of("([=")));
      else if (line.starts_with("} "))
        name = first_word(line.substr(2));
      if (is_ours(name)) defined_.emplace(name, group);
      at = end + 1;
    }
  }
  static std::string_view first_word(std::string_view text) {
    size_t end = 0;
    while (end < text.size() && is_word(text[end])) ++end;
    return text.substr(0, end);
  }
  static std::string_view last_word(std::string_view text) {
    std::string_view last;
    for_each_word(text, [&](std::string_view word) { last = word; });
    return last;
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
    if (const size_t group = Index::get().group_of(name); group != Index::get().none())
      append(group, done, source);
  });
  return source;
}

std::string named_for(DType compute, std::string_view text) {
  std::string renamed;
  renamed.reserve(text.size() * 5 / 4);
  const char* copied = text.data();
  for_each_name(text, [&](std::string_view name) {
    if (!Index::get().depends_on_type(name)) return;
    const char* const end = name.data() + name.size();
    renamed.append(copied, end).append("_").append(name_of(compute));
    copied = end;
  });
  return renamed.append(copied, text.data() + text.size());
}

}  // namespace dlb::codegen
