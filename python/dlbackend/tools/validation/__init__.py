"""python -m dlbackend validate: networks on the device against the same networks on the CPU."""
