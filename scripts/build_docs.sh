#!/usr/bin/env bash
# Builds the documentation site from docs/ and the docstrings into build/site; a warning is an error. Arguments go to
# zensical, e.g. `scripts/build_docs.sh serve` to look at it while writing.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh docs
if [ $# -gt 0 ]; then exec .venv/bin/zensical "$@"; fi
.venv/bin/zensical build --strict --clean
echo "build/site/index.html"
