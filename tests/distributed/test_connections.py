"""The connections that gloo is given."""

from datetime import timedelta

import pytest
import torch.distributed.distributed_c10d as c10d

from dlbackend import distributed

GLOO = c10d.ProcessGroupGloo
TIMEOUT = timedelta(seconds=77)


@pytest.mark.parametrize(("size", "devices"), [(1, 8), (16, 8), (32, 4), (1000, 2)])
def test_large_groups_have_fewer_connections(size, devices, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    options = distributed._options(GLOO, size, TIMEOUT)
    assert len(options._devices) == devices
    assert options._timeout == TIMEOUT


def test_groups_share_devices(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    first, second = (distributed._devices(GLOO, 1, "lo") for _ in range(2))
    assert first is second
    assert distributed._devices(GLOO, 2, "lo") is not first  # another process: a child has none of the threads


def test_interfaces_that_are_named_are_all_taken():
    assert len(distributed._devices(GLOO, 3, *["lo"] * 9)) == 9
    with pytest.raises(RuntimeError, match=r"no such interface|Unable to find"):
        distributed._devices(GLOO, 3, "lo", "no_such_interface")
