#!/usr/bin/env bash
# From a fresh clone to passed tests: sets up what is missing, then runs pytest, one worker a core. Tests marked slow run
# only with --all, which comes first; other arguments go to pytest.
set -euo pipefail
"$(dirname "$0")/setup.sh" test
cd "$(dirname "$0")/.."
which=(-m "not slow")
if [ "${1:-}" = --all ]; then
  which=()
  shift
fi
exec .venv/bin/python -m pytest -n auto --maxprocesses 8 "${which[@]}" "$@"
