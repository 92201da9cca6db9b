#!/usr/bin/env bash
# From a fresh clone to a trained network: sets up what is missing, then trains a CNN on real digits on the device.
# Arguments go to examples/train_digits.py.
set -euo pipefail
"$(dirname "$0")/setup.sh" examples
cd "$(dirname "$0")/.."
exec .venv/bin/python examples/train_digits.py "$@"
