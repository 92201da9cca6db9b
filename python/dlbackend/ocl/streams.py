"""Streams (in-order OpenCL queues) and events of torch.ocl."""

from typing import Any

import torch

from dlbackend.ocl.device import DeviceLike, _lazy_init, device_index, set_device
from dlbackend.ocl.device import device as device_guard


class Stream(torch.Stream):
    """An in-order queue of work on one device; work of different streams may overlap."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **identity: int) -> "Stream":
        """Makes a stream.

        Args:
            device: where to make the stream; the current device if None.
            priority: for programs written for CUDA; all streams are equal here.
        """
        if identity:  # stream_id, device_index, device_type of a stream that exists
            return super().__new__(cls, priority=priority, **identity)
        _lazy_init()
        where = torch.device("ocl", device_index(device))
        return super().__new__(cls, device=where, priority=priority)

    def __repr__(self) -> str:
        return f"torch.ocl.Stream(device={self.device}, stream_id={self.stream_id})"


class _OclEvents(type):
    def __instancecheck__(cls, event: object) -> bool:
        return isinstance(event, torch.Event) and event.device.type == "ocl"


class Event(torch.Event, metaclass=_OclEvents):
    """A mark in a stream that other streams and the host can wait for.

    Makes plain torch.Event objects, because torch.Event.elapsed_time() accepts no subclass.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False) -> torch.Event:  # type: ignore[misc]
        """Makes an event.

        Args:
            enable_timing: let elapsed_time() measure between this event and another, in milliseconds.
            blocking: sleep rather than spin in synchronize().
        """
        return torch.Event(device="ocl", enable_timing=enable_timing, blocking=blocking)


def _wrap(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device: DeviceLike = None) -> Stream:
    """The stream that new work on `device` goes to."""
    _lazy_init()
    return _wrap(torch._C._accelerator_getStream(device_index(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that is current when no other was chosen."""
    current = current_stream(device)
    return Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` the current stream, and its device the current device, of this thread."""
    if stream is None:
        return
    _lazy_init()
    set_device(stream.device)
    torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager that makes a stream, and its device, current. Does nothing for None."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._guard: Any = None
        self._previous: torch.Stream | None = None

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self._guard = device_guard(self.stream.device)
            self._guard.__enter__()
            self._previous = current_stream(self.stream.device)
            torch._C._accelerator_setStream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            torch._C._accelerator_setStream(self._previous)
            self._guard.__exit__()
            self._previous = None


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager that makes a stream, and its device, current. Does nothing for None."""
    return StreamContext(stream)
