"""Lets packages that choose devices from a list of names choose ocl too.

Some packages ask "is there CUDA, XPU, NPU, ...?" one name after the other, and use the CPU where all answers are no.
What to change in which of their modules stands in a module here for each; nothing of it is imported before the user
imports that package, and then its modules are changed as each has been loaded. DLBACKEND_INTEGRATIONS=0 turns it off.
docs/ecosystem.md says what works.
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

from dlbackend import environment

# The modules that are changed, and the module here that says how: its PATCHES[name] has what to do.
HOOKED = {
    "accelerate.accelerator": "accelerate",
    "accelerate.checkpointing": "accelerate",
    "accelerate.state": "accelerate",
    "accelerate.utils.dataclasses": "accelerate",
    "accelerate.utils.memory": "accelerate",
    "accelerate.utils.modeling": "accelerate",
    "lightning.fabric.accelerators": "lightning",
    "lightning.fabric.connector": "lightning",
    "lightning.fabric.strategies.ddp": "lightning",
    "lightning.pytorch.accelerators": "lightning",
    "lightning.pytorch.strategies.ddp": "lightning",
    "lightning.pytorch.trainer.connectors.accelerator_connector": "lightning",
    "lightning.pytorch.trainer.setup": "lightning",
    "lightning_fabric.accelerators": "lightning",
    "lightning_fabric.connector": "lightning",
    "lightning_fabric.strategies.ddp": "lightning",
    "peft.utils.other": "peft",
    "pytorch_lightning.accelerators": "lightning",
    "pytorch_lightning.strategies.ddp": "lightning",
    "pytorch_lightning.trainer.connectors.accelerator_connector": "lightning",
    "pytorch_lightning.trainer.setup": "lightning",
    "safetensors": "safetensors",
    "torch._higher_order_ops.flex_attention": "torch",
    "torch._inductor.compile_fx": "torch",
    "torch._prims.rng_prims": "torch",
    "torch._subclasses.fake_impls": "torch",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook": "torch",
    "torch.nn.attention.flex_attention": "torch",
    "torch.nn.parallel.comm": "torch",
    "torch.optim.adam": "torch",
    "torch.optim.sgd": "torch",
    "torchao.float8.inference": "torchao",
    "torchao.quantization.quant_api": "torchao",
    "transformers.cache_utils": "transformers",
    "transformers.integrations.accelerate": "transformers",
    "transformers.pipelines.base": "transformers",
    "transformers.trainer": "transformers",
    "transformers.trainer_utils": "transformers",
    "transformers.training_args": "transformers",
    "transformers.utils.import_utils": "transformers",
    "ultralytics.engine.trainer": "ultralytics",
    "ultralytics.engine.validator": "ultralytics",
    "ultralytics.utils.ops": "ultralytics",
    "ultralytics.utils.torch_utils": "ultralytics",
}

_warned: set[str] = set()


class _WatchedSpec(ModuleSpec):
    """The spec of a module that is to be changed. Python's import system sets `_initializing` to False when it has
    run a module. That module may be running now: its own `import torch` may have brought dlbackend.
    """

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value and self.name in sys.modules:
            change(sys.modules[self.name])


class _Finder:
    """Has the specs of the modules to change watched, and leaves finding them to the other finders."""

    def __init__(self) -> None:
        self.busy: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in HOOKED or name in self.busy:
            return None
        self.busy.add(name)
        try:
            specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if hasattr(finder, "find_spec"))
            spec = next((spec for spec in specs if spec), None)
        finally:
            self.busy.discard(name)
        if spec:
            _watch(spec)
        return spec


def _watch(spec: ModuleSpec) -> None:
    if type(spec) is ModuleSpec:
        spec.__class__ = _WatchedSpec


def install() -> None:
    """Changes the modules that are loaded, and others, which may be loading now, once they are loaded."""
    if environment.integrations_turned_off():
        return
    sys.meta_path.insert(0, _Finder())
    for name in HOOKED:
        module = sys.modules.get(name)
        if module is None:
            continue
        spec = module.__spec__
        if getattr(spec, "_initializing", False) and spec:
            _watch(spec)
        else:
            change(module)


def change(module: types.ModuleType) -> None:
    """Applies this module's patches; where one does not fit, a warning for each package says what to do."""
    integration = importlib.import_module(f"{__name__}.{HOOKED[module.__name__]}")
    for patch in integration.PATCHES[module.__name__]:
        try:
            patch.apply(module)
        except Exception as error:
            _warn(module, f"{patch.target}: {error}", integration.INSTEAD)


def _warn(module: types.ModuleType, reason: str, instead: str) -> None:
    package = module.__name__.partition(".")[0]
    if package in _warned:
        return
    _warned.add(package)
    version = getattr(sys.modules.get(package), "__version__", "of unknown version")
    message = (
        f"dlbackend does not know {package} {version} ({module.__name__}.{reason}), which may therefore use the CPU "
        f"and not ocl. {instead} docs/ecosystem.md names versions that work; DLBACKEND_INTEGRATIONS=0 silences this."
    )
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:  # warnings are errors here; the import must work all the same
        print(f"RuntimeWarning: {message}", file=sys.stderr)
