"""Ranks that share memory: which do, what they compute, and what is left when one is killed."""

import threading
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks import report, run_ranks

from dlbackend import _C, distributed

FOLDER = Path(__file__).parent


def problems(cases: dict[str, str]) -> dict[str, str]:
    return {case: problem for case, problem in cases.items() if problem}


@pytest.mark.parametrize("hosts", ["aa", "aaaa", "aab", "abab"])
def test_collectives(hosts: str) -> None:
    """`hosts` has a letter for each rank: the host that it is taken to be on."""
    names = list(hosts) if len(set(hosts)) > 1 else None
    cases = report(run_ranks(FOLDER / "shared_memory_program.py", size=len(hosts), hosts=names))
    assert {"shares memory", "nothing_is_left"} <= cases.keys()
    assert problems(cases) == {}


def test_killed_rank_raises_on_all_others_and_leaves_nothing() -> None:
    before = {path.name for path in Path("/dev/shm").iterdir()}
    ranks = run_ranks(FOLDER / "faults_program.py", "killed_in_the_middle", size=3)
    assert ranks[1].returncode == -9
    cases = report([ranks[0], ranks[2]])
    assert "killed" in cases
    assert problems(cases) == {}
    assert not {path.name for path in Path("/dev/shm").iterdir()} - before


def on_each(identities: list[str], call) -> list:
    """What `call(store, rank, size, identity)` gives on each rank. The ranks are threads."""
    store, results = dist.HashStore(), [None] * len(identities)

    def run(rank: int) -> None:
        results[rank] = call(store, rank, len(identities), identities[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(identities))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize(
    ("identities", "hosts"),
    [
        (["x", "x", "x"], [[0, 1, 2]]),
        (["x", "y", "x", "y", "z"], [[0, 2], [1, 3], [4]]),
        (["", "", "x", "x"], [[0], [1], [2, 3]]),  # two that can share with none
    ],
)
def test_ranks_find_those_of_their_host(identities: list[str], hosts: list[list[int]]) -> None:
    assert on_each(identities, distributed._hosts) == [hosts] * len(identities)


def test_all_ranks_use_gloo_where_one_is_refused(recwarn: pytest.WarningsRecorder) -> None:
    class Refusing:
        @staticmethod
        def Segment(*arguments):
            if len(arguments) == 2 and arguments[1] == 1:
                raise RuntimeError("Permission denied")
            return _C.Segment(*arguments)

    def share(store, rank, size, identity):
        return distributed._segment(Refusing, store, rank, size, [[0, 1, 2], [3]])

    assert on_each(["x"] * 4, share) == [None] * 4
    assert "rank 1: Permission denied" in str(recwarn.pop(UserWarning).message)


def test_addresses_that_are_wrong_raise() -> None:
    for address in ("none", "1 99999", f"{__import__('os').getpid()} 0"):
        with pytest.raises(RuntimeError):
            _C.Segment(address, 1)
