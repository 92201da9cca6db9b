// The entry of the find store for a problem, as a choice.
#pragma once
#include <optional>
#include <string>

#include "solver/candidates.h"
#include "solver/choice.h"
#include "solver/find_record.h"
#include "solver/settings.h"

namespace dlb::solver {

// The problem's record. Nothing where the solution to take is of a solver, or a revision of one, that is no
// more: the next one measured may be several times slower than what an estimate would choose.
std::optional<FindRecord> valid_record(const Problem& problem, const cl::Device& device,
                                       const std::string& key);

// The solver of a stored result, if it is still what it was, has the config and may be taken; else null.
const AnySolver* usable_solver(const FindResult& result, const Problem& problem, const cl::Device& device,
                               const Preference& preference);

// The solver and config that a problem would begin with: the fastest that the store knows, but for what is
// compiled for the problem's sizes, else the lowest estimate's. A null solver where there is none.
struct FirstSolution {
  const AnySolver* solver = nullptr;
  Config config;
};
FirstSolution first_solution(const Problem& problem, const cl::Device& device);

// The fastest stored solution that compiles nothing for the problem's sizes starts; a faster one of a program
// of its own is fetched behind it. Null where the store knows nothing that can be taken.
ChoicePtr choose_from_store(const Problem& problem, cl::Device& device, const std::string& key);

// A search behind the solution taken, or null when there is nothing to try.
std::shared_ptr<Search> make_search(const Problem& problem, cl::Device& device, const std::string& key,
                                    SolutionPtr taken, std::vector<Candidate> others, uint32_t runs = 0);

// Says at verbosity 1 what was found, and how.
void log_found(const char* how, const cl::Device& device, const std::string& key, const Solution& solution,
               const std::string& others = "");

}  // namespace dlb::solver
