"""Ops that get a tensor of another device than their others: `CALLS[name](here, there)` calls one, which must raise
RuntimeError with a match for WORDS."""

import torch
from torch.nn import functional as F

ones = torch.ones

WORDS = r"same device|Expected out tensor to have device"


def _indices(*size, device):
    return torch.zeros(size, dtype=torch.int64, device=device)


def _backward(output, gradient):
    # Autograd itself compares the devices of a gradient and what it belongs to, so ops are called by their names.
    return torch.ops.aten._softmax_backward_data(gradient, output, 1, torch.float32)


def _max_pool_backward(here, there):
    x = ones(1, 1, 4, 4, device=here)
    y = ones(1, 1, 2, 2, device=here)
    i = _indices(1, 1, 2, 2, device=there)
    return torch.ops.aten.max_pool2d_with_indices_backward(y, x, [2, 2], [2, 2], [0, 0], [1, 1], False, i)


def _lstm(here, there):
    cell = torch.nn.LSTMCell(3, 3, device=here)
    return cell(ones(2, 3, device=here), (ones(2, 3, device=there), ones(2, 3, device=there)))


CALLS = {
    "add": lambda here, there: ones(3, device=here) + ones(3, device=there),
    "mm": lambda here, there: ones(3, 3, device=here) @ ones(3, 3, device=there),
    "large mm": lambda here, there: ones(256, 256, device=here) @ ones(256, 256, device=there),
    "addmm's bias": lambda here, there: F.linear(
        ones(2, 3, device=here), ones(4, 3, device=here), ones(4, device=there)
    ),
    "bmm": lambda here, there: torch.bmm(ones(2, 3, 3, device=here), ones(2, 3, 3, device=there)),
    "conv's weight": lambda here, there: F.conv2d(ones(1, 3, 8, 8, device=here), ones(4, 3, 3, 3, device=there)),
    "conv's bias": lambda here, there: F.conv2d(
        ones(1, 3, 8, 8, device=here), ones(4, 3, 3, 3, device=here), ones(4, device=there)
    ),
    "cross_entropy's target": lambda here, there: F.cross_entropy(ones(2, 3, device=here), _indices(2, device=there)),
    "cross_entropy's weight": lambda here, there: F.cross_entropy(
        ones(2, 3, device=here), _indices(2, device=here), ones(3, device=there)
    ),
    "cross_entropy's target of images": lambda here, there: F.cross_entropy(
        ones(2, 3, 4, 4, device=here), _indices(2, 4, 4, device=there)
    ),
    "nll_loss without reduction": lambda here, there: F.nll_loss(
        ones(2, 3, device=here), _indices(2, device=there), reduction="none"
    ),
    "batch_norm's statistics": lambda here, there: F.batch_norm(
        ones(2, 3, 4, 4, device=here), ones(3, device=there), ones(3, device=there), training=True
    ),
    "batch_norm's statistics in evaluation": lambda here, there: F.batch_norm(
        ones(2, 3, 4, 4, device=here), ones(3, device=there), ones(3, device=there)
    ),
    "batch_norm's weight": lambda here, there: F.batch_norm(
        ones(2, 3, 4, 4, device=here), None, None, ones(3, device=there), ones(3, device=there), training=True
    ),
    "layer_norm's weight": lambda here, there: F.layer_norm(ones(2, 3, device=here), (3,), ones(3, device=there)),
    "layer_norm's bias": lambda here, there: F.layer_norm(
        ones(2, 3, device=here), (3,), ones(3, device=here), ones(3, device=there)
    ),
    "group_norm's weight": lambda here, there: F.group_norm(ones(2, 4, 3, device=here), 2, ones(4, device=there)),
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "softmax's gradient": lambda here, there: _backward(ones(2, 3, device=here), ones(2, 3, device=there)),
    "softmax's result": lambda here, there: _backward(ones(2, 3, device=there), ones(2, 3, device=here)),
    "bincount's weights": lambda here, there: torch.bincount(_indices(3, device=here), ones(3, device=there)),
    "embedding's indices": lambda here, there: F.embedding(_indices(3, device=there), ones(4, 2, device=here)),
    "embedding's weight": lambda here, there: F.embedding(_indices(3, device=here), ones(4, 2, device=there)),
    "index_select": lambda here, there: ones(3, device=here).index_select(0, _indices(1, device=there)),
    "gather": lambda here, there: ones(3, device=here).gather(0, _indices(1, device=there)),
    "scatter_add": lambda here, there: ones(3, device=here).scatter_add(
        0, _indices(1, device=here), ones(1, device=there)
    ),
    "searchsorted": lambda here, there: torch.searchsorted(ones(3, device=here), ones(2, device=there)),
    "cat": lambda here, there: torch.cat([ones(3, device=here), ones(3, device=there)]),
    "an LSTM's state": _lstm,
    "where": lambda here, there: torch.where(ones(3, device=here) > 0, ones(3, device=here), ones(3, device=there)),
    "where's condition": lambda here, there: torch.where(
        ones(3, device=there) > 0, ones(3, device=here), ones(3, device=here)
    ),
    "solve": lambda here, there: torch.linalg.solve(torch.eye(3, device=here), ones(3, 1, device=there)),
    "solve_triangular": lambda here, there: torch.linalg.solve_triangular(
        torch.eye(3, device=here), ones(3, 1, device=there), upper=True
    ),
    "lu_solve's right side": lambda here, there: torch.linalg.lu_solve(
        torch.eye(3, device=here), _indices(3, device=here).int() + 1, ones(3, 1, device=there)
    ),
    "lu_solve's pivots": lambda here, there: torch.linalg.lu_solve(
        torch.eye(3, device=here), _indices(3, device=there).int() + 1, ones(3, 1, device=here)
    ),
    "softmax's out": lambda here, there: torch.softmax(ones(2, 3, device=here), 1, out=ones(2, 3, device=there)),
    "sum's out": lambda here, there: torch.sum(ones(2, 3, device=here), 1, out=ones(2, device=there)),
    "sort's out": lambda here, there: torch.sort(
        ones(3, device=here), out=(ones(3, device=there), _indices(3, device=there))
    ),
    "foreach": lambda here, there: torch._foreach_add([ones(3, device=here)], [ones(3, device=there)]),
    "prelu": lambda here, there: F.prelu(ones(2, 3, device=here), ones(3, device=there)),
}
