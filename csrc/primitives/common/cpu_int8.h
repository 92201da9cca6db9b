// What the solvers by a CPU's instructions for integers of 8 bits share: how a gather with signed weights is
// cut into work-items, and its launches; see csrc/kernels/common/cpu_int8.cl.
#pragma once
#include <string>

#include "kernels/common/cpu_int8.h"
#include "kernels/conv/params.h"
#include "primitives/common/epilogue.h"
#include "primitives/common/operand_dtype.h"
#include "solver/solver.h"

namespace dlb::solver {

// A gather whose operands are in 8 bits, where its operands' groups lie, and its blocking.
struct Int8Plan {
  params::Gather gather{};
  params::Int8Product product{};
  int64_t in_extent = 0;  // elements from the first to the one behind the last
  int64_t scratch = 0, blocks = 0, col_blocks = 0;
  double cycles = 0;  // of the slowest core; infinite where scratch does not suffice

  int64_t steps() const { return product.depth / params::INT8_DEPTH; }
  int64_t columns() const;        // of a group, padded to tiles
  uint64_t packed_bytes() const;  // of the weights of all groups
  double pack_cycles() const;     // of one core
};

// Most positions and channels of a block; zeros are the best guess.
struct Int8Config {
  int32_t positions = 0, channels = 0;
  static constexpr const char* kNames[] = {"positions", "channels"};
};

// Chooses the blocking of a plan whose gather, groups and extent are filled in.
Int8Plan int8_plan(Int8Plan plan, const cl::Device& device, const Config& config = {});
// The best guess, and others that are worth measuring.
std::vector<Config> int8_configs(const Int8Plan& plan);

Applicability int8_applicable(const cl::Device& device, OperandDtype input, OperandDtype weights);

class Int8Launch {
 public:
  Int8Launch(const Int8Plan& plan, OperandDtype input, const Epilogue& epilogue, cl::Device& device);
  void pack(Stream& stream, const Buffer& weights, const Buffer& packed);
  // `packed` counts bytes, the others elements.
  void run(Stream& stream, const Buffer& in, const Buffer& packed, const Buffer& out, const Buffer& bias,
           int64_t alpha, const EpilogueOperands& operands);
  // Of packed weights: equal texts are equal forms.
  std::string form() const;

 private:
  const Int8Plan plan_;
  const bool signed_input_;
  const Epilogue epilogue_;
  cl::Kernel& pack_;
  cl::Kernel& compute_;
  cl::Range pack_range_, range_;
};

}  // namespace dlb::solver
