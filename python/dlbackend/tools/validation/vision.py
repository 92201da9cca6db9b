"""torchvision's networks as the validation runs them: their smallest sensible pictures, targets and losses."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dlbackend.tools.validation.rule import Example
from dlbackend.torchvision_nets import import_torchvision

CLASSES = 10
Options = Mapping[str, Any]
Make = Callable[[str, bool], Example]

# The networks that the validation of dlprimitives' PyTorch backend runs, and one or two of every other family.
CLASSIFICATION = (
    "alexnet", "resnet18", "resnet50", "vgg16", "densenet161", "googlenet", "squeezenet1_0", "inception_v3",
    "shufflenet_v2_x1_0", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "resnext50_32x4d",
    "wide_resnet50_2", "mnasnet1_0", "efficientnet_b0", "efficientnet_b4", "regnet_y_400mf",
    "vgg11_bn", "regnet_x_400mf", "efficientnet_v2_s", "convnext_tiny", "vit_b_16", "swin_t", "swin_v2_t", "maxvit_t",
)  # fmt: skip
SEGMENTATION = ("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50", "fcn_resnet50")
DETECTION = (
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2",
    "fcos_resnet50_fpn", "retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2", "maskrcnn_resnet50_fpn",
    "keypointrcnn_resnet50_fpn", "ssd300_vgg16", "ssdlite320_mobilenet_v3_large",
)  # fmt: skip
VIDEO = ("r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v1_b", "mvit_v2_s", "swin3d_t")
FLOW = ("raft_small", "raft_large")

# Height and width where all is run, and under --quick; the smaller ones that are not 64 are the least that a net takes.
SIZES = {"inception_v3": (299, 96), "maxvit_t": (224, 224), "s3d": (224, 224), "mvit_v1_b": (224, 64)}
SIZES |= {"mvit_v2_s": (224, 64), "raft_small": (256, 128), "raft_large": (256, 128)}
FRAMES = {"s3d": (16, 16)}


def _size(name: str, quick: bool) -> int:
    return SIZES.get(name, (224, 64))[quick]


def cross_entropy(labels: Tensor) -> Callable[[Any], Tensor]:
    """The loss of scores, or the sum over all scores where a network has auxiliary classifiers."""

    def loss(outputs: Any) -> Tensor:
        several = outputs.values() if isinstance(outputs, dict) else [outputs] if torch.is_tensor(outputs) else outputs
        scores = [scores for scores in several if scores is not None]
        return torch.stack([F.cross_entropy(x, labels.to(x.device)) for x in scores]).sum()

    return loss


def _model(name: str, **options: Any) -> Any:
    model = import_torchvision(f"validate {name}").models.get_model(name, weights=None, **options)
    for key, parameter in model.named_parameters():
        if key.endswith("layer_scale"):  # begins at 1e-6, which hides the branch that it scales
            torch.nn.init.ones_(parameter)
        elif parameter.dim() > 1 and not parameter.any():  # lets nothing through before it is trained
            torch.nn.init.normal_(parameter, std=0.05)
    return model


def classification(name: str, quick: bool) -> Example:
    """Two pictures, four under --quick: batch norm of two small feature maps is ill-conditioned."""
    size = _size(name, quick)
    options: Options = {}
    if name.startswith("vit_"):
        options = {"image_size": size}
    elif name == "googlenet":
        options = {"init_weights": False}
    elif name == "inception_v3":  # its auxiliary classifier needs pictures of full size
        options = {"init_weights": False, "aux_logits": not quick}
    pictures = torch.randn(4 if quick else 2, 3, size, size)
    model = _model(name, num_classes=CLASSES, **options)
    return Example(model, (pictures,), cross_entropy(torch.randint(CLASSES, pictures.shape[:1])))


def segmentation(name: str, quick: bool) -> Example:
    """Every pixel has a class."""
    size = _size(name, quick)
    model = _model(name, weights_backbone=None, num_classes=CLASSES)
    pictures = torch.randn(2, 3, size, size)
    return Example(model, (pictures,), cross_entropy(torch.randint(CLASSES, (2, size, size))))


def detection(name: str, quick: bool) -> Example:
    """Losses in training, boxes in eval mode, of two pictures of different sizes."""
    size = _size(name, quick)
    options: dict[str, Any] = {"weights_backbone": None, "num_classes": 5}
    if "rcnn" in name:  # fewer boxes; and those that score low as well, as all do with random weights
        options |= {"box_score_thresh": 0.0, "box_detections_per_img": 10}
        options |= {f"rpn_{when}_nms_top_n_{mode}": 50 for when in ("pre", "post") for mode in ("train", "test")}
    else:
        options |= {"score_thresh": 0.0, "detections_per_img": 10, "topk_candidates": 50}
    if not name.startswith("ssd"):  # their pictures have one size
        options |= {"min_size": size, "max_size": 2 * size}
    pictures = [torch.rand(3, size, size + 20), torch.rand(3, size + 10, size)]
    training = (pictures, [_target(name, x) for x in pictures])
    return Example(_model(name, **options), (pictures,), _sum_of_losses, training, replay=True)


def _target(name: str, picture: Tensor) -> dict[str, Tensor]:
    height, width = picture.shape[1:]
    corners = torch.tensor([[0.11, 0.13, 0.52, 0.61], [0.33, 0.42, 0.87, 0.94]])
    target = {"boxes": corners * torch.tensor([width, height, width, height]), "labels": torch.tensor([1, 3])}
    if name.startswith("mask"):
        target["masks"] = (torch.rand(2, height, width) > 0.5).to(torch.uint8)
    if name.startswith("keypoint"):
        inside = target["boxes"][:, None, :2] + torch.rand(2, 17, 2) * 0.3 * min(height, width)
        target["keypoints"] = torch.cat([inside, torch.ones(2, 17, 1)], 2)
    return target


def _sum_of_losses(losses: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(losses.values())).sum()


def video(name: str, quick: bool) -> Example:
    """A clip, two under --quick."""
    size, frames = _size(name, quick), FRAMES.get(name, (16, 4))[quick]
    clips = torch.randn(2 if quick else 1, 3, frames, size, size)
    with _mvit_of(size, frames):
        model = _model(name, num_classes=CLASSES)
    return Example(model, (clips,), cross_entropy(torch.randint(CLASSES, clips.shape[:1])))


@contextlib.contextmanager
def _mvit_of(size: int, frames: int) -> Iterator[None]:
    """torchvision's functions make MViT's positional encodings for one size of clips; here they are for this one."""
    module = import_torchvision("validate mvit").models.video.mvit
    build = module._mvit
    module._mvit = lambda **options: build(**{**options, "spatial_size": (size, size), "temporal_size": frames})
    try:
        yield
    finally:
        module._mvit = build


class _Raft(torch.nn.Module):
    """The network with its number of iterations."""

    def __init__(self, name: str, updates: int) -> None:
        super().__init__()
        self.net = _model(name)
        self.updates = updates

    def forward(self, before: Tensor, after: Tensor) -> Any:
        return self.net(before, after, num_flow_updates=self.updates)


def flow(name: str, quick: bool) -> Example:
    """The movement between two pictures."""
    size = _size(name, quick)
    wanted = torch.randn(1, 2, size, size)

    def loss(flows: list[Tensor]) -> Tensor:
        return torch.stack([F.mse_loss(flow, wanted.to(flow)) for flow in flows]).sum()

    pictures = (torch.rand(1, 3, size, size) * 2 - 1, torch.rand(1, 3, size, size) * 2 - 1)
    return Example(_Raft(name, 2 if quick else 6), pictures, loss)


FAMILIES: dict[str, tuple[tuple[str, ...], Make]] = {
    "classification": (CLASSIFICATION, classification),
    "segmentation": (SEGMENTATION, segmentation),
    "detection": (DETECTION, detection),
    "video": (VIDEO, video),
    "optical flow": (FLOW, flow),
}
# The modules of torchvision.models in which the families are.
MODULES = {"segmentation": "segmentation", "detection": "detection", "video": "video", "optical flow": "optical_flow"}


def family_of(name: str) -> str | None:
    """The family of any of torchvision's networks."""
    models = import_torchvision(f"validate {name}").models
    for family in FAMILIES:
        module = getattr(models, MODULES[family]) if family in MODULES else models
        if name in models.list_models(module=module):
            return family
    return None


def maker(family: str, name: str) -> Callable[[bool], Example]:
    """A function that makes the network and what it is called with."""
    return partial(FAMILIES[family][1], name)
