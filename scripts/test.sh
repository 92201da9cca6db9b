#!/usr/bin/env bash
# From a fresh clone to passed tests: sets up what is missing, then runs pytest, one worker a core. Workers take tests
# in the order of the files, since those of a file share fixtures and kernels. Tests marked slow run only with --all,
# which comes first; other arguments go to pytest. `--driver intel` instead runs the quick form, the tests that
# tests/drivers.py lists, on another OpenCL implementation (scripts/driver.sh has their names), and
# `--driver intel --all` the whole suite.
set -euo pipefail
"$(dirname "$0")/setup.sh" test
cd "$(dirname "$0")/.."
which=(-m "not slow")
on=()
if [ "${1:-}" = --driver ]; then
  on=(scripts/driver.sh "${2:?name the driver, as in --driver intel}")
  which=(-m drivers $(.venv/bin/python tests/drivers.py))  # without the other files, which take long to collect
  shift 2
fi
if [ "${1:-}" = --all ]; then
  which=()
  shift
fi
exec "${on[@]}" .venv/bin/python -m pytest -n auto --maxprocesses 8 --dist worksteal "${which[@]}" "$@"
