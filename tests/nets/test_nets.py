"""Networks end to end: forward, backward and one optimizer step on small inputs against float64 on the CPU, by the rule
of `python -m dlbackend validate`.
"""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import dlbackend
from dlbackend.tools.validation import rule
from dlbackend.tools.validation.vision import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
import tv_shim  # noqa: F401  isort: skip  (before torchvision)
import torchvision  # isort: skip

DEVICE = "ocl:0"


@pytest.fixture(autouse=True)
def _no_fallbacks(monkeypatch):
    monkeypatch.setenv("DLBACKEND_FALLBACK", "error")
    dlbackend.reset_fallback_report()


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


def example(name):
    torch.manual_seed(0)
    make, size = NETS[name]
    x = torch.randint(50, size) if len(size) == 2 else torch.randn(size)
    return rule.Example(make(), (x,), cross_entropy(torch.randint(10, size[:1])))


@pytest.mark.parametrize("stage", ["train", "eval"])
@pytest.mark.parametrize("name", NETS)
def test_net(name, stage):
    net = example(name)
    found = rule.compare(rule.stages(net)[stage], stage, net, torch.device(DEVICE))
    assert found.checks
    assert [check for check in found.checks if not check.passed] == []
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
