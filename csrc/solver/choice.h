// The choices for the problems that this process met.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "solver/op.h"

namespace dlb::solver {

class Search;

// The solution that runs for a problem now. It never changes but for its counts: a better one replaces it in
// the table.
struct Choice {
  SolutionPtr taken;
  SolutionPtr reusable;            // the fastest that takes sizes as arguments
  std::shared_ptr<Search> search;  // null when there is none
  // Runs that are left until the choice is looked at again; 0 or less means never.
  mutable std::atomic<int64_t> runs_to_search{0};
  // Taken from another size of its bucket, without asking the store.
  bool from_bucket = false;
  // Taken because it was built already, or is the reference. When the problem comes again, what would have
  // been taken is built in the background, and then takes its place.
  bool fallback = false;
  mutable std::atomic<uint32_t> last_run{0};  // in rounds, see run_round()
  // Of a problem with rows behind it: whether it is faster to compute these in a launch of their own.
  // kTrying: it may be, once the problem without its rows has been measured.
  enum class Apart : uint8_t { kUnknown, kTrying, kNo, kYes };
  mutable std::atomic<Apart> apart{Apart::kUnknown};
};
using ChoicePtr = std::shared_ptr<const Choice>;

ChoicePtr make_choice(SolutionPtr taken, SolutionPtr reusable, std::shared_ptr<Search> search = nullptr,
                      bool fallback = false);

// Whether nothing is left to choose or to measure.
bool is_settled(const Choice& choice);

// The choice of the process's find mode, or null.
ChoicePtr known_choice(const Problem& problem);
// The choice by estimate alone, for while determinism is asked for, or null.
ChoicePtr known_deterministic_choice(const Problem& problem);

// The number of times that choices became void, by a new mode or a forced solver: a choice that was begun in
// an earlier generation is not remembered.
uint32_t choice_generation();
void remember_choice(const Problem& problem, const ChoicePtr& choice);
void remember_choice(const Problem& problem, const ChoicePtr& choice, uint32_t generation);
void remember_deterministic_choice(const Problem& problem, const ChoicePtr& choice, uint32_t generation);
// Puts `next` in the place of `expected`, unless that was forgotten or replaced meanwhile. Returns whether it
// did.
bool replace_choice(const Problem& problem, const ChoicePtr& expected, const ChoicePtr& next);
// Forgets all choices, including those by size bucket.
void forget_choices();

// Counts the programs made for single problems, so that a choice can tell how long ago it last ran.
uint32_t run_round();
// Bounds the programs made for single problems: the least recently run is given up when a new one comes.
void note_specialised(const Problem& problem, const ChoicePtr& choice);

// The choice that was taken last for a problem of the same size bucket. A size that never comes again is not
// worth a key, a look into the store and every solver's estimate: with dozens of problems to an image, they
// would take longer than its launches.
struct BucketChoice {
  const AnySolver* solver = nullptr;
  Config config;
};
std::optional<BucketChoice> bucket_choice(const Problem& problem);
void note_bucket_choice(const Problem& problem, const Solution& solution);

// Problems that choices are known for.
std::vector<StoredProblem> solved();
// Problems forgotten because the tables were full, and specialised solutions given up.
uint64_t evicted_choices();

}  // namespace dlb::solver
