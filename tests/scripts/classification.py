"""The parts of torchvision's classification recipe: mixup, label smoothing, mixed precision, clipped gradients, cosine
with a linear warm-up, and an average of the weights.
"""

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def mixed(x: torch.Tensor, labels: torch.Tensor, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mixup, as torchvision.transforms.v2.MixUp does it: each picture with its neighbour."""
    one_hot = nn.functional.one_hot(labels, 4).float()
    return x * share + x.roll(1, 0) * (1 - share), one_hot * share + one_hot.roll(1, 0) * (1 - share)


def main(device: str) -> list[float]:
    """The losses of the steps, and at last that of the averaged net."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    ).to(device)  # fmt: skip
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-4, nesterov=True)
    warm_up = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=3)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
    scheduler = lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[3])
    kind = torch.device(device).type
    scaler = torch.amp.GradScaler(kind, enabled=kind != "cpu", init_scale=256.0)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    patterns = torch.randn(4, 3, 16, 16)
    losses = []
    for _ in range(12):
        labels = torch.randint(0, 4, (16,))
        x, target = mixed(patterns[labels] + 0.3 * torch.randn(16, 3, 16, 16), labels, 0.8)
        x, target = x.to(device), target.to(device)
        with torch.autocast(kind, dtype=torch.float16, enabled=kind != "cpu"):
            loss = criterion(net(x), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        average.update_parameters(net)
        losses.append(loss.item())
    average.eval()
    with torch.no_grad():
        return [*losses, criterion(average(patterns.to(device)), torch.arange(4, device=device)).item()]
