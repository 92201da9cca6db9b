"""accelerate, transformers' Trainer and Lightning on two processes that share a device, against one on the CPU."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fresh_process import run_python
from packages import ocl_is_chosen
from ranks import free_port

REASON = "pip install accelerate transformers lightning, as docs/ecosystem.md says"
for package in ("accelerate", "transformers", "lightning"):
    pytest.importorskip(package, reason=REASON)
from ranks_program import BATCH, STEPS, on_the_cpu  # noqa: E402
from small_bert import trained  # noqa: E402

PROGRAM = Path(__file__).with_name("ranks_program.py")
TESTS = str(PROGRAM.parent.parent)
TORCHRUN: tuple[str, ...] = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
ACCELERATE: tuple[str, ...] = (
    "-m",
    "accelerate.commands.launch",
    "--multi_gpu",
    "--num_processes",
    "2",
    "--num_machines",
    "1",
)
ACCELERATE += ("--mixed_precision", "no", "--dynamo_backend", "no")
BY_ITSELF: tuple[str, ...] = ()  # Lightning starts the second process
VARIABLES = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def losses_of_both(launcher: tuple[str, ...], case: str, folder: Path) -> list[list[float]]:
    port = str(free_port())
    if launcher:
        launcher += ("--main_process_port" if launcher is ACCELERATE else "--master-port", port)
    path = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    variables = {**VARIABLES, "PYTHONPATH": path, **({} if launcher else {"MASTER_PORT": port})}
    done = run_python(*launcher, str(PROGRAM), case, str(folder), **variables)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("found ")]
    assert [each["fallbacks"] for each in found] == [{}, {}], done.stdout
    return [each["losses"] for each in found]


@ocl_is_chosen
@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "case"),
    [
        (TORCHRUN, "accelerate"),
        (ACCELERATE, "accelerate"),
        (TORCHRUN, "accelerate_fsdp1"),
        (TORCHRUN, "accelerate_fsdp2"),
        (TORCHRUN, "trainer"),
        (TORCHRUN, "trainer_fsdp1"),
        (TORCHRUN, "trainer_fsdp2"),
        (TORCHRUN, "lightning"),
        (BY_ITSELF, "lightning"),
    ],
    ids=lambda value: {TORCHRUN: "torchrun", ACCELERATE: "launch", BY_ITSELF: "alone"}.get(value, value),
)
def test_losses_are_those_of_one_process(tmp_path: Path, launcher: tuple[str, ...], case: str) -> None:
    if case.startswith("trainer"):
        options: dict[str, Any] = {"use_cpu": True, "max_steps": STEPS, "per_device_train_batch_size": BATCH}
        _, expected = trained(tmp_path, **options)
    else:
        expected = on_the_cpu()
    assert len(expected) == STEPS
    for losses in losses_of_both(launcher, case, tmp_path):
        assert losses == pytest.approx(expected, abs=1e-3)
