"""Everything that a published figure comes from: `python -m benchmarks` compares ocl with a peer device."""
