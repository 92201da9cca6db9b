// What a network is expected to want after a convolution of it had to be compiled.
#pragma once
#include "primitives/conv/problem.h"

namespace dlb::solver {

// Has the programs of the problems compiled that follow `problem`: its gradients, as far as they are wanted,
// and, the first time for a dtype and layout, convolutions of the sizes that most networks have. Never waits.
void expect_what_follows(const ConvProblem& problem, bool input_grad, bool weight_grad);

}  // namespace dlb::solver
