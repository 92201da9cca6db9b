#!/usr/bin/env bash
# Sets this clone up: system packages, a virtual environment in .venv, torch, the build. Says what it installs, does
# only what is missing, and takes a second when nothing is. Called by run.sh and test.sh, with the extra that they need;
# all extras share one build:
#
#     scripts/setup.sh examples|test|lint
#
# As root, or with sudo, it installs Debian or Ubuntu packages; else it names what is missing. Variables: PYTHON (the
# interpreter to start from; python3), JOBS (parallel compilers; as many as cores and memory allow).
set -euo pipefail
cd "$(dirname "$0")/.."
extra="${1:-examples}"
base_python="${PYTHON:-python3}"
venv="$PWD/.venv"
python="$venv/bin/python"
log="$PWD/build/setup-$extra.log"
mkdir -p build
: >"$log"

report() { printf '\033[1m[setup]\033[0m %s\n' "$*"; }
fail() { printf '[setup] %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

can_install() {
  command -v apt-get >/dev/null || return 1
  [ "$(id -u)" = 0 ] && return 0
  command -v sudo >/dev/null || return 1
  sudo -n true 2>/dev/null || [ -t 0 ]  # without a terminal sudo could not ask for the password
}

# Runs a command with its output in the log only; shows the log's end if the command fails.
logged() {
  echo "+ $*" >>"$log"
  "$@" >>"$log" 2>&1 || { tail -n 40 "$log" >&2; fail "failed: $* (whole output in $log)"; }
}

apt_install() {
  report "installing system packages: $*"
  logged as_root apt-get update -q
  logged as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# --- System packages: a compiler, Python's headers and venv, OpenCL's headers -----------------------------------------

missing=()
command -v "$base_python" >/dev/null || missing+=(python3)
compiles_cxx20() { echo '#include <span>' | "${CXX:-c++}" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; }
compiles_cxx20 || missing+=(g++)
[ -f "${OPENCL_HEADERS_DIR:-/usr/include}/CL/cl.h" ] || missing+=(opencl-headers)
python_headers() {
  "$base_python" -c 'import os, sysconfig as s; raise SystemExit(not os.path.exists(s.get_path("include") + "/Python.h"))'
}
python_headers 2>/dev/null || missing+=(python3-dev)
[ -x "$python" ] || "$base_python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
# The C++ unit tests are built where doctest is; it is installed where that needs no password.
doctest=/usr/include/doctest/doctest.h
[ "$extra" != test ] || [ -f $doctest ] || ! can_install || missing+=(doctest-dev)
if [ ${#missing[@]} -gt 0 ]; then
  can_install || fail "missing: ${missing[*]}. Ask an administrator for: apt-get install ${missing[*]}"
  apt_install "${missing[@]}"
  compiles_cxx20 || fail "the C++ compiler is older than C++20: install g++ 10 or newer, or name one in CXX"
fi
"$base_python" -c 'import sys; raise SystemExit(sys.version_info < (3, 10))' || fail "Python 3.10 or newer is needed"

# --- The virtual environment, with torch ------------------------------------------------------------------------------

if [ ! -x "$python" ]; then
  options=()
  supported='import torch; v = tuple(map(int, torch.__version__.split(".")[:2])); raise SystemExit(not (2, 11) <= v < (2, 14))'
  if DLBACKEND_AUTOLOAD=0 "$base_python" -c "$supported" 2>/dev/null; then
    report "using the torch that $base_python has"
    options+=(--system-site-packages)
  fi
  report "making a virtual environment in .venv"
  logged "$base_python" -m venv "${options[@]}" "$venv"
fi
pip=("$python" -m pip --disable-pip-version-check)
torch_version() { "$python" -c 'from importlib.metadata import version as v; print(v("torch"))' 2>/dev/null; }
if ! [[ "$(torch_version)" =~ ^2\.1[123]\. ]]; then
  report "installing torch 2.13.0 (its CPU-only build is enough; PIP_INDEX_URL and PIP_EXTRA_INDEX_URL are honoured)"
  logged "${pip[@]}" install torch==2.13.0
fi

# --- An OpenCL device, if there is none -------------------------------------------------------------------------------

has_device() { "$python" python/dlbackend/tools/opencl_probe.py >/dev/null 2>&1; }
if ! has_device; then
  if can_install; then
    report "no OpenCL device found: installing PoCL, which computes on the CPU"
    apt_install ocl-icd-libopencl1 pocl-opencl-icd
  else
    report "no OpenCL device found: installing Intel's CPU runtime (intel-opencl-rt, intel-cmplr-lib-rt) into .venv"
    logged "${pip[@]}" install intel-opencl-rt intel-cmplr-lib-rt
  fi
  has_device || fail "still no OpenCL device: $("$python" python/dlbackend/tools/opencl_probe.py 2>&1)"
fi

# --- The build; skipped while neither sources nor torch have changed ---------------------------------------------------

# Prints only what a build reads of pyproject.toml, so that a change of an extra or of a linter's settings compiles
# nothing.
build_settings() {
  "$python" - <<'PYTHON'
import json
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
settings = tomllib.load(open("pyproject.toml", "rb"))
settings["project"].pop("optional-dependencies", None)
settings["tool"] = {k: v for k, v in settings["tool"].items() if k in ("dynamic-metadata", "scikit-build")}
print(json.dumps(settings, sort_keys=True))
PYTHON
}

fingerprint() {
  {
    torch_version
    "$python" -VV
    build_settings
    find csrc cmake packs python CMakeLists.txt -type f ! -name '*.so' ! -name '_build.py' ! -name '*.pyc' \
      -print0 | sort -z | xargs -0 sha256sum
  } | sha256sum | cut -d' ' -f1
}

default_jobs() {  # a compiler takes up to 1.5 GB
  local memory cores
  memory=$(awk '/MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo)
  cores=$(nproc)
  echo $((memory < 1 ? 1 : memory < cores ? memory : cores))
}

# Shows ninja's "[12/60] ..." lines: on a terminal the last one in place, else one every tenth or 20 s. Once a tenth is
# done, it says how long the rest will take: files take about equally long.
show_progress() {
  local start=$SECONDS reported=$SECONDS tenth=0 done_ total left
  sed -u -n 's/^ *\[\([0-9]*\)\/\([0-9]*\)\] .*/\1 \2/p' | while read -r done_ total; do
    left=$(((SECONDS - start) * (total - done_) / (done_ > 0 ? done_ : 1)))
    left=$([ $((done_ * 10)) -lt "$total" ] || [ "$done_" = "$total" ] || echo ", about $((left / 60 + 1)) min left")
    if [ -t 1 ]; then
      printf '\r  compiling %s/%s%s \033[K' "$done_" "$total" "$left"
    elif [ $((done_ * 10 / total)) -gt $tenth ] || [ $((SECONDS - reported)) -ge 20 ]; then
      tenth=$((done_ * 10 / total)) reported=$SECONDS
      echo "  compiling $done_/$total$left"
    fi
  done
  [ -t 1 ] && echo
  return 0
}

stamp="$venv/dlbackend-build.stamp"
now="$(fingerprint)"
if [ "$(cat "$stamp" 2>/dev/null)" != "$now" ]; then
  export CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(default_jobs)}"
  report "installing build tools: scikit-build-core, cmake, ninja"
  logged "${pip[@]}" install 'scikit-build-core>=1.0' cmake ninja
  report "building dlbackend with $CMAKE_BUILD_PARALLEL_LEVEL jobs: 8 to 10 minutes on two cores where nothing is built yet"
  report "the compiler's output: tail -f ${log#"$PWD"/}"
  "${pip[@]}" install -v --no-build-isolation --no-deps --force-reinstall . 2>&1 | tee -a "$log" | show_progress ||
    { tail -n 40 "$log" >&2; fail "the build failed (whole output in $log)"; }
  (cd / && logged "$python" -c 'import dlbackend')
  echo "$now" >"$stamp"
fi

# --- The Python packages of the extra; its requirements are in pyproject.toml ------------------------------------------

requirements() {  # one a line, with those of other extras that it names
  "$python" - "$extra" <<'PYTHON'
import re, sys
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
def show(extra):
    for requirement in extras[extra]:
        other = re.fullmatch(r"dlbackend\[(.*)\]", requirement)
        show(other[1]) if other else print(requirement)
show(sys.argv[1])
PYTHON
}

mapfile -t needed < <(requirements)
stamp="$venv/dlbackend-$extra.stamp"
now="$(torch_version) ${needed[*]}"
if [ "$(cat "$stamp" 2>/dev/null)" != "$now" ]; then
  report "installing what '$extra' needs: ${needed[*]}"
  logged "${pip[@]}" install "${needed[@]}"
  if [ "$extra" = test ]; then
    # The release made for this torch; by its own dependencies pip would replace torch by another build of it.
    torchvision="0.$(($(torch_version | cut -d. -f2) + 15))"
    report "installing torchvision $torchvision, whose networks the tests run"
    logged "${pip[@]}" install --no-deps "torchvision==$torchvision.*"
  fi
  echo "$now" >"$stamp"
fi

# --- What tests need of C++, in the tree of the build --------------------------------------------------------------------

if [ "$extra" = test ]; then
  tree="$(ls -td build/cpython-*/ | head -n 1)"
  PATH="$venv/bin:$PATH" logged cmake -DDLB_BUILD_TESTS=ON "$tree"
  PATH="$venv/bin:$PATH" logged cmake --build "$tree" --target dlbackend-tests
fi
