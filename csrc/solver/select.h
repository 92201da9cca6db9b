// Chooses a solution for a problem: by what the find store knows, by what another size of its bucket runs, by
// measuring, or by estimate, as the find mode says.
#pragma once
#include <c10/util/FunctionRef.h>

#include <functional>
#include <optional>
#include <string>

#include "solver/candidates.h"
#include "solver/choice.h"
#include "solver/find_record.h"

namespace dlb::solver {

// What a graph that is captured runs of a problem, from now on in all its replays: the choice as it stands,
// also where a search has not ended; but where that only stands in for what is being built, or cannot be
// captured, what the store knows or the lowest estimate is built and checked here and now. Throws as
// choose().
ChoicePtr choose_for_capture(const Problem& problem, cl::Device& device);

// Chooses and remembers. One thread chooses for a problem; others that meet it meanwhile wait for that.
// Throws c10::Error with every solver's reason where none can be taken.
ChoicePtr choose(const Problem& problem, cl::Device& device);
// The choice by estimate alone, among solvers that give equal bits in every run.
ChoicePtr choose_deterministic(const Problem& problem, cl::Device& device);
// Chooses for a problem that has run as often as its choice says, or begins a search.
ChoicePtr reconsider(const Problem& problem, cl::Device& device, const ChoicePtr& choice);
// Takes over what the choice's search has found out.
void adopt_search(const Problem& problem, const ChoicePtr& choice);
// Measures before the first run what is estimated below `most` times the lowest estimate. Null when there is
// no memory for it.
ChoicePtr choose_by_measuring(const Problem& problem, cl::Device& device, const std::string& key,
                              double most);

// Whether `plain`, the problem without its rows, and a launch of these that moves bytes() take less time than
// the problem's choice, by what was measured. Also true while the plain problem has to run so that it is
// measured, which is where the estimates let it gain.
bool gains_apart(const Problem& problem, const Choice& choice, const Problem& plain,
                 c10::function_ref<uint64_t()> bytes, cl::Device& device);

// The solution that needs least memory and less than `bytes`, for when there is none for the workspace of the
// one taken; null when there is none. As right and as deterministic as any that is chosen.
SolutionPtr least_memory(const Problem& problem, cl::Device& device, uint64_t bytes);

// Asks for the programs that choosing would build for the problem, and chooses nothing: for while programs
// are recorded (cl::Recording).
void ask_for_programs(const Problem& problem, cl::Device& device);

}  // namespace dlb::solver
