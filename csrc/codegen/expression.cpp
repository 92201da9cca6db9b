// Reads expressions: a statement at a time, names in a map.
#include "codegen/expression.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <locale>
#include <map>
#include <sstream>
#include <stdexcept>

#include "codegen/registry.h"

namespace dlb::codegen {
namespace {

constexpr size_t kMostValues = 255;
constexpr double kMostExact = 9007199254740992;  // 2^53

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// The parts between separators, without the spaces around them.
std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(trimmed(text.substr(at, end - at)));
    at = end + 1;
  }
  return parts;
}

bool is_name(std::string_view word) {
  if (word.empty() || std::isdigit(static_cast<unsigned char>(word[0]))) return false;
  for (const char c : word)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
  return true;
}

// N of a word that is the letter and N, or -1.
int number_behind(char letter, std::string_view word) {
  if (word.size() < 2 || word.size() > 4 || word[0] != letter) return -1;
  int number = 0;
  for (const char c : word.substr(1)) {
    if (!std::isdigit(static_cast<unsigned char>(c))) return -1;
    number = number * 10 + (c - '0');
  }
  return number < static_cast<int>(kMostValues) ? number : -1;
}

class Parser {
 public:
  std::variant<Expression, ReduceExpression> parse(std::string_view text) {
    for (const std::string_view part : parts_of(text, ';')) {
      statement_ = part;
      if (!part.empty()) add_statement();
    }
    statement_ = trimmed(text);
    for (size_t y = 0;; ++y) {
      const auto it = values_.find("y" + std::to_string(y));
      if (it == values_.end()) break;
      if (is_number(it->second)) fail("y" + std::to_string(y) + " depends on no input");
      expression_.results.push_back(it->second);
    }
    if (expression_.results.empty()) fail("no result is called y0");
    if (expression_.inputs == 0) fail("at least one input is needed");
    if (reduction_) return split();
    return std::move(expression_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw std::invalid_argument("expression \"" + std::string(statement_) + "\": " + why);
  }

  void add_statement() {
    const size_t equals = statement_.find('=');
    if (equals == std::string_view::npos) fail("a statement is name = row.type(arguments)");
    const auto names = parts_of(statement_.substr(0, equals), ',');
    for (const std::string_view name : names)
      if (!is_name(name) || number_behind('x', name) >= 0 || number_behind('s', name) >= 0)
        fail("\"" + std::string(name) + "\" cannot be the name of a value");
    const std::string_view right = trimmed(statement_.substr(equals + 1));
    const size_t open = right.find('(');
    if (open == std::string_view::npos) {
      if (names.size() != 1) fail("one value has one name");
      values_[std::string(names[0])] = value_of(right);
      return;
    }
    if (right.back() != ')') fail("no ) at the end");
    add_node(names, trimmed(right.substr(0, open)), right.substr(open + 1, right.size() - open - 2));
  }

  void add_node(const std::vector<std::string_view>& names, std::string_view called,
                std::string_view arguments) {
    const size_t dot = called.rfind('.');
    if (dot == std::string_view::npos) fail("the type is missing, as in add.f32(x0, x1)");
    Expression::Node node;
    const auto type = dtype_named(called.substr(dot + 1));
    if (!type) fail("there is no type " + std::string(called.substr(dot + 1)));
    node.type = *type;
    const OpRow* row = find_row(called.substr(0, dot));
    const bool reduces = row && row->kind == RowKind::Reduce;
    if (!row || row->setup || row->after || !(row->pointwise || reduces))
      fail("there is no pointwise row " + std::string(called.substr(0, dot)));
    const DClass cls = class_of(compute_type(node.type));
    if (reduces) {
      if (reduction_) fail("an expression has one reduction");
      reduction_ = row->reduce, reduction_node_ = expression_.nodes.size();
    }
    node.op = row->pointwise;
    if (!reduces && node.op->error)
      fail(std::string(row->id()) + " reports errors, which needs a kernel of its own");
    if (reduces ? !row->reduce->body(cls).step : !node.op->body(cls))
      fail(std::string(row->id()) + " is not defined for " + name_of(node.type));
    const size_t scalars = reduces ? row->reduce->scalars : node.op->scalars;
    node.inputs = static_cast<uint8_t>(inputs_of(*row));
    node.results = static_cast<uint8_t>(outputs_of(*row));
    if (names.size() != node.results)
      fail(std::string(row->id()) + " has " + std::to_string(node.results) + " results");
    if (!trimmed(arguments).empty())
      for (const std::string_view argument : parts_of(arguments, ','))
        node.arguments.push_back(value_of(argument));
    const size_t wanted = size_t{node.inputs} + scalars;
    if (node.arguments.size() != wanted)
      fail(std::string(row->id()) + " takes " + std::to_string(node.inputs) + " inputs and " +
           std::to_string(scalars) + " scalars, not " + std::to_string(node.arguments.size()) + " arguments");
    for (const Expression::Value& value : node.arguments) check_number(value, node.type);
    if (expression_.nodes.size() == kMostValues) fail("too many rows");
    for (size_t k = 0; k < names.size(); ++k)
      values_[std::string(names[k])] = {
          Expression::From::Node, static_cast<uint8_t>(expression_.nodes.size()), static_cast<uint8_t>(k)};
    expression_.nodes.push_back(std::move(node));
  }

  Expression::Value value_of(std::string_view word) {
    if (const auto it = values_.find(std::string(word)); it != values_.end()) return it->second;
    if (const int i = number_behind('x', word); i >= 0) {
      expression_.inputs = std::max(expression_.inputs, static_cast<size_t>(i) + 1);
      return {Expression::From::Input, static_cast<uint8_t>(i), 0};
    }
    if (const int i = number_behind('s', word); i >= 0) {
      expression_.scalars.resize(std::max(expression_.scalars.size(), static_cast<size_t>(i) + 1),
                                 DType::Bool);
      return {Expression::From::Scalar, static_cast<uint8_t>(i), 0};
    }
    const double number = number_of(word);
    if (expression_.numbers.size() == kMostValues) fail("too many numbers");
    expression_.numbers.push_back(number);
    return {Expression::From::Number, static_cast<uint8_t>(expression_.numbers.size() - 1), 0};
  }

  static bool is_number(const Expression::Value& value) {
    return value.from == Expression::From::Scalar || value.from == Expression::From::Number;
  }
  static bool is_integral(DType type) {
    return class_of(type) == DClass::Int || class_of(type) == DClass::Bool;
  }

  // Sees that a row of that type gets the scalar or number as it is given.
  void check_number(const Expression::Value& value, DType type) {
    if (value.from == Expression::From::Number && is_integral(type)) {
      const double number = expression_.numbers[value.index];
      if (number != std::trunc(number) || std::fabs(number) >= kMostExact)
        fail(
            "integers are exact below 2^53 as numbers: pass others as scalars, and fractions to rows of "
            "floats");
    }
    if (value.from != Expression::From::Scalar) return;
    DType& known = expression_.scalars[value.index];  // Bool: no row has taken it
    const DType wanted = is_integral(type) ? DType::I64 : compute_type(type);
    if (known == DType::Bool)
      known = wanted;
    else if (is_integral(known) != is_integral(wanted))
      fail("s" + std::to_string(value.index) + " is taken by integers and by floats: pass it twice");
    else if (known != wanted)
      known = wider(known, wanted);
  }
  // Of two types of floats or complex numbers.
  static DType wider(DType a, DType b) {
    const bool complex = class_of(a) == DClass::Complex || class_of(b) == DClass::Complex;
    const bool wide = real_type(a) == DType::F64 || real_type(b) == DType::F64;
    return complex ? (wide ? DType::C128 : DType::C64) : wide ? DType::F64 : DType::F32;
  }

  // Parts the nodes into those in front of the reduction and those behind it.
  ReduceExpression split() {
    using Value = Expression::Value;
    const Expression::Node& reduction = expression_.nodes[reduction_node_];
    ReduceExpression made;
    made.op = reduction_, made.type = reduction.type;
    made.inputs = reduction.inputs, made.results = reduction.results;
    for (Expression* part : {&made.before, &made.after})
      part->numbers = expression_.numbers, part->scalars = expression_.scalars;
    made.before.inputs = expression_.inputs, made.after.inputs = reduction.results;
    std::vector<uint8_t> place(expression_.nodes.size());  // of the node in its part
    std::vector<bool> behind(expression_.nodes.size());
    const auto is_behind = [&](const Value& value) {
      return value.from == Expression::From::Node && (value.index == reduction_node_ || behind[value.index]);
    };
    const auto moved = [&](Value value) {
      if (value.from != Expression::From::Node) return value;
      if (value.index == reduction_node_) return Value{Expression::From::Input, value.result, 0};
      value.index = place[value.index];
      return value;
    };
    for (size_t n = 0; n < expression_.nodes.size(); ++n) {
      Expression::Node node = expression_.nodes[n];
      if (n == reduction_node_) continue;
      behind[n] = std::any_of(node.arguments.begin(), node.arguments.end(), is_behind);
      for (Value& value : node.arguments) {
        if (behind[n] && !is_behind(value) && !is_number(value))
          fail(std::string(node.op->name) + " takes a value of each element beside a reduced one");
        value = moved(value);
      }
      Expression& part = behind[n] ? made.after : made.before;
      place[n] = static_cast<uint8_t>(part.nodes.size());
      part.nodes.push_back(std::move(node));
    }
    for (size_t i = 0; i < reduction.arguments.size(); ++i) {
      const Value& value = reduction.arguments[i];
      if (i >= reduction.inputs && !is_number(value)) fail("the reduction's scalars are scalars or numbers");
      (i < reduction.inputs ? made.before.results : made.scalars).push_back(moved(value));
    }
    for (const Value& y : expression_.results) {
      made.reduced.push_back(is_behind(y));
      (is_behind(y) ? made.after : made.before).results.push_back(moved(y));
    }
    if (made.after.results.empty()) fail("no result is reduced");
    return made;
  }

  double number_of(std::string_view word) const {
    if (word == "inf") return std::numeric_limits<double>::infinity();
    if (word == "-inf") return -std::numeric_limits<double>::infinity();
    if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
    std::istringstream stream{std::string(word)};
    stream.imbue(std::locale::classic());
    double number = 0;
    if (!(stream >> number) || stream.peek() != std::istringstream::traits_type::eof())
      fail("there is no value \"" + std::string(word) + "\"");
    return number;
  }

  std::string_view statement_;
  Expression expression_;
  const ReduceOp* reduction_ = nullptr;
  size_t reduction_node_ = 0;
  std::map<std::string, Expression::Value> values_;
};

}  // namespace

DType Expression::result_dtype(const Node& node) {
  return node.op->bool_result ? DType::Bool : node.op->real_result ? real_type(node.type) : node.type;
}

DType Expression::dtype_of(const Value& value, const DType* input_dtypes) const {
  return value.from == From::Input ? input_dtypes[value.index] : result_dtype(nodes[value.index]);
}

DType ReduceExpression::result_dtype(size_t result) const {
  return codegen::result_dtype(op->results[result], type);
}

DType ReduceExpression::dtype_of(size_t y, const DType* input_dtypes) const {
  size_t place = 0;
  for (size_t k = 0; k < y; ++k) place += reduced[k] == reduced[y];
  if (!reduced[y]) return before.dtype_of(before.results[inputs + place], input_dtypes);
  std::vector<DType> dtypes;
  for (size_t r = 0; r < results; ++r) dtypes.push_back(result_dtype(r));
  return after.dtype_of(after.results[place], dtypes.data());
}

std::variant<Expression, ReduceExpression> parse_rows(std::string_view text) {
  return Parser().parse(text);
}

}  // namespace dlb::codegen
