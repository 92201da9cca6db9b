"""Small programs as users write them, with nothing changed but the device: their losses are the CPU's.

They draw random numbers on the CPU, so that both see the same. Each trains for some dozens of steps, in which rounding
grows; the tolerances are wide for that, and narrow for a wrong result.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

import dlbackend

TOLERANCE = {  # of losses, absolute
    "mnist": 1e-4,
    "char_gpt": 1e-4,
    "dcgan": 1e-4,
    "vae": 1e-3,
    "ppo": 1e-4,
    "lstm_text": 1e-4,
    "classification": 1e-2,  # float16 against the CPU's float32
}
SLOW = ("classification", "ppo")  # most of the time is compiling kernels
CASES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in TOLERANCE]


def script(name: str):
    """The module tests/scripts/NAME.py."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_the_cpu(name: str) -> None:
    main = script(name).main
    dlbackend.reset_fallback_report()
    found = torch.tensor(main("ocl"))
    fallbacks = dlbackend.fallback_report()
    expected = torch.tensor(main("cpu"))
    apart = (found - expected).abs().max().item()
    print(f"{name}: ocl {found[-2:].tolist()}, CPU {expected[-2:].tolist()}, apart {apart:.2g}")
    assert torch.isfinite(found).all()
    assert torch.allclose(found, expected, rtol=0, atol=TOLERANCE[name]), apart
    assert fallbacks == {}


def test_every_script_is_tested() -> None:
    files = {file.stem for file in Path(__file__).parent.glob("*.py")} - {"test_scripts"}
    assert files == set(TOLERANCE)
