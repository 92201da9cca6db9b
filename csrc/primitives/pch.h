// Precompiled header: what nearly every solver needs, parsed once.
#pragma once
#include "cl/device.h"
#include "cl/kernel.h"
#include "codegen/dtype.h"
#include "runtime/tensor.h"
#include "solver/solver.h"
