// The results of measuring one problem, as the find store keeps them: a small text, one line per solution.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cl/device.h"
#include "solver/config.h"

namespace dlb::solver {

struct FindResult {
  std::string solver;  // "name@revision"
  Config config;
  double time = 0;         // microseconds
  uint64_t workspace = 0;  // bytes
  double error = 0;        // relative to the largest result
};

struct FindRecord {
  std::string version;  // of the library that measured, and "@" and the driver's if that is not this one
  std::vector<std::string> considered;  // "name@revision" of every solver that was applicable
  std::vector<FindResult> results;      // right ones only: the one to take, then by time

  // A record for any driver that another version than this device's made: its solvers are not yet known to be
  // right here.
  bool of_another_driver() const;

  std::string text() const;
  // Nothing for a text that text() does not make.
  static std::optional<FindRecord> parse(const std::string& text);
};

// The record that the process was given for the problem (load_find_record() of find.h), else the store's.
std::optional<FindRecord> load_record(const cl::Device& device, const std::string& problem_key);
void store_record(const cl::Device& device, const std::string& problem_key, const FindRecord& record);

// The place that find records hold for: a device's identity, compute units and class, as text.
std::string find_place(int device);
// Gives this process a find record that goes before the store's, on every device of that place; an empty text
// hides the store's. Throws std::invalid_argument for another text. Opens no driver.
void load_find_record(const std::string& place, const std::string& key, const std::string& text);
// The store's records hold again.
void drop_find_records();

}  // namespace dlb::solver
