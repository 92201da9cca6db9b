"""What tests of convolutions and products share: small convolutions with groups, strides, dilation and one tap, a net
of two of them, and whether a solver is for the device.
"""

import torch
import torch.nn.functional as F
from torch import nn

from dlbackend import _C

SMALL_CONVS = [  # n, c, k, groups, size, filter, stride, padding, dilation
    (2, 8, 16, 1, (9, 10), 3, 1, 1, 1),
    (2, 20, 24, 1, (12, 7), 1, 1, 0, 1),
    (1, 6, 6, 6, (20, 21), 3, 2, 1, 1),
    (2, 8, 12, 4, (11, 13), 3, 1, 2, 2),
    (3, 40, 72, 1, (4, 3), 3, 1, 1, 1),
]


def why_not(solver: str, key: str) -> str:
    """Why a solver is not for the problem on this device; "applicable" where it is."""
    if not torch.ocl.is_available():
        return "no device"
    lines = (line.strip().split(": ", 1) for line in _C.explain_problem(key).splitlines()[1:])
    return dict(lines)[solver]


class Residual(nn.Module):
    """Two convolutions, one of them with groups, with an activation and a sum behind them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, groups=2)

    def forward(self, x):
        return F.relu(self.second(F.silu(self.first(x))) + x)
