"""A variational autoencoder in the manner of PyTorch's example. Noise is drawn on the CPU."""

import torch
from torch import nn
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.mean, self.variance = nn.Linear(64, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.expand, self.picture = nn.Linear(4, 32), nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = F.relu(self.hidden(x))
        mean, log_variance = self.mean(hidden), self.variance(hidden)
        code = mean + torch.randn(mean.shape).to(mean.device) * torch.exp(0.5 * log_variance)
        return torch.sigmoid(self.picture(F.relu(self.expand(code)))), mean, log_variance


def main(device: str) -> list[float]:
    """The loss for each picture in each step."""
    torch.manual_seed(1)
    pictures = (torch.rand(4, 64) > 0.5).float().repeat(16, 1)
    net = VAE().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        x = pictures[torch.randperm(64)[:32]].to(device)
        made, mean, log_variance = net(x)
        entropy = F.binary_cross_entropy(made, x, reduction="sum")
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        optimizer.zero_grad()
        (entropy + divergence).backward()
        optimizer.step()
        losses.append((entropy + divergence).item() / 32)
    return losses
