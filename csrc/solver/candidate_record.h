// Find records from what candidates showed.
#pragma once
#include <string>
#include <vector>

#include "solver/candidates.h"
#include "solver/find_record.h"

namespace dlb::solver {

// The record of what candidates showed; it names all solvers that may be taken, measured or not.
FindRecord record_of(const Problem& problem, const cl::Device& device,
                     const std::vector<Candidate>& candidates);
// Stores it; where a solver is forced, with what a record that is there knows of others.
void remember(const Problem& problem, const cl::Device& device, const std::string& key,
              const FindRecord& record);

}  // namespace dlb::solver
