// The table of ops.
#include "codegen/registry.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>
#include <stdexcept>

namespace dlb::codegen {
namespace {

std::map<std::string_view, OpRow>& table() {
  static auto* rows = new std::map<std::string_view, OpRow>;
  return *rows;
}

// One more than the largest N among the names <letter>N in the text, so the number of such names.
size_t count_names(std::string_view text, char letter) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  size_t count = 0;
  for (size_t at = 0; at + 1 < text.size(); ++at) {
    if (text[at] != letter || !std::isdigit(static_cast<unsigned char>(text[at + 1]))) continue;
    if (at > 0 && (is_word(text[at - 1]) || text[at - 1] == '.')) continue;
    size_t end = at + 1, number = 0;
    for (; end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])); ++end)
      number = number * 10 + static_cast<size_t>(text[end] - '0');
    if (end < text.size() && is_word(text[end])) continue;
    count = std::max(count, number + 1);
  }
  return count;
}

std::vector<const char*> texts_of(const OpRow& row) {
  std::vector<const char*> texts = {row.setup, row.after};
  for (const DClass cls : {DClass::Bool, DClass::Int, DClass::Float, DClass::Complex}) {
    if (row.pointwise) {
      texts.push_back(row.pointwise->body(cls));
    } else {
      const ReduceBody& body = row.reduce->body(cls);
      texts.insert(texts.end(), {body.step, body.finish});
    }
  }
  std::erase(texts, nullptr);
  return texts;
}

size_t count_names(const OpRow& row, char letter) {
  size_t count = 0;
  for (const char* text : texts_of(row)) count = std::max(count, count_names(text, letter));
  return count;
}

// "a b.out" as {"aten::a", "aten::b.out"}.
std::vector<std::string> overload_names(const char* list) {
  std::vector<std::string> names;
  std::istringstream words(list);
  for (std::string word; words >> word;)
    names.push_back(word.find("::") == std::string::npos ? "aten::" + word : word);
  return names;
}

template <class Op>
void check_found(const Op& op, const Op* found) {
  if (found != &op && !op.from_text)
    throw std::logic_error("op " + std::string(op.name) + " is not registered");
}

}  // namespace

RegisterOps::Entry::Entry(const PointwiseOp& op, const char* overloads, const char* promotion,
                          const char* setup, const char* after)
    : row{.pointwise = &op,
          .overloads = overload_names(overloads),
          .promotion = promotion,
          .setup = setup,
          .after = after} {}
RegisterOps::Entry::Entry(const ReduceOp& op, const char* overloads, const char* promotion)
    : row{.reduce = &op, .overloads = overload_names(overloads), .promotion = promotion} {}

RegisterOps::RegisterOps(RowKind kind, std::initializer_list<Entry> ops) {
  for (const Entry& entry : ops) {
    OpRow row = entry.row;
    row.kind = kind;
    add_row(std::move(row));
  }
}

void add_row(OpRow row) {
  OpRow& known = table()[row.id()];
  if (known.pointwise || known.reduce) throw std::logic_error("two ops have the id " + std::string(row.id()));
  row.overloads.insert(row.overloads.end(), known.overloads.begin(), known.overloads.end());
  known = std::move(row);
}

void add_overload(const char* id, std::string overload) {
  table()[id].overloads.push_back(std::move(overload));
}

const OpRow* find_row(std::string_view id) {
  const auto it = table().find(id);
  return it == table().end() ? nullptr : &it->second;
}
const PointwiseOp* find_pointwise(std::string_view id) {
  const OpRow* row = find_row(id);
  return row ? row->pointwise : nullptr;
}
const ReduceOp* find_reduce(std::string_view id) {
  const OpRow* row = find_row(id);
  return row ? row->reduce : nullptr;
}

void check_is_row(const PointwiseOp& op) {
  check_found(op, find_pointwise(op.name));
}
void check_is_row(const ReduceOp& op) {
  check_found(op, find_reduce(op.name));
}

std::vector<const OpRow*> all_rows() {
  std::vector<const OpRow*> rows;
  for (const auto& [id, row] : table()) {
    if (!row.pointwise && !row.reduce)
      throw std::logic_error(row.overloads[0] + " needs an op " + std::string(id) + ", which there is not");
    rows.push_back(&row);
  }
  return rows;
}

size_t inputs_of(const OpRow& row) {
  return count_names(row, 'x');
}
size_t outputs_of(const OpRow& row) {
  return std::max<size_t>(count_names(row, 'y'), 1);
}

}  // namespace dlb::codegen
