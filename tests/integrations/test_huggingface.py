"""accelerate, transformers, peft and safetensors on ocl, with nothing but dlbackend installed; skipped without them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_process import fresh_python
from packages import SHIM, ocl_is_chosen

REASON = "pip install accelerate transformers peft safetensors, as docs/ecosystem.md says"
accelerate = pytest.importorskip("accelerate", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
from small_bert import bert, trained  # noqa: E402


@pytest.mark.parametrize(
    ("arguments", "apart"),
    [
        ({}, 1e-3),
        ({"bf16": True}, 2e-2),
        ({"fp16": True}, 1e-2),
        ({"gradient_accumulation_steps": 2}, 1e-3),
        ({"gradient_checkpointing": True}, 1e-3),
        ({"skip_memory_metrics": False}, 1e-3),
    ],
    ids=lambda value: ",".join(value) or "fp32" if isinstance(value, dict) else "",
)
def test_trainer_has_the_losses_of_the_cpu(tmp_path: Path, arguments: dict[str, Any], apart: float) -> None:
    trainer, losses = trained(tmp_path, **arguments)
    assert {parameter.device.type for parameter in trainer.model.parameters()} == {"ocl"}
    assert (trainer.accelerator.scaler is not None) == ("fp16" in arguments)
    assert trainer.evaluate()["eval_loss"] > 0
    plain = {name: value for name, value in arguments.items() if name not in ("bf16", "fp16")}
    _, expected = trained(tmp_path, use_cpu=True, **plain)
    assert losses == pytest.approx(expected, abs=apart)


def test_a_resumed_training_goes_on_with_the_same_random_numbers(tmp_path: Path) -> None:
    _, whole = trained(tmp_path, dropout=0.2, save_strategy="steps", save_steps=2)
    _, rest = trained(tmp_path / "other", dropout=0.2, resume=str(tmp_path / "checkpoint-2"))
    assert rest[-2:] == pytest.approx(whole[-2:], abs=1e-5)


def test_saved_state_of_accelerate_has_random_state_of_ocl(tmp_path: Path) -> None:
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator()
    accelerator.save_state(str(tmp_path))
    drawn = torch.randn(4, device=accelerator.device)
    accelerator.load_state(str(tmp_path))
    assert torch.equal(drawn, torch.randn(4, device=accelerator.device))


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=100, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=99, pad_token_id=99
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("cache", ["dynamic", "static", "offloaded"])
def test_generated_tokens_are_those_of_the_cpu(gpt: Path, cache: str) -> None:
    ids = torch.randint(0, 90, (2, 5), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": 6, "do_sample": False}
    expected = transformers.AutoModelForCausalLM.from_pretrained(gpt).generate(ids, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(gpt, device_map="auto")
    assert model.device.type == "ocl"
    found = model.generate(ids.to(model.device), cache_implementation=cache, **options)
    assert torch.equal(found.cpu(), expected)


def test_device_maps_have_the_memory_of_ocl(gpt: Path) -> None:
    free = torch.ocl.mem_get_info(0)[0]
    assert accelerate.utils.get_max_memory()[0] == pytest.approx(free, rel=0.1)
    with accelerate.init_empty_weights():
        net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    assert set(accelerate.infer_auto_device_map(net).values()) == {0}
    split = accelerate.infer_auto_device_map(net, max_memory={0: 40_000, "cpu": 10**9})
    assert set(split.values()) == {0, "cpu"}


def test_safetensors_are_read_straight_to_ocl(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason=REASON)
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    safetensors.save_file(tensors, tmp_path / "x.safetensors")
    for device in ("ocl", "ocl:0", torch.device("ocl"), torch.device("ocl", 0)):
        read = safetensors.load_file(tmp_path / "x.safetensors", device=device)
        assert all(read[name].device == torch.device("ocl", 0) for name in tensors)
        assert all(torch.equal(read[name].cpu(), tensors[name]) for name in tensors)


def test_lora_has_the_losses_of_the_cpu(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason=REASON)

    def adapted():
        settings = peft.LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS")
        return peft.get_peft_model(bert(), settings)

    trainer, losses = trained(tmp_path, model=adapted())
    _, expected = trained(tmp_path, model=adapted(), use_cpu=True)
    assert losses == pytest.approx(expected, abs=1e-3)
    trainer.model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(bert(), tmp_path / "adapter")
    assert {each.device.type for name, each in again.named_parameters() if "lora" in name} == {"cpu"}


STILL_NEEDED = """
import importlib
from dlbackend.integrations import HOOKED, patching
GENERIC = {"ocl", "privateuseone", "_get_privateuse1_backend_name", "current_accelerator"}
for name, here in HOOKED.items():
    if here in ("accelerate", "transformers", "peft") and importlib.util.find_spec(here):
        module = importlib.import_module(name)
        patches = importlib.import_module(f"dlbackend.integrations.{here}").PATCHES[name]
        for patch in patches:
            words = patching.words_of(patching.function_of(module, patch.target).__code__)
            if GENERIC & words:
                print(name, patch.target, "asks for any accelerator now: is the patch still needed?")
        for patch in patches:
            patch.apply(module)
"""


def test_every_patch_is_still_needed_and_fits() -> None:
    done = fresh_python(f"{SHIM}import dlbackend\n{STILL_NEEDED}", DLBACKEND_INTEGRATIONS="0")
    assert done.returncode == 0, done.stderr
    assert not done.stdout


@ocl_is_chosen
def test_without_the_patches_training_is_on_the_cpu() -> None:
    code = "import dlbackend, accelerate; print(accelerate.Accelerator().device)"
    assert fresh_python(SHIM + code, DLBACKEND_INTEGRATIONS="0").stdout == "cpu\n"  # otherwise the patches can go
