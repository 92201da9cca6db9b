// Layout, in lines:  dlbackend-find 1 <version> / considered <name@revision>... / <name@revision> <config>
// <microseconds> <workspace> <error>
#include "solver/find_record.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <locale>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <unordered_map>

#include "cl/stores/disk_cache.h"
#include "runtime/stream.h"
#include "solver/choice.h"

namespace dlb::solver {
namespace {

constexpr const char* kFindMagic = "dlbackend-find";
// Stands before the version of the driver with which a record for any driver was measured.
constexpr char kWithDriver = '@';

std::optional<Config> parse_config(const std::string& text) {
  Config config;
  config.specialised = !text.empty() && text[0] == 's';
  std::istringstream in(text.substr(config.specialised));
  for (size_t i = 0; i < Config::kValues; i++) {
    char comma = ',';
    if (i && (!in.get(comma) || comma != ',')) return std::nullopt;
    if (!(in >> config.values[i])) return std::nullopt;
  }
  return in.peek() == std::istringstream::traits_type::eof() ? std::optional(config) : std::nullopt;
}

// Formats as "%.2f" or "%.3g" in the C locale, whatever the process's is.
std::string number_text(double number, std::chars_format format, int precision) {
  char text[400];  // the largest double has 309 digits
  const auto end = std::to_chars(text, text + sizeof text, number, format, precision).ptr;
  return {text, end};
}

// The records that load_find_record() gave this process. The place of a problem is the first line of its key
// in the store.
struct Loaded {
  std::mutex mutex;
  std::unordered_map<std::string, std::string> texts;  // by key in the store
  std::set<std::string> places;
};

Loaded& loaded() {
  static auto* instance = new Loaded;
  return *instance;
}

std::optional<std::string> loaded_text(const std::string& key) {
  Loaded& given = loaded();
  std::lock_guard<std::mutex> lock(given.mutex);
  if (given.places.empty()) return std::nullopt;
  if (const auto it = given.texts.find(key); it != given.texts.end()) return it->second;
  const std::string place = key.substr(0, key.find('\n'));
  if (!given.places.count(place)) {
    TORCH_WARN_ONCE("dlbackend: the tuning that was loaded is of ", *given.places.begin(),
                    "; its solver choices do not apply to ", place, ".");
  }
  return std::nullopt;
}

}  // namespace

std::string find_place(int device) {
  const std::string key = cl::find_key(device_of(static_cast<c10::DeviceIndex>(device)), "");
  return key.substr(0, key.find('\n'));
}

void load_find_record(const std::string& place, const std::string& problem_key, const std::string& text) {
  if (!text.empty() && !FindRecord::parse(text))
    throw std::invalid_argument("not a find record of this version of dlbackend: " + text.substr(0, 80));
  if (place.empty() || place.find('\n') != std::string::npos)
    throw std::invalid_argument("not a place of find records: '" + place + "'");
  Loaded& given = loaded();
  {
    std::lock_guard<std::mutex> lock(given.mutex);
    given.texts.insert_or_assign(place + "\n" + problem_key, text);
    given.places.insert(place);
  }
  forget_choices();
}

void drop_find_records() {
  Loaded& given = loaded();
  {
    std::lock_guard<std::mutex> lock(given.mutex);
    given.texts.clear();
    given.places.clear();
  }
  forget_choices();
}

std::string FindRecord::text() const {
  std::string out = kFindMagic;
  out += " 1 " + version + "\nconsidered";
  for (const std::string& name : considered) out += " " + name;
  out += "\n";
  for (const FindResult& r : results) {
    out += r.solver + " " + config_text(r.config) + " " + number_text(r.time, std::chars_format::fixed, 2) +
           " " + std::to_string(r.workspace) + " " + number_text(r.error, std::chars_format::general, 3) +
           "\n";
  }
  return out;
}

std::optional<FindRecord> FindRecord::parse(const std::string& text) {
  std::istringstream lines(text);
  FindRecord record;
  std::string line, word;
  int format = 0;
  if (!std::getline(lines, line)) return std::nullopt;
  if (std::istringstream in(line);
      !(in >> word >> format >> record.version) || word != kFindMagic || format != 1)
    return std::nullopt;
  if (!std::getline(lines, line)) return std::nullopt;
  std::istringstream considered(line);
  if (!(considered >> word) || word != "considered") return std::nullopt;
  while (considered >> word) record.considered.push_back(word);
  while (std::getline(lines, line)) {
    FindResult r;
    std::istringstream in(line);
    in.imbue(std::locale::classic());
    std::string config;
    if (!(in >> r.solver >> config >> r.time >> r.workspace >> r.error)) return std::nullopt;
    const auto parsed = parse_config(config);
    if (!parsed || !std::isfinite(r.time) || r.time < 0) return std::nullopt;
    r.config = *parsed;
    record.results.push_back(r);
  }
  return record;
}

bool FindRecord::of_another_driver() const {
  return version.find(kWithDriver) != std::string::npos;
}

std::optional<FindRecord> load_record(const cl::Device& device, const std::string& problem_key) {
  const std::string key = cl::find_key(device, problem_key);
  auto text = loaded_text(key);
  if (!text) text = cl::find_disk_cache().load(key);
  if (text) return FindRecord::parse(*text);
  text = cl::find_disk_cache().load_from_packs(cl::find_key_of_any_driver(device, problem_key));
  if (!text) return std::nullopt;
  auto record = FindRecord::parse(*text);
  std::string driver = device.driver_version;
  std::replace(driver.begin(), driver.end(), ' ', '_');  // the record's words end at spaces
  if (record && record->version == std::string(cl::library_version()) + kWithDriver + driver)
    record->version = cl::library_version();
  return record;
}

void store_record(const cl::Device& device, const std::string& problem_key, const FindRecord& record) {
  cl::find_disk_cache().store(cl::find_key(device, problem_key), record.text());
}

}  // namespace dlb::solver
