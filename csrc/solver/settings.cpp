#include "solver/settings.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "cl/settings.h"
#include "cl/tiers.h"
#include "solver/choice.h"

namespace dlb::solver {
namespace {

constexpr const char* kModes[] = {"normal", "fast", "hybrid", "dynamic_hybrid", "trust_verify"};

FindMode parse_mode(const std::string& name) {
  std::string known;
  for (size_t i = 0; i < std::size(kModes); i++) {
    if (name == kModes[i]) return static_cast<FindMode>(i);
    known += (i ? ", " : "") + std::string(kModes[i]);
  }
  throw std::invalid_argument("find mode '" + name + "' does not exist; there are " + known);
}

FindMode initial_mode() {
  const std::string text = cl::settings::find_mode();
  if (text.empty()) return FindMode::kHybrid;
  try {
    return parse_mode(text);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, "DLBACKEND_FIND_MODE: ", error.what());
  }
}

std::atomic<FindMode>& mode_cell() {
  static std::atomic<FindMode> mode{initial_mode()};
  return mode;
}

void check_share(double share) {
  if (!(share > 0 && share <= 1))
    throw std::invalid_argument("the share of time for searching must be above 0 and at most 1, not " +
                                std::to_string(share) + "; find mode 'fast' does not search");
}

double initial_share() {
  const std::string text = cl::settings::find_share();
  if (text.empty()) return 0.03;
  double share = 0;  // from_chars, because strtod follows the locale
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, share);
  try {
    check_share(error != std::errc{} || stop != end ? NAN : share);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, "DLBACKEND_FIND_SHARE=", text, ": ", error.what());
  }
  return share;
}

std::atomic<double>& share_cell() {
  static std::atomic<double> share{initial_share()};
  return share;
}

constexpr const char* kFp32Precisions[] = {"none", "ieee", "tf32"};
enum class Fp32Precision : uint8_t { kNone, kIeee, kTf32 };
std::atomic<Fp32Precision> g_fp32_precision{Fp32Precision::kNone};
thread_local Fp32Precision t_fp32_precision = Fp32Precision::kNone;

Fp32Precision parse_fp32_precision(const std::string& name) {
  for (size_t i = 0; i < std::size(kFp32Precisions); i++)
    if (name == kFp32Precisions[i]) return static_cast<Fp32Precision>(i);
  throw std::invalid_argument("fp32_precision '" + name + "' does not exist; there are none, ieee, tf32");
}

// One bit for each op, by the op's index.
using OpMask = uint64_t;
constexpr OpMask kUnknown = ~OpMask{0};

OpMask bit_of(const Op& op) {
  TORCH_INTERNAL_ASSERT(op.index() < 63, "more ops than bits");
  return OpMask{1} << op.index();
}

std::atomic<bool> g_deterministic{false};
std::atomic<OpMask> g_reusable_ops{0};
thread_local bool t_prefers_reusable = false;

// "gemm: cpu_gemv, ...; conv_fwd: ..."
std::string all_solver_names() {
  std::string text;
  for (const Op* op : ops()) {
    text += (text.empty() ? "" : "; ") + std::string(op->name()) + ":";
    const char* separator = " ";
    for (const AnySolver* solver : op->solvers())
      text += std::string(std::exchange(separator, ", ")) + solver->name();
  }
  return text;
}

bool exists(const Op& op, const std::string& name) {
  const auto& solvers = op.solvers();
  return std::any_of(solvers.begin(), solvers.end(), [&](const auto* s) { return name == s->name(); });
}

std::string op_names() {
  std::string text;
  for (const Op* op : ops()) text += (text.empty() ? "" : ", ") + std::string(op->name());
  return text;
}

using Preferences = std::vector<Preference>;  // by the op's index

// One "op:name", "name", "op:-name" or "-name".
void add_preference(Preferences& preferences, const std::string& item) {
  const size_t colon = item.find(':');
  const std::string only = colon == std::string::npos ? "" : item.substr(0, colon);
  std::string name = colon == std::string::npos ? item : item.substr(colon + 1);
  const bool forbid = !name.empty() && name[0] == '-';
  if (forbid) name.erase(0, 1);
  TORCH_CHECK(only.empty() || find_op(only), "DLBACKEND_SOLVER: there is no op '", only,
              "'. Ops: ", op_names(), ".");
  bool name_known = false;
  for (const Op* op : ops()) {
    if ((!only.empty() && only != op->name()) || !exists(*op, name)) continue;
    name_known = true;
    if (forbid)
      preferences[op->index()].forbidden.push_back(name);
    else
      preferences[op->index()].forced = name;
  }
  TORCH_CHECK(name_known, "DLBACKEND_SOLVER: no solver", only.empty() ? "" : " of " + only, " is named '",
              name, "'. ", all_solver_names(), ".");
}

Preferences parse_preferences(const std::string& specification) {
  Preferences preferences(ops().size());
  std::istringstream in(specification);
  for (std::string item; std::getline(in, item, ',');)
    if (!item.empty()) add_preference(preferences, item);
  return preferences;
}

std::mutex g_preferences_mutex;
std::atomic<OpMask> g_preferred_ops{kUnknown};

void note_preferred(const Preferences& preferences) {
  OpMask mask = 0;
  for (const Op* op : ops()) {
    const Preference& preference = preferences[op->index()];
    if (!preference.forced.empty() || !preference.forbidden.empty()) mask |= bit_of(*op);
  }
  g_preferred_ops = mask;
}

Preferences& preferences_locked() {
  static Preferences preferences = [] {
    Preferences initial = parse_preferences(cl::settings::solver());
    note_preferred(initial);
    return initial;
  }();
  return preferences;
}

}  // namespace

FindMode find_mode() {
  return mode_cell().load(std::memory_order_relaxed);
}
const char* find_mode_name() {
  return kModes[static_cast<int>(find_mode())];
}
void set_find_mode(const std::string& name) {
  mode_cell() = parse_mode(name);
  forget_choices();
}

double find_share() {
  return share_cell();
}
void set_find_share(double share) {
  check_share(share);
  share_cell() = share;
}

const char* fp32_precision() {
  return kFp32Precisions[static_cast<int>(g_fp32_precision.load(std::memory_order_relaxed))];
}
void set_fp32_precision(const std::string& name) {
  g_fp32_precision = parse_fp32_precision(name);
}
const char* exchange_thread_fp32_precision(const std::string& name) {
  return kFp32Precisions[static_cast<int>(std::exchange(t_fp32_precision, parse_fp32_precision(name)))];
}
bool tf32_allowed(const Op& op) {
  if (op.tf32_setting() == Tf32Setting::kNever) return false;
  const Fp32Precision own = t_fp32_precision != Fp32Precision::kNone
                                ? t_fp32_precision
                                : g_fp32_precision.load(std::memory_order_relaxed);
  if (own != Fp32Precision::kNone) return own == Fp32Precision::kTf32;
  // Convolutions do not follow CUDA's own setting: it allows TF32 by default, which a user of ocl never asked
  // for.
  const at::Context& context = at::globalContext();
  return at::Float32Precision::TF32 ==
         (op.tf32_setting() == Tf32Setting::kMatmul
              ? context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL)
              : context.float32Precision(at::Float32Backend::GENERIC, at::Float32Op::ALL));
}

bool specialises(FindMode mode, const Op& op) {
  return (mode == FindMode::kNormal || mode == FindMode::kHybrid || mode == FindMode::kTrustVerify) &&
         may_specialise(op);
}

void set_prefer_reusable(bool everywhere, const std::string& names) {
  OpMask mask = everywhere ? ~OpMask{0} : 0;
  std::istringstream in(names);
  for (std::string item; std::getline(in, item, ',');) {
    const Op* op = find_op(item);
    TORCH_CHECK_VALUE(op, "there is no op '", item, "'. Ops: ", op_names(), ".");
    mask |= bit_of(*op);
  }
  g_reusable_ops = mask;
}
bool exchange_thread_prefers_reusable(bool prefer) noexcept {
  return std::exchange(t_prefers_reusable, prefer);
}
bool prefers_reusable(const Op& op) noexcept {
  return t_prefers_reusable || !may_specialise(op);
}
bool may_specialise(const Op& op) noexcept {
  return (g_reusable_ops.load(std::memory_order_relaxed) >> op.index() & 1) == 0;
}

void set_deterministic(bool deterministic) {
  g_deterministic = deterministic;
}
bool deterministic() {
  return g_deterministic.load(std::memory_order_relaxed);
}
bool deterministic_now() {
  return deterministic() || at::globalContext().deterministicAlgorithms();
}

namespace {

[[maybe_unused]] const bool g_one_tier_while_deterministic = [] {
  cl::no_first_tier_while(deterministic_now);
  return true;
}();

}  // namespace

bool Preference::allows(const AnySolver& solver) const {
  return (forced.empty() || forced == solver.name()) &&
         std::find(forbidden.begin(), forbidden.end(), solver.name()) == forbidden.end();
}

Preference preference_of(const Op& op) {
  if (!has_preference(op)) return {};
  std::lock_guard<std::mutex> lock(g_preferences_mutex);
  return preferences_locked()[op.index()];
}
bool has_preference(const Op& op) {
  OpMask mask = g_preferred_ops.load(std::memory_order_relaxed);
  if (mask == kUnknown) [[unlikely]] {
    std::lock_guard<std::mutex> lock(g_preferences_mutex);
    preferences_locked();
    mask = g_preferred_ops;
  }
  return mask >> op.index() & 1;
}

void force(const std::string& specification) {
  Preferences preferences = parse_preferences(specification);
  {
    std::lock_guard<std::mutex> lock(g_preferences_mutex);
    preferences_locked() = std::move(preferences);
    note_preferred(preferences_locked());
  }
  forget_choices();
}

std::vector<std::string> solver_names() {
  std::vector<std::string> names;
  for (const Op* op : ops())
    for (const AnySolver* solver : op->solvers())
      names.push_back(std::string(op->name()) + ":" + solver->name());
  return names;
}

}  // namespace dlb::solver
