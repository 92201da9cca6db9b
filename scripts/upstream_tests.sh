#!/usr/bin/env bash
# Runs PyTorch's own device tests: scripts/upstream_tests.sh PYTORCH_CHECKOUT [FILES...], where the checkout is of the
# installed version's tag and files are as "test_view_ops.py" or "nn/test_pooling.py". docs/testing.md says more.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=python3
[ ! -x "$root/.venv/bin/python" ] || python="$root/.venv/bin/python"
exec "$python" "$root/tests/upstream/run_files.py" "$@"
