#!/usr/bin/env bash
# Every hand-written kernel once under Oclgrind, which simulates a device and reports accesses outside of buffers, data
# races and divergent barriers; arguments go to tests/kernels/run.py, as `scripts/oclgrind.sh softmax` for some files.
# Needs a set-up clone (scripts/setup.sh test), and installs the package oclgrind where it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
exec scripts/driver.sh oclgrind "${PYTHON:-.venv/bin/python}" tests/kernels/run.py --keep build/oclgrind "$@"
