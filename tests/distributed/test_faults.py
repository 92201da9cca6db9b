"""Late, killed and absent peers: errors within seconds, and processes that end."""

from pathlib import Path

import pytest
import torch
from fresh_process import fresh_python
from ranks import free_port, report, run_ranks

import dlbackend_autoload

PROGRAM = Path(__file__).with_name("faults_program.py")


def problems(cases: dict[str, str]) -> dict[str, str]:
    return {case: problem for case, problem in cases.items() if problem}


@pytest.mark.parametrize("hosts", [None, ["a", "b"]])
def test_killed_peer_raises_at_once(hosts: list[str] | None) -> None:
    survivor, killed = run_ranks(PROGRAM, "killed_peer", hosts=hosts)
    assert killed.returncode == -9
    cases = report([survivor])
    assert {"killed peer", "again"} <= cases.keys()
    assert problems(cases) == {}


@pytest.mark.parametrize("case", ["timeout", "wait_with_timeout"])
def test_late_peer_raises(case: str) -> None:
    cases = report(run_ranks(PROGRAM, case))
    assert cases
    assert problems(cases) == {}


def test_process_ends_with_work_pending() -> None:
    first, second = run_ranks(PROGRAM, "exit_with_pending_work")
    assert (first.returncode, first.stderr) == (0, "")
    assert report([second]) == {"exit": ""}


def test_process_ends_without_destroying_the_group() -> None:
    for process in run_ranks(PROGRAM, "exit_without_destroying"):
        assert (process.returncode, process.stderr) == (0, "")


CPU_ONLY = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group()
model = DDP(torch.nn.Linear(3, 2))
model(torch.ones(4, 3)).sum().backward()
assert model.module.weight.grad.sum() == 24
dist.barrier()
assert not torch.ocl.is_initialized()
dist.destroy_process_group()
"""


@pytest.mark.skipif(
    dlbackend_autoload.other_accelerator(torch) is not None,
    reason="PyTorch itself then takes that accelerator's backend alone, which has no CPU tensors",
)
def test_programs_on_the_cpu_need_no_backend_name() -> None:
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1"}
    process = fresh_python(CPU_ONLY, **group)
    assert process.returncode == 0, process.stderr


@pytest.mark.slow
def test_torchrun(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group()\n"
        "x = torch.ones(3, device='ocl')\n"
        "dist.all_reduce(x)\n"
        "print(x.sum().item())\n"
        "dist.destroy_process_group()\n"
    )
    code = f"from torch.distributed.run import main; main(['--nproc-per-node', '2', {str(program)!r}])"
    process = fresh_python(code, RANK=None, WORLD_SIZE=None)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("6.0") == 2
