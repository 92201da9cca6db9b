"""Names what is in pictures, with a torchvision net and its pretrained ImageNet weights (downloaded once).

    python examples/classify.py photo.jpg other.png      # on ocl:0, with resnet18
    python examples/classify.py --net mobilenet_v2       # the two photographs that scikit-learn carries

Needs torchvision besides this project's `examples` extra; says so, and how to get it, where it is missing.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from PIL import Image

# torchvision's minor for each torch minor: its C++ operators are compiled for exactly one.
TORCHVISION = {"2.11": "0.26", "2.12": "0.27", "2.13": "0.28"}


def import_torchvision_models() -> Any:
    """torchvision.models, or an exit that says how to install it."""
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:  # RuntimeError: its operators were built for another torch
        release = TORCHVISION.get(".".join(torch.__version__.split(".")[:2]), "")
        build = f", from the index that torch {torch.__version__} came from" if "+" in torch.__version__ else ""
        sys.exit(f"torchvision is needed ({error}). Install it: pip install 'torchvision=={release}.*'{build}")
    return models


def load_pretrained(models: Any, name: str) -> tuple[torch.nn.Module, Any]:
    """The net in evaluation mode and its weights' description, or an exit that says why not."""
    try:
        weights = models.get_model_weights(name).DEFAULT
        return models.get_model(name, weights=weights).eval(), weights
    except ValueError as error:
        sys.exit(f"no net called {name!r} with pretrained weights: {error}")
    except (URLError, OSError) as error:
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        sys.exit(
            f"the pretrained weights of {name} could not be downloaded ({error}). Download\n  {weights.url}\n"
            f"on a machine with a network connection, put it into {folder}, and run this again."
        )


def default_pictures() -> list[Path]:
    """The photographs that scikit-learn carries: a Chinese temple and a dahlia."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        sys.exit("name the pictures to classify, or install scikit-learn, which carries two: pip install scikit-learn")
    images = Path(package.origin).parent / "datasets" / "images"
    return sorted(images.glob("*.jpg"))


@torch.no_grad()
def classify(net: torch.nn.Module, batch: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and class indices of the `top` likeliest classes of each image, both (N, top), on the CPU."""
    probabilities, classes = net(batch).softmax(1).topk(top)
    return probabilities.cpu(), classes.cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="*", type=Path, help="any format that Pillow reads")
    parser.add_argument("--net", default="resnet18", help="a torchvision classification net (default: resnet18)")
    parser.add_argument("--device", default="ocl:0")
    parser.add_argument("--top", type=int, default=3, help="classes to print for each picture (default: 3)")
    options = parser.parse_args()

    if options.device.startswith("ocl"):
        import dlbackend  # noqa: F401 (also where another accelerator keeps the device from loading by itself)
    models = import_torchvision_models()
    pictures = options.pictures or default_pictures()
    net, weights = load_pretrained(models, options.net)
    prepare = weights.transforms()
    try:
        batch = torch.stack([prepare(Image.open(path).convert("RGB")) for path in pictures])
    except OSError as error:
        sys.exit(f"cannot read a picture: {error}")

    probabilities, classes = classify(net.to(options.device), batch.to(options.device), options.top)
    for path, row, indices in zip(pictures, probabilities.tolist(), classes.tolist(), strict=True):
        print(path.name)
        for probability, index in zip(row, indices, strict=True):
            print(f"  {probability:6.1%}  {weights.meta['categories'][index]}")


if __name__ == "__main__":
    main()
