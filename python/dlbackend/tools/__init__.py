"""The commands of `python -m dlbackend` besides tune: info, doctor, cache, validate and bench."""
