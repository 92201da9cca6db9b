"""DCGAN on generated pictures of 16 x 16, in the manner of PyTorch's example. Noise is drawn on the CPU."""

from typing import Any

import torch
from torch import nn


def initialise(module: Any) -> None:
    name = type(module).__name__
    if "Conv" in name:
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def main(device: str) -> list[float]:
    """The losses of both nets in each step."""
    torch.manual_seed(1)
    width, noise = 8, 16
    generator = nn.Sequential(
        nn.ConvTranspose2d(noise, width * 2, 4, 1, 0, bias=False), nn.BatchNorm2d(width * 2), nn.ReLU(True),
        nn.ConvTranspose2d(width * 2, width, 4, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
        nn.ConvTranspose2d(width, 1, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip
    discriminator = nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(width, width * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(width * 2), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(width * 2, 1, 4, 1, 0, bias=False), nn.Sigmoid(),
    )  # fmt: skip
    for net in (generator, discriminator):
        net.apply(initialise)
        net.to(device)
    criterion = nn.BCELoss()
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    pictures = torch.tanh(torch.randn(8, 1, 16, 16).cumsum(-1))
    losses = []
    for _ in range(8):
        discriminator.zero_grad()
        label = torch.full((8,), 1.0, device=device)
        loss_real = criterion(discriminator(pictures.to(device)).view(-1), label)
        loss_real.backward()
        fake = generator(torch.randn(8, noise, 1, 1).to(device))
        label.fill_(0.0)
        loss_fake = criterion(discriminator(fake.detach()).view(-1), label)
        loss_fake.backward()
        optimizer_d.step()
        generator.zero_grad()
        label.fill_(1.0)
        loss_g = criterion(discriminator(fake).view(-1), label)
        loss_g.backward()
        optimizer_g.step()
        losses += [(loss_real + loss_fake).item(), loss_g.item()]
    return losses
