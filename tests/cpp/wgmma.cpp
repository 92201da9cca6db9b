// kernels/common/wgmma.h: where a work-item's sums lie, and that they are the left operand of the next
// product as they are. The layouts are written here as the PTX ISA has them ("Register Fragments for
// wgmma.mma_async.m64nNk16").
#include "kernels/common/wgmma.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

namespace {

constexpr int kRows = 64, kItems = 128, kStep = 128, kDim = 64;

// The place of a work-item's registers: of D's element i, and of both halves of A's word w of the instruction
// that begins at k.
struct Place {
  int row, column;
  bool operator==(const Place&) const = default;
};
Place place_of_sum(int item, int i) {
  const int warp = item / 32, lane = item % 32;
  return {warp * 16 + lane / 4 + 8 * ((i % 4) / 2), 8 * (i / 4) + lane % 4 * 2 + i % 2};
}
Place place_of_half(int item, int k, int element) {  // A's eight elements: 0, 1, 4, 5 are of the upper row
  const int warp = item / 32, lane = item % 32;
  const bool lower = element / 2 % 2 == 1, right = element >= 4;
  return {warp * 16 + lane / 4 + (lower ? 8 : 0), k + lane % 4 * 2 + element % 2 + (right ? 8 : 0)};
}

}  // namespace

TEST_CASE("sums lie where the instruction has them") {
  for (int item = 0; item < 2 * kItems; item++)
    for (int i = 0; i < kStep / 2; i++) {
      const Place place = place_of_sum(item % kItems, i);
      CHECK(wgmma_row(item, i) == place.row + item / kItems * kRows);
      CHECK(wgmma_column(item, i) == place.column);
      CHECK(wgmma_column(item, i) == wgmma_column(item, 0) + wgmma_column(0, i));
    }
}

TEST_CASE("a warpgroup's sums are each element of the block once") {
  std::vector<int> seen(kRows * kStep);
  for (int item = 0; item < kItems; item++)
    for (int i = 0; i < kStep / 2; i++) seen[wgmma_row(item, i) * kStep + wgmma_column(item, i)]++;
  for (const int count : seen) CHECK(count == 1);
}

TEST_CASE("words of sums are left operands of the next product") {
  for (int item = 0; item < kItems; item++)
    for (int word = 0; word < kStep / 4; word++)
      for (int half = 0; half < 2; half++) {
        const int i = wgmma_sum_of_word(word) + half;
        const Place place = place_of_half(item, word / 4 * 16, word % 4 * 2 + half);
        CHECK(place == Place{wgmma_row(item, i), wgmma_column(item, i)});
      }
}

// A block of attention as the kernel divides it between work-items: rows have two of a warp's sums in each
// group of eight columns, four lanes have a row.
TEST_CASE("attention by fragments is attention") {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  std::vector<double> scores(kRows * kStep), values(kStep * kDim), want(kRows * kDim), got(kRows * kDim);
  for (double& x : scores) x = normal(random);
  for (double& x : values) x = normal(random);
  for (int r = 0; r < kRows; r++) {
    double sum = 0;
    for (int k = 0; k < kStep; k++) sum += std::exp(scores[r * kStep + k]);
    for (int d = 0; d < kDim; d++)
      for (int k = 0; k < kStep; k++)
        want[r * kDim + d] += std::exp(scores[r * kStep + k]) / sum * values[k * kDim + d];
  }
  std::array<std::array<double, kStep / 2>, kItems> registers{};
  for (int item = 0; item < kItems; item++)
    for (int i = 0; i < kStep / 2; i++) {
      const Place place = place_of_sum(item, i);
      registers[item][i] = std::exp(scores[place.row * kStep + place.column]);
    }
  std::vector<double> left(kRows * kStep);  // the second product's operand, as the instructions read it
  for (int item = 0; item < kItems; item++) {
    std::array<double, 2> sums{};
    for (int lane = item / 4 * 4; lane < item / 4 * 4 + 4; lane++)
      for (int i = 0; i < kStep / 2; i++) sums[i / 2 % 2] += registers[lane][i];
    for (int word = 0; word < kStep / 4; word++)
      for (int half = 0; half < 2; half++) {
        const int i = wgmma_sum_of_word(word) + half;
        const Place place = place_of_half(item, word / 4 * 16, word % 4 * 2 + half);
        left[place.row * kStep + place.column] = registers[item][i] / sums[i / 2 % 2];
      }
  }
  for (int r = 0; r < kRows; r++)
    for (int d = 0; d < kDim; d++)
      for (int k = 0; k < kStep; k++) got[r * kDim + d] += left[r * kStep + k] * values[k * kDim + d];
  for (size_t i = 0; i < got.size(); i++) CHECK(got[i] == doctest::Approx(want[i]));
}
