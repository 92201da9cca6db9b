#include "solver/choice.h"

#include <algorithm>
#include <mutex>

#include "solver/invoker_cache.h"
#include "solver/recent_map.h"
#include "solver/search.h"
#include "solver/stats.h"

namespace dlb::solver {
namespace {

constexpr size_t kMostSpecialised = 256;  // problems that have a program of their own at one time
constexpr size_t kBuckets = 4096;         // size buckets in a generation of the map

std::atomic<uint32_t> g_round{0};
std::atomic<uint32_t> g_generation{0};

using Cache = InvokerCache<Choice>;

// These tables are never destroyed, because threads may run ops while the process exits.
Cache& cache() {
  static auto* instance = new Cache;
  return *instance;
}
Cache& deterministic_cache() {
  static auto* instance = new Cache;
  return *instance;
}

struct BucketChoices {
  std::mutex mutex;
  RecentMap<uint64_t, BucketChoice> known{kBuckets};
};
BucketChoices& bucket_choices() {
  static auto* instance = new BucketChoices;
  return *instance;
}

}  // namespace

ChoicePtr make_choice(SolutionPtr taken, SolutionPtr reusable, std::shared_ptr<Search> search,
                      bool fallback) {
  auto choice = std::make_shared<Choice>();
  choice->taken = std::move(taken), choice->reusable = std::move(reusable);
  choice->search = std::move(search), choice->fallback = fallback;
  return choice;
}

bool is_settled(const Choice& choice) {
  return !choice.search && choice.runs_to_search.load(std::memory_order_relaxed) <= 0;
}

ChoicePtr known_choice(const Problem& problem) {
  return cache().find(problem);
}
ChoicePtr known_deterministic_choice(const Problem& problem) {
  return deterministic_cache().find(problem);
}

uint32_t choice_generation() {
  return g_generation;
}
void remember_choice(const Problem& problem, const ChoicePtr& choice) {
  cache().insert(problem, choice);
}
void remember_choice(const Problem& problem, const ChoicePtr& choice, uint32_t generation) {
  cache().insert_if(problem, choice, [&] { return generation == g_generation; });
}
void remember_deterministic_choice(const Problem& problem, const ChoicePtr& choice, uint32_t generation) {
  deterministic_cache().insert_if(problem, choice, [&] { return generation == g_generation; });
}
bool replace_choice(const Problem& problem, const ChoicePtr& expected, const ChoicePtr& next) {
  return cache().replace(problem, expected, next);
}

void forget_choices() {
  g_generation++;
  cache().clear();
  deterministic_cache().clear();
  BucketChoices& choices = bucket_choices();
  std::lock_guard<std::mutex> lock(choices.mutex);
  choices.known.clear();
}

uint32_t run_round() {
  return g_round.load(std::memory_order_relaxed);
}

void note_specialised(const Problem& problem, const ChoicePtr& choice) {
  using Entry = std::pair<StoredProblem, ChoicePtr>;
  static std::mutex mutex;
  static auto* list = new std::vector<Entry>;
  std::lock_guard<std::mutex> lock(mutex);
  choice->last_run = ++g_round;  // the problem is about to run
  list->emplace_back(StoredProblem(problem), choice);
  if (list->size() <= kMostSpecialised) return;
  const auto oldest = std::min_element(list->begin(), list->end(), [](const Entry& a, const Entry& b) {
    return a.second->last_run < b.second->last_run;
  });
  const auto [old, its_choice] = *oldest;
  list->erase(oldest);
  if (replace_choice(*old, its_choice, make_choice(its_choice->reusable, its_choice->reusable)))
    find_stats().evicted++;
}

std::optional<BucketChoice> bucket_choice(const Problem& problem) {
  const uint64_t bucket = problem.op->size_bucket(problem);
  BucketChoices& choices = bucket_choices();
  std::lock_guard<std::mutex> lock(choices.mutex);
  const BucketChoice* choice = choices.known.find(bucket);
  return choice ? std::optional(*choice) : std::nullopt;
}

void note_bucket_choice(const Problem& problem, const Solution& solution) {
  const uint64_t bucket = problem.op->size_bucket(problem);
  BucketChoices& choices = bucket_choices();
  std::lock_guard<std::mutex> lock(choices.mutex);
  choices.known.insert(bucket, BucketChoice{solution.solver, solution.config});
}

std::vector<StoredProblem> solved() {
  return cache().problems();
}

uint64_t evicted_choices() {
  return find_stats().evicted + cache().evicted();
}

}  // namespace dlb::solver
