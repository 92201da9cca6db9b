// Ops that have solvers. A primitive registers each of its ops once, as an OpOf<its problem type>; the
// framework finds by it everything that it must know of a problem.
#pragma once
#include <mutex>
#include <string>
#include <vector>

#include "solver/problem.h"
#include "solver/problem_key.h"
#include "solver/solver.h"

namespace dlb {
class Stream;
}
namespace dlb::solver {

// The setting of PyTorch that says whether an op's float32 operands may be rounded to TF32.
enum class Tf32Setting : uint8_t { kNever, kMatmul, kConvolution };

// A part of a problem's result that is itself a problem, for comparing a solver with the reference solver
// where computing all would take too long. `shift` is added to the operands' offsets.
template <class P>
struct CheckWindow {
  P problem;
  typename P::Operands shift{};
};
struct StoredCheckWindow {
  StoredProblem problem;
  StoredOperands shift;
};

class Op {
 public:
  virtual ~Op() = default;
  Op(const Op&) = delete;

  // "conv_bwd_data": what DLBACKEND_SOLVER, keys and profiles call it.
  const char* name() const noexcept { return name_; }
  // Its place in ops().
  size_t index() const noexcept { return index_; }
  size_t problem_bytes() const noexcept { return problem_bytes_; }
  size_t operand_bytes() const noexcept { return operand_bytes_; }
  Tf32Setting tf32_setting() const noexcept { return tf32_setting_; }

  // The solvers in order of preference: where estimates are equal, the first is taken. The last is the
  // reference, the plainest kernel, which is right for every problem of the op.
  const std::vector<const AnySolver*>& solvers() const;
  const AnySolver& reference() const { return *solvers().back(); }

  // "gemm:float32 b=1 m=64 ...": the same text on every machine, without the device's number.
  virtual std::string key(const Problem& problem) const = 0;
  // The problem of a key that begins with this op. Throws std::invalid_argument for text that key() does not
  // make.
  virtual StoredProblem parse(const std::string& key, int device) const = 0;

  virtual std::vector<Span> spans(const Problem& problem) const = 0;
  // Small windows at both ends of the result. None where even one result takes the reference too long.
  virtual std::vector<StoredCheckWindow> check_windows(const Problem& problem) const = 0;
  // A problem of the same kind with sizes that fit any device's memory and operands without gaps. Solvers are
  // verified with it where the problem itself is too large. The problem itself where the op defines none.
  virtual StoredProblem reduced(const Problem& problem) const = 0;
  // Hashes of what networks hardly change between calls, without sizes that may follow the input: one for
  // each way to tell those.
  virtual std::vector<uint64_t> shape_classes(const Problem& problem) const = 0;
  // Hash of the problem with such sizes as far as choices depend on them.
  virtual uint64_t size_bucket(const Problem& problem) const = 0;
  // What, besides op and dtype, tells kernels apart that must each be verified; "" where nothing does.
  virtual std::string kernel_variant(const Problem& problem) const = 0;
  // Whether the solver with the lowest estimate may run before it is verified: true where small problems run
  // it without asking anyway.
  virtual bool trusts_first_choice() const = 0;
  // Operands with their defaults, whose buffers the caller sets.
  virtual StoredOperands operands() const = 0;
  // Enqueues what turns the random inputs of a trial into possible ones, such as indices in their windows.
  virtual void make_possible(const Problem& problem, const Operands& operands, Stream& stream) const = 0;

 protected:
  Op(const char* name, Tf32Setting tf32, size_t problem_bytes, size_t operand_bytes);

 private:
  virtual std::vector<const AnySolver*> make_solvers() const = 0;
  friend void add_solver(const Op& op, const AnySolver& solver);

  const char* const name_;
  const Tf32Setting tf32_setting_;
  const size_t problem_bytes_, operand_bytes_;
  const size_t index_;
  mutable std::once_flag made_;  // solvers_, at first use: other files may define them
  mutable std::vector<const AnySolver*> solvers_, added_;
};

// Puts a solver of another library before the op's own; `solver` must be of the op's problem type and outlive
// the process's use of the op. To be called before solvers() is, from one thread.
void add_solver(const Op& op, const AnySolver& solver);

// All ops, in the order in which they were registered.
const std::vector<const Op*>& ops();
// The op of that name, or null.
const Op* find_op(const std::string& name);
// The op that a key begins with. Throws std::invalid_argument when there is none.
const Op& op_of_key(const std::string& key);

inline std::string key(const Problem& problem) {
  return problem.op->key(problem);
}

// An op whose problems are of type P. P has
//   using Operands                                                   the type of its operands
//   template <Self, Visit> static void visit(Self&, Visit&&)         names its fields, in the order of keys
//   std::vector<Span> spans() const
//   std::vector<CheckWindow<P>> check_windows() const
//   std::vector<uint64_t> shape_classes() const
//   uint64_t size_bucket() const
// and may have
//   P reduced() const
//   std::string kernel_variant() const
//   void make_possible(const Operands&, Stream&) const
//   static constexpr bool kTrustsFirstChoice
template <class P>
class OpOf final : public Op {
 public:
  using SolverList = std::vector<const Solver<P>*> (*)();
  // `prototype`: what all problems of the op have in common, a direction for instance.
  OpOf(const char* name, SolverList solvers, Tf32Setting tf32 = Tf32Setting::kNever, P prototype = {})
      : Op(name, tf32, sizeof(P), sizeof(typename P::Operands)),
        solver_list_(solvers),
        prototype_(prototype) {
    prototype_.op = this;
    static_assert(std::has_unique_object_representations_v<P>, "problems are compared by their bytes");
    static_assert(sizeof(P) % 8 == 0 && sizeof(P) <= kMostProblemBytes);
    static_assert(std::is_trivially_copyable_v<typename P::Operands>);
  }

  // A problem of this op, whose sizes the caller sets.
  P make() const { return prototype_; }

  std::string key(const Problem& problem) const override {
    KeyWriter writer(name(), problem.dtype);
    P::visit(typed(problem), writer);
    return writer.finish();
  }
  StoredProblem parse(const std::string& key, int device) const override {
    P problem = make();
    problem.device = static_cast<int8_t>(device);
    KeyReader reader(key, name(), problem.dtype);
    P::visit(problem, reader);
    reader.finish();
    check_tf32(problem);
    if constexpr (requires { problem.check(); }) problem.check();
    return StoredProblem(problem);
  }
  std::vector<Span> spans(const Problem& problem) const override { return typed(problem).spans(); }
  std::vector<StoredCheckWindow> check_windows(const Problem& problem) const override {
    std::vector<StoredCheckWindow> list;
    for (const CheckWindow<P>& window : typed(problem).check_windows())
      list.push_back({StoredProblem(window.problem), StoredOperands(window.shift)});
    return list;
  }
  StoredProblem reduced(const Problem& problem) const override {
    if constexpr (requires { typed(problem).reduced(); })
      return StoredProblem(typed(problem).reduced());
    else
      return StoredProblem(problem);
  }
  std::vector<uint64_t> shape_classes(const Problem& problem) const override {
    return typed(problem).shape_classes();
  }
  uint64_t size_bucket(const Problem& problem) const override { return typed(problem).size_bucket(); }
  std::string kernel_variant(const Problem& problem) const override {
    if constexpr (requires { typed(problem).kernel_variant(); })
      return typed(problem).kernel_variant();
    else
      return problem.tf32 ? " tf32" : "";
  }
  bool trusts_first_choice() const override {
    if constexpr (requires { P::kTrustsFirstChoice; })
      return P::kTrustsFirstChoice;
    else
      return false;
  }
  StoredOperands operands() const override { return StoredOperands(typename P::Operands{}); }
  void make_possible(const Problem& problem, const Operands& operands, Stream& stream) const override {
    if constexpr (requires(const P& p, const typename P::Operands& o) { p.make_possible(o, stream); })
      typed(problem).make_possible(static_cast<const typename P::Operands&>(operands), stream);
  }

 private:
  static const P& typed(const Problem& problem) { return static_cast<const P&>(problem); }
  std::vector<const AnySolver*> make_solvers() const override {
    const auto list = solver_list_();
    return {list.begin(), list.end()};
  }

  const SolverList solver_list_;
  P prototype_;
};

}  // namespace dlb::solver
