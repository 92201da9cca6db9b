"""Lightning's Trainer and Fabric on ocl; skipped without Lightning."""

from pathlib import Path

import pytest
import torch
from fresh_process import fresh_python
from packages import SHIM, ocl_is_chosen
from torch.nn.functional import mse_loss

REASON = "pip install lightning, as docs/ecosystem.md says"
lightning = pytest.importorskip("lightning", reason=REASON)


class Net(lightning.LightningModule):  # type: ignore[name-defined]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.log("loss", mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def loader() -> torch.utils.data.DataLoader:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)


def fitted(folder: Path, path: str | None = None, **options):
    """A Trainer that has fitted a Net, and the Net."""
    settings = {
        "max_epochs": 2,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **options,
    }
    trainer, net = lightning.Trainer(default_root_dir=folder, **settings), Net()
    trainer.fit(net, loader(), loader(), ckpt_path=path)
    return trainer, net


@pytest.mark.parametrize("accelerator", ["ocl", *(pytest.param(name, marks=ocl_is_chosen) for name in ("auto", "gpu"))])
@pytest.mark.parametrize(("precision", "apart"), [("32", 1e-4), ("16-mixed", 0.2), ("bf16-mixed", 5e-2)])
def test_losses_are_those_of_the_cpu(tmp_path: Path, accelerator: str, precision: str, apart: float) -> None:
    # The first scale of float16's gradients is too large, so that the first step is skipped: 16-mixed is a step behind.
    trainer, net = fitted(tmp_path, accelerator=accelerator, precision=precision, devices=1)
    assert trainer.strategy.root_device == torch.device("ocl", 0)
    assert getattr(trainer.precision_plugin, "device", "ocl") == "ocl"
    _, expected = fitted(tmp_path, accelerator="cpu")
    assert net.losses == pytest.approx(expected.losses, abs=apart)


def test_a_checkpoint_goes_on(tmp_path: Path) -> None:
    _, whole = fitted(tmp_path / "whole", accelerator="ocl", max_epochs=3)
    first, _ = fitted(tmp_path / "first", accelerator="ocl")
    _, rest = fitted(tmp_path / "rest", first.checkpoint_callback.best_model_path, accelerator="ocl", max_epochs=3)
    assert rest.losses == pytest.approx(whole.losses[-len(rest.losses) :], abs=1e-5)


@ocl_is_chosen
def test_fabric_takes_ocl() -> None:
    fabric = lightning.Fabric(accelerator="auto", devices=1, precision="16-mixed")
    net = torch.nn.Linear(3, 3)
    net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    fabric.backward(net(torch.ones(2, 3, device=fabric.device)).sum())
    optimizer.step()
    assert {parameter.device.type for parameter in net.parameters()} == {"ocl"}


@pytest.mark.parametrize(("wish", "indices"), [(1, [0]), (-1, [0]), ("1", [0]), ([0], [0]), ("0,", [0])])
def test_devices_are_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, wish: int | str | list[int], indices: list[int]
) -> None:
    from dlbackend.integrations.lightning import devices_from

    monkeypatch.setattr(torch.ocl, "device_count", lambda: 1)
    assert devices_from(wish) == indices


@ocl_is_chosen
def test_without_the_patches_it_is_the_cpu() -> None:
    code = (
        "import dlbackend, lightning\n"
        "print(lightning.Trainer(accelerator='auto', logger=False, barebones=True).strategy.root_device)"
    )
    done = fresh_python(SHIM + code, DLBACKEND_INTEGRATIONS="0")
    assert done.stdout.splitlines()[-1:] == ["cpu"], done.stderr  # otherwise the patches can go
