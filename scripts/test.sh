#!/usr/bin/env bash
# From a fresh clone to passed tests: sets up what is missing, then runs pytest. Arguments go to pytest.
set -euo pipefail
"$(dirname "$0")/setup.sh" test
cd "$(dirname "$0")/.."
exec .venv/bin/python -m pytest "$@"
