"""Small convolutions that several tests share: with groups, strides, dilation and one tap, and a net of two of them."""

import torch.nn.functional as F
from torch import nn

SMALL_CONVS = [  # n, c, k, groups, size, filter, stride, padding, dilation
    (2, 8, 16, 1, (9, 10), 3, 1, 1, 1),
    (2, 20, 24, 1, (12, 7), 1, 1, 0, 1),
    (1, 6, 6, 6, (20, 21), 3, 2, 1, 1),
    (2, 8, 12, 4, (11, 13), 3, 1, 2, 2),
    (3, 40, 72, 1, (4, 3), 3, 1, 1, 1),
]


class Residual(nn.Module):
    """Two convolutions, one of them with groups, with an activation and a sum behind them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, groups=2)

    def forward(self, x):
        return F.relu(self.second(F.silu(self.first(x))) + x)
