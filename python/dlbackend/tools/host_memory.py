"""How much of the host's memory a process needs."""


class Peak:
    """The most memory that this process held since the object was made, with what it held before already.

    The kernel's own figure never falls by itself. Linux starts it again on request, for the process: a second object
    ends what the first one counts. Elsewhere the peak is not known.
    """

    def __init__(self) -> None:
        try:
            with open("/proc/self/clear_refs", "w") as out:
                out.write("5")
            self._restarted = True
        except OSError:  # another system, or a container that forbids it
            self._restarted = False

    def bytes(self) -> int | None:
        """The peak so far; None where it is not known."""
        if not self._restarted:
            return None
        with open("/proc/self/status") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")), None)
