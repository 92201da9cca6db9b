"""What `python -m dlbackend` runs besides the tuner: info, doctor and cache."""
