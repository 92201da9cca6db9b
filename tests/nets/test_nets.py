"""Networks end to end: forward, backward and one optimizer step on small inputs against float64 on the CPU.

How far float32 may be off depends on the network. So each runs three times: in float64 on the CPU (the truth), in
float32 on the CPU, and in float32 on the device. Both float32 runs do the same sums in other orders, so their errors
are of one size; the device may have a small multiple of the CPU's, measured over all outputs or all gradients together.

Gradients jump where ReLU's or max pooling's input is within rounding of a tie, and behind small feature maps one unit
that decides otherwise moves them all by some percent, on the CPU in float32 too. So networks with such decisions run
with them, gradients held to those percent, and again with smooth ops in their place, gradients held to rounding.
"""

import copy
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import dlbackend

sys.path.insert(0, str(Path(__file__).parent))
import tv_shim  # noqa: F401  isort: skip  (before torchvision)
import torchvision  # isort: skip

DEVICE = "ocl:0"
# Of the CPU's float32 error; and what both have beside: results are rounded to float32 themselves, about a thousand
# times in a row through a deep network.
TIMES, FLOOR = 8.0, 2e-5
FLIPPED = 0.1


@pytest.fixture(autouse=True)
def _no_fallbacks(monkeypatch):
    monkeypatch.setenv("DLBACKEND_FALLBACK", "error")
    dlbackend.reset_fallback_report()


def without_dropout(model):
    """Dropout would draw other numbers on each device."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def smooth(model):
    """ReLUs and max pooling, where the network has them, replaced by ops with continuous gradients."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, (nn.ReLU, nn.ReLU6)):
                setattr(parent, name, nn.SiLU())
            elif isinstance(module, nn.MaxPool2d):
                setattr(parent, name, nn.AvgPool2d(module.kernel_size, module.stride, module.padding, module.ceil_mode))
    return model


def small_classifier(model):
    """The first layer behind the features sees 1x1 instead of 6x6 or 7x7: a tenth of the weights, the same ops."""
    model.avgpool = nn.AdaptiveAvgPool2d((1, 1))
    for i, layer in enumerate(model.classifier):
        if isinstance(layer, nn.Linear):
            model.classifier[i] = nn.Linear(layer.in_features // (36 if layer.in_features == 9216 else 49), 512)
            break
    for i, layer in reversed(list(enumerate(model.classifier))):
        if isinstance(layer, nn.Linear) and layer.in_features == 4096 and layer.out_features == 4096:
            model.classifier[i] = nn.Linear(512, 512)
        elif isinstance(layer, nn.Linear) and layer.in_features == 4096:
            model.classifier[i] = nn.Linear(512, 10)
    return model


def vision(name, **kwargs):
    return lambda: getattr(torchvision.models, name)(num_classes=10, **kwargs)


class Recurrent(nn.Module):
    """Classifies sequences of tokens by the last state of a two-layer recurrent network."""

    def __init__(self, cell):
        super().__init__()
        self.embedding = nn.Embedding(50, 16, padding_idx=0)
        self.rnn = cell(16, 24, num_layers=2, batch_first=True)
        self.out = nn.Linear(24, 10)

    def forward(self, tokens):
        return self.out(self.rnn(self.embedding(tokens))[0][:, -1])


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(48, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)
    )


NETS = {
    "resnet18": (vision("resnet18"), (2, 3, 64, 64)),
    "mobilenet_v2": (vision("mobilenet_v2"), (2, 3, 64, 64)),
    "vgg11": (lambda: small_classifier(vision("vgg11")()), (2, 3, 32, 32)),
    "alexnet": (lambda: small_classifier(vision("alexnet")()), (2, 3, 64, 64)),
    "squeezenet1_0": (vision("squeezenet1_0"), (2, 3, 64, 64)),
    "densenet121": (vision("densenet121"), (2, 3, 64, 64)),
    "mlp": (mlp, (16, 3, 4, 4)),
    "lstm": (lambda: Recurrent(nn.LSTM), (6, 9)),
    "gru": (lambda: Recurrent(nn.GRU), (6, 9)),
}


def inputs_for(size):
    generator = torch.Generator().manual_seed(1)
    if len(size) == 2:
        x = torch.randint(50, size, generator=generator)
    else:
        x = torch.randn(size, generator=generator, dtype=torch.float64)
    return x, torch.randint(10, size[:1], generator=generator)


def step(model, size, device, dtype, optimizer_class, **options):
    """Outputs, gradients and new parameters of one training step, as float64 on the CPU."""
    model = copy.deepcopy(model).to(device=device, dtype=dtype)
    optimizer = optimizer_class(model.parameters(), **options)
    x, y = inputs_for(size)
    x = x.to(device=device, dtype=dtype if x.is_floating_point() else None)
    out = model(x)
    nn.functional.cross_entropy(out, y.to(device)).backward()
    optimizer.step()
    parameters = list(model.parameters())
    collect = lambda tensors: torch.cat([t.detach().cpu().double().flatten() for t in tensors])  # noqa: E731
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    return {
        "outputs": collect([out]),
        "gradients": collect([p.grad for p in parameters]),
        "parameters": collect(parameters),
        **({"statistics": collect(buffers)} if buffers else {}),
    }


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("name", NETS)
def test_training_step(name):
    torch.manual_seed(0)
    make, size = NETS[name]
    decisive = without_dropout(make()).train()
    compare(decisive, size, {"outputs", "statistics"} if has_decisions(decisive) else EVERYTHING)
    if has_decisions(decisive):
        compare(smooth(decisive), size, EVERYTHING)
    assert dlbackend.fallback_report() == {}


EVERYTHING = {"outputs", "gradients", "parameters", "statistics"}


def has_decisions(model):
    return any(isinstance(m, (nn.ReLU, nn.ReLU6, nn.MaxPool2d)) for m in model.modules())


def compare(model, size, to_rounding):
    """One step on the device against float64; what is not in `to_rounding` may differ by FLIPPED."""
    options = {"optimizer_class": torch.optim.SGD, "lr": 0.01, "momentum": 0.9}
    truth = step(model, size, "cpu", torch.float64, **options)
    here = step(model, size, "cpu", torch.float32, **options)
    there = step(model, size, DEVICE, torch.float32, **options)
    for what in truth:
        allowed = TIMES * distance(here[what], truth[what]) + FLOOR if what in to_rounding else FLIPPED
        assert distance(there[what], truth[what]) <= allowed, what


@pytest.mark.parametrize("name", NETS)
def test_inference(name):
    torch.manual_seed(0)
    make, size = NETS[name]
    model = make().eval()
    x, _ = inputs_for(size)
    x = x.float() if x.is_floating_point() else x
    with torch.inference_mode():
        here = model(x)
        there = copy.deepcopy(model).to(DEVICE)(x.to(DEVICE)).cpu()
    assert distance(there.double(), here.double()) < 5e-5
    assert dlbackend.fallback_report() == {}


@pytest.mark.parametrize("fused", [False, True])
def test_training_lowers_the_loss(fused):
    """Dropout, weight decay and a learning-rate schedule: twenty steps of AdamW on one batch."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(8 * 16, 10),
    ).to(DEVICE)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    x, y = torch.randn(32, 1, 8, 8, device=DEVICE), torch.randint(10, (32,)).to(DEVICE)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_new_sizes_compile_nothing():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 10),
    ).to(DEVICE)  # fmt: skip
    compiled = []
    sizes = sorted(((1 + i % 5, 3, 17 + 3 * i % 40, 19 + 5 * i % 31) for i in range(30)), key=math.prod)
    # The largest comes early: what is split among work-groups has a second pass, which small sizes do without.
    for size in [sizes[0], *sizes[-4:], *sizes[1:-4]]:
        target = torch.zeros(size[0], dtype=torch.long).to(DEVICE)
        nn.functional.cross_entropy(model(torch.randn(size).to(DEVICE)), target).backward()
        compiled.append(dlbackend.kernel_stats()["compiled"])
    assert compiled[-1] == compiled[4]
