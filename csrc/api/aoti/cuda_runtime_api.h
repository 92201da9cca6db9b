// PyTorch's runtime for packages includes both.
#pragma once
#include <cuda.h>
