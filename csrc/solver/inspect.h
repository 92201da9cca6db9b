// The functions by which users inspect choices: explanations, lists of solutions, tuning, records.
#pragma once
#include <string>
#include <vector>

namespace dlb::solver {

// Solver taken for a problem, and for every solver "applicable" or why it is not; one a line. Throws
// std::invalid_argument for a key that no problem prints.
std::string explain(const std::string& key, int device);

// The known facts of a problem's solutions, one a line, tab-separated: solver, config, "reusable" or
// "specialised", microseconds (or "-"), workspace bytes, error (or "-"), state. Does not run anything.
std::string solutions(const std::string& key, int device);

// Measures all solvers of a problem now, whatever the mode, on synthetic data; takes and stores the best.
// Unless exhaustive, only those that mode "normal" would measure. Throws c10::Error where none could be
// measured.
void tune(const std::string& key, int device, bool exhaustive);

// The find store's record of a problem, empty when there is none; and storing one: its text must be one that
// a find record prints, else it is found unusable when it is read. Forgets what was chosen so far.
std::string find_record(const std::string& key, int device);
void store_find_record(const std::string& key, const std::string& text, int device);

// Keys of the problems that this process solved.
std::vector<std::string> solved_problems();

}  // namespace dlb::solver
