"""A convolutional net on generated digits, in the manner of PyTorch's mnist example."""

import torch
from torch import nn
from torch.nn import functional as F


def pictures(count: int, seed: int) -> torch.utils.data.TensorDataset:
    """Ten noisy patterns of 14 x 14."""
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randn(10, 1, 14, 14, generator=generator)
    generator.manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return torch.utils.data.TensorDataset(
        patterns[labels] + 0.5 * torch.randn(count, 1, 14, 14, generator=generator), labels
    )


def main(device: str) -> list[float]:
    """The losses of the steps, and at last the accuracy."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 10)
    ).to(device)
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    loader = torch.utils.data.DataLoader(pictures(256, 0), batch_size=32)
    losses = []
    for _ in range(2):
        net.train()
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(F.log_softmax(net(data.to(device)), dim=1), target.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
    net.eval()
    correct = 0
    with torch.no_grad():
        for data, target in torch.utils.data.DataLoader(pictures(128, 1), batch_size=64):
            prediction = net(data.to(device)).argmax(dim=1, keepdim=True)
            correct += prediction.eq(target.to(device).view_as(prediction)).sum().item()
    return [*losses, correct / 128]
