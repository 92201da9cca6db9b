"""Keys of problems are how stores on disk look records up: their text stays the same from release to release."""

import pytest
import torch
import torch.nn.functional as F
from common import DEVICE

import dlbackend
from dlbackend import _C


def softmax(x):
    return torch.softmax(x, 1)


def log_softmax(x):
    return torch.log_softmax(x, 0)


def max_pool(x):
    return F.max_pool2d(x, 3, 2, 1)


def avg_pool(x):
    return F.avg_pool2d(x, 3, 2, 1, divisor_override=7)


def amax(x):
    return x.amax(1)


def var_mean(x):
    return torch.var_mean(x, 0)[0]


FLOAT = "types=float32,uint8,uint8,uint8,uint8,float32,uint8,uint8"
IMAGES, WINDOWS = (2, 9, 61, 80), "d=1,1,1,1,0,1 h=61,31,3,2,1,1 w=80,40,3,2,1,1"
POOL = f"xs=43920,4880,0,80,1 ys=11160,1240,0,40,1 n=2 c=9 {WINDOWS}"
STORED = [
    (
        softmax,
        (130, 521),
        f"softmax:float32 outer=130 dim=521 inner=1 log=0 variant=- extents=67730,0,0,0,0,67730,0,0 {FLOAT}",
        "softmax_bwd:float32 outer=130 dim=521 inner=1 log=0 variant=- extents=67730,67730,0,0,0,67730,0,0 "
        "types=float32,float32,uint8,uint8,uint8,float32,uint8,uint8",
    ),
    (
        log_softmax,
        (67, 1030),
        f"softmax:float32 outer=1 dim=67 inner=1030 log=1 variant=- extents=69010,0,0,0,0,69010,0,0 {FLOAT}",
        "softmax_bwd:float32 outer=1 dim=67 inner=1030 log=1 variant=- extents=69010,69010,0,0,0,69010,0,0 "
        "types=float32,float32,uint8,uint8,uint8,float32,uint8,uint8",
    ),
    (
        max_pool,
        IMAGES,
        f"max_pool:float32 {POOL} include_pad=0 divisor=0 variant=- extents=87840,0,0,0,0,22320,22320,0 "
        "types=float32,uint8,uint8,uint8,uint8,float32,int64,uint8",
        f"max_pool_bwd:float32 {POOL} include_pad=0 divisor=0 variant=- extents=22320,22320,0,0,0,87840,0,0 "
        "types=float32,int64,uint8,uint8,uint8,float32,uint8,uint8",
    ),
    (
        avg_pool,
        IMAGES,
        f"avg_pool:float32 {POOL} include_pad=1 divisor=7 variant=- extents=87840,0,0,0,0,22320,0,0 {FLOAT}",
        f"avg_pool_bwd:float32 {POOL} include_pad=1 divisor=7 variant=- extents=22320,0,0,0,0,87840,0,0 {FLOAT}",
    ),
    (
        amax,
        (9, 101, 77),
        "reduce:float32 size=77,9,101,0,0 out=1,77,0,0,0 out2=0,0,0,0,0 in=1,7777,77,0,0 kept=2 dims=3 aligned=1 "
        f"variant=amax extents=69993,0,0,0,0,693,0,0 {FLOAT}",
    ),
    (
        var_mean,
        (1027, 131),
        "reduce:float32 size=131,1027,0,0,0 out=1,0,0,0,0 out2=1,0,0,0,0 in=1,131,0,0,0 kept=1 dims=2 aligned=1 "
        "variant=var_mean extents=134537,0,0,0,0,131,131,0 "
        "types=float32,uint8,uint8,uint8,uint8,float32,float32,uint8",
    ),
]


@pytest.mark.parametrize(("fn", "shape", "keys"), [(fn, shape, keys) for fn, shape, *keys in STORED])
def test_stored_keys(fn, shape, keys):
    _C.force_solver("")
    x = torch.rand(shape, device=DEVICE, requires_grad=True)
    y = fn(x)
    if len(keys) == 2:
        y.backward(torch.ones_like(y))
    assert set(keys) <= set(dlbackend.solvers.problems())
