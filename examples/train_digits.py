"""Trains a small CNN on scikit-learn's 1,797 handwritten digits and draws what it learnt. Needs no network.

    python examples/train_digits.py                  # on ocl:0
    python examples/train_digits.py --device cpu     # the same, for comparison

Writes out/digits.png: predictions on test images, and the loss while training. Exits with 1 below 98 % accuracy.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

matplotlib.use("Agg")  # draws into files; needs no display

TARGET = 0.98


@dataclass
class Data:
    """Images are (N, 1, 8, 8) float32 in [0, 1]; labels (N,) int64."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def load_data() -> Data:
    """A quarter of the digits, balanced by class, is held out for the test."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    parts = train_test_split(images, labels.astype(np.int64), test_size=0.25, random_state=0, stratify=labels)
    train_images, test_images, train_labels, test_labels = map(torch.from_numpy, parts)
    return Data(train_images, train_labels, test_images, test_labels)


def make_net() -> nn.Module:
    """Maps (N, 1, 8, 8) images to (N, 10) logits."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def shifted(images: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """The batch moved by up to one pixel each way, so that the net does not learn positions by heart."""
    down, right = rng.integers(0, 3, size=2)
    return F.pad(images, (1, 1, 1, 1))[:, :, down : down + 8, right : right + 8]


def train(net: nn.Module, data: Data, device: torch.device, epochs: int, batch: int, seed: int) -> list[float]:
    """Trains in place; returns the loss of every step."""
    rng = np.random.default_rng(seed)
    images, labels = data.train_images.to(device), data.train_labels.to(device)
    steps = len(images) // batch
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=epochs * steps)
    losses: list[torch.Tensor] = []
    net.train()
    with tqdm(total=epochs * steps, desc=f"training on {device}", unit="step", file=sys.stdout) as bar:
        for _ in range(epochs):
            for chosen in rng.permutation(len(images))[: steps * batch].reshape(steps, batch):
                index = torch.from_numpy(chosen).to(device)
                optimizer.zero_grad()
                loss = F.cross_entropy(net(shifted(images[index], rng)), labels[index])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                losses.append(loss.detach())  # not .item(): the device works on while the host goes ahead
                bar.update()
            bar.set_postfix(loss=f"{losses[-1].item():.4f}")
    return torch.stack(losses).tolist()


@torch.no_grad()
def predict(net: nn.Module, images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The most likely class of each image, on the CPU."""
    net.eval()
    return net(images.to(device)).argmax(1).cpu()  # type: ignore[no-any-return]


def draw(path: Path, data: Data, predicted: torch.Tensor, losses: list[float], title: str) -> None:
    """Wrong predictions come first and in red; the rest are the first of the test set."""
    order = torch.argsort((predicted == data.test_labels).int(), stable=True)[:40].tolist()
    figure = plt.figure(figsize=(10, 7), layout="constrained")
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=[3, 2]).flat
    figure.suptitle(title)
    for axis, i in zip(top.subplots(4, 10).flat, order, strict=True):
        right = predicted[i] == data.test_labels[i]
        axis.imshow(data.test_images[i, 0], cmap="gray_r")
        axis.set_title(f"{predicted[i]}", color="black" if right else "red", fontsize=10, pad=2)
        axis.set_xticks([])
        axis.set_yticks([])
    axis = bottom.subplots()
    axis.plot(losses, lw=0.8)
    axis.set(yscale="log", xlabel="step", ylabel="cross-entropy loss")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl:0")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/digits.png"))
    options = parser.parse_args()

    name = options.device
    if name.startswith("ocl"):
        import dlbackend  # noqa: F401 (also where another accelerator keeps the device from loading by itself)

        name = f"{options.device} ({torch.ocl.get_device_name(options.device)})"  # type: ignore[attr-defined]
    device = torch.device(options.device)
    data = load_data()
    print(f"{len(data.train_images)} training and {len(data.test_images)} test images, on {name}")

    torch.manual_seed(options.seed)
    net = make_net().to(device)
    start = time.perf_counter()
    losses = train(net, data, device, options.epochs, options.batch, options.seed)
    predicted = predict(net, data.test_images, device)
    seconds = time.perf_counter() - start
    accuracy = (predicted == data.test_labels).float().mean().item()

    print(f"test accuracy {accuracy:.2%} in {seconds:.1f} s on {name}")
    draw(options.out, data, predicted, losses, f"{name}: {accuracy:.2%} of {len(predicted)} test digits")
    print(f"picture: {options.out}")
    if accuracy < TARGET:
        print(f"below the expected {TARGET:.0%}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
