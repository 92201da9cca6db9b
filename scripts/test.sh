#!/usr/bin/env bash
# From a fresh clone to passed tests: sets up what is missing, then runs pytest, one worker a core. Arguments go to pytest.
set -euo pipefail
"$(dirname "$0")/setup.sh" test
cd "$(dirname "$0")/.."
exec .venv/bin/python -m pytest -n auto --maxprocesses 8 "$@"
