#!/usr/bin/env python3
"""Runs small trainings of packages that are too large for the tests, on the device and on the CPU, and compares.

    scripts/ecosystem.py                  # all whose packages are there
    scripts/ecosystem.py timm ultralytics

docs/ecosystem.md says how to install the packages. Prints a line for each: the package's version, the last values on
both devices, how far apart all of them are, and the tolerance. The exit status is 1 where one is beyond it.
"""

import importlib.util
import logging
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy
import torch

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "nets")]
import tv_shim  # noqa: E402, F401 (makes a torchvision whose compiled part does not fit this torch importable)

import dlbackend  # noqa: E402

Losses = list[float]


def train_timm(device: str) -> Losses:
    """A small ResNet with timm's optimizer, scheduler, mixup and average of weights."""
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import ModelEmaV3

    net = timm.create_model("resnet10t", num_classes=4).to(device)
    optimizer = create_optimizer_v2(net, "lamb", lr=5e-3, weight_decay=0.02)
    scheduler = CosineLRScheduler(optimizer, t_initial=6, warmup_t=2, warmup_lr_init=1e-4)
    average, criterion = ModelEmaV3(net, decay=0.9), SoftTargetCrossEntropy()
    mixup, losses = Mixup(mixup_alpha=0.2, num_classes=4), []
    for step in range(6):
        x, target = mixup(torch.randn(8, 3, 64, 64).to(device), torch.randint(0, 4, (8,)).to(device))
        loss = criterion(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(net)
        scheduler.step(step + 1)
        losses.append(loss.item())
    return losses


def train_diffusers(device: str) -> Losses:
    """A UNet learns to tell noise, and samples with DDIM: the losses, and the mean square of the samples."""
    from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel

    net = UNet2DModel(
        sample_size=16, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(16, 32),
        norm_num_groups=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).to(device)  # fmt: skip
    scheduler = DDPMScheduler(num_train_timesteps=100)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    criterion = torch.nn.MSELoss()
    losses = []
    for _ in range(6):
        clean, noise, steps = torch.rand(4, 1, 16, 16), torch.randn(4, 1, 16, 16), torch.randint(0, 100, (4,))
        noisy = scheduler.add_noise(clean.to(device), noise.to(device), steps.to(device))
        loss = criterion(net(noisy, steps.to(device)).sample, noise.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    sampler = DDIMScheduler(num_train_timesteps=100)
    sampler.set_timesteps(4, device=device)
    sample = torch.randn(2, 1, 16, 16).to(device)
    with torch.no_grad():
        for step in sampler.timesteps:
            sample = sampler.step(net(sample, step).sample, step, sample).prev_sample
    return [*losses, sample.square().mean().item()]


def pictures_with_boxes(folder: Path) -> Path:
    """A set of pictures with bright squares in YOLO's form; returns the file that describes it."""
    from PIL import Image, ImageDraw

    for part in ("train", "val"):
        for kind in ("images", "labels"):
            (folder / kind / part).mkdir(parents=True)
        for i in range(8):
            left = 8 + 4 * i
            picture = Image.new("RGB", (64, 64), (30, 30, 30))
            ImageDraw.Draw(picture).rectangle((left, 20, left + 20, 40), fill=(220, 40, 40))
            picture.save(folder / "images" / part / f"{i}.png")
            label = f"0 {(left + 10) / 64} {30 / 64} {20 / 64} {20 / 64}\n"
            (folder / "labels" / part / f"{i}.txt").write_text(label)
    description = folder / "data.yaml"
    description.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [square]\n")
    return description


def train_ultralytics(device: str) -> Losses:
    """YOLO's train, val and predict: the losses of the last epoch."""
    import ultralytics.engine.trainer as trainer
    from ultralytics import YOLO

    trainer.check_amp = lambda model: False  # it would download a net to compare
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        net = YOLO("yolov8n.yaml")
        net.train(
            data=pictures_with_boxes(folder), epochs=1, imgsz=64, batch=4, device=device, workers=0, plots=False,
            project=str(folder / "runs"), verbose=False, mosaic=0.0, deterministic=False, amp=False, augment=False,
        )  # fmt: skip
        assert net.trainer.device.type == torch.device(device).type
        net.val(data=folder / "data.yaml", imgsz=64, device=device, workers=0, plots=False, verbose=False)
        net.predict(str(folder / "images" / "val" / "0.png"), imgsz=64, device=device, verbose=False)
        assert net.predictor.device.type == torch.device(device).type
        return (
            [float(each) for each in net.trainer.tloss.values()]
            if isinstance(net.trainer.tloss, dict)
            else net.trainer.tloss.flatten().tolist()
        )


def train_classification(device: str) -> Losses:
    """torchvision's classification recipe: label smoothing, mixup, mixed precision, cosine, an average of weights."""
    import torchvision
    from torchvision.transforms import v2

    averaging: Any = torch.optim.swa_utils.get_ema_multi_avg_fn

    net = torchvision.models.resnet18(num_classes=4).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    kind = torch.device(device).type
    scaler = torch.amp.GradScaler(kind, enabled=kind != "cpu", init_scale=256.0)
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=averaging(0.9), use_buffers=True)
    mixup, losses = v2.MixUp(alpha=0.2, num_classes=4), []
    for _ in range(6):
        x, target = mixup(torch.randn(8, 3, 64, 64), torch.randint(0, 4, (8,)))
        with torch.autocast(kind, dtype=torch.float16, enabled=kind != "cpu"):
            loss = criterion(net(x.to(device)), target.to(device))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        average.update_parameters(net)
        losses.append(loss.item())
    return losses


def train_detection(device: str) -> Losses:
    """torchvision's detection recipe with a small FCOS: the losses, and how many boxes it finds."""
    import torchvision

    net = torchvision.models.detection.fcos_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=2, min_size=96, max_size=96, trainable_backbone_layers=5
    ).to(device)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=5e-4, momentum=0.9)
    losses = []
    for _ in range(2):
        pictures = [torch.rand(3, 96, 96).to(device) for _ in range(2)]
        boxes = torch.tensor([[10.0, 10.0, 60.0, 60.0]]).to(device)
        targets = [{"boxes": boxes, "labels": torch.ones(1, dtype=torch.long).to(device)} for _ in pictures]
        loss = sum(net(pictures, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        found = net([torch.rand(3, 96, 96).to(device)])
    assert found[0]["boxes"].device.type == torch.device(device).type
    return losses


# The packages, and how far apart values may be: float16 is compared with float32 for classification, and a deep net
# in which batches of two are normalised, so that rounding grows, for detection.
CASES: dict[str, tuple[str, Callable[[str], Losses], float]] = {
    "timm": ("timm", train_timm, 1e-4),
    "diffusers": ("diffusers", train_diffusers, 1e-4),
    "classification": ("torchvision", train_classification, 2e-2),
    "detection": ("torchvision", train_detection, 2e-2),
    "ultralytics": ("ultralytics", train_ultralytics, 1e-3),
}


def run(name: str) -> bool:
    """Runs a case on both devices and prints its line. False where values are too far apart."""
    package, train, tolerance = CASES[name]
    if importlib.util.find_spec(package) is None:
        print(f"{name}: skipped, {package} is not installed")
        return True
    values: dict[str, Any] = {}
    dlbackend.reset_fallback_report()
    for device in ("ocl", "cpu"):
        torch.manual_seed(1)
        numpy.random.seed(1)  # timm draws from it
        values[device] = torch.tensor(train(device))
    apart = (values["ocl"] - values["cpu"]).abs().max().item()
    fine = bool(apart <= tolerance)
    last = {device: round(each[-1].item(), 4) for device, each in values.items()}
    print(
        f"{name}: {package} {version(package)}, last {last}, apart {apart:.2g} of {tolerance}: "
        f"{'fine' if fine else 'TOO FAR'}; on the CPU for want of a kernel: {dlbackend.fallback_report() or 'nothing'}",
        flush=True,
    )
    return fine


def main() -> int:
    """Exit status."""
    logging.disable(logging.INFO)
    fine = True
    for name in sys.argv[1:] or CASES:
        try:
            fine &= run(name)
        except Exception:
            traceback.print_exc()
            print(f"{name}: FAILED", flush=True)
            fine = False
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
