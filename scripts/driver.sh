#!/usr/bin/env bash
# Runs a command on one OpenCL implementation, and on no other that the machine has; installs that one where it is
# missing:
#
#     scripts/driver.sh intel|pocl|basic|rusticl|oclgrind COMMAND...
#
# Intel's CPU runtime comes by pip and stays in build/drivers; the others are Debian packages, "basic" PoCL without threads of
# its own. docs/testing.md says what each of them is good for.
set -euo pipefail
top="$(cd "$(dirname "$0")/.." && pwd)"
[ $# -ge 2 ] || { sed -n '2,8p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2; }
name="$1"
shift
log="$top/build/driver-$name.log"
mkdir -p "$top/build"

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

logged() {
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; echo "[driver] failed: $* (whole output in $log)" >&2; exit 1; }
}

packages() {  # installs those that dpkg does not have
  local missing=() package
  for package in "$@"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  echo "[driver] installing ${missing[*]}" >&2
  logged as_root apt-get update -q
  logged as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

loader_of() {  # the ICD loader sees this file of the vendors' folder alone
  export OCL_ICD_VENDORS="$1"
  unset DLBACKEND_OPENCL_LIBRARY OCL_ICD_FILENAMES
}

case "$name" in
  intel)
    prefix="$top/build/drivers/intel"
    if [ ! -e "$prefix/lib/libintelocl.so" ]; then
      echo "[driver] installing intel-opencl-rt and intel-cmplr-lib-rt (830 MB) into ${prefix#"$top"/}" >&2
      # The runtime does not declare that it needs the second. A prefix of its own keeps it out of the environment's
      # library folder, where it would be a second device for every program.
      logged "$top/.venv/bin/python" -m pip --disable-pip-version-check install --ignore-installed --prefix "$prefix" \
        intel-opencl-rt intel-cmplr-lib-rt
    fi
    export DLBACKEND_OPENCL_LIBRARY="$prefix/lib/libintelocl.so"
    export LD_LIBRARY_PATH="$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    ;;
  pocl)
    packages ocl-icd-libopencl1 pocl-opencl-icd
    loader_of pocl.icd
    ;;
  basic)
    packages ocl-icd-libopencl1 pocl-opencl-icd
    loader_of pocl.icd
    export POCL_DEVICES=basic
    ;;
  rusticl)
    packages ocl-icd-libopencl1 mesa-opencl-icd
    loader_of rusticl.icd
    # The driver shows no device unless it is named. Double precision is computed, but not listed unasked.
    export RUSTICL_ENABLE="${RUSTICL_ENABLE:-llvmpipe}" RUSTICL_FEATURES="${RUSTICL_FEATURES:-fp64}"
    ;;
  oclgrind)
    packages oclgrind
    export DLBACKEND_OPENCL_LIBRARY=/usr/lib/oclgrind/liboclgrind-rt.so
    ;;
  *)
    echo "[driver] $name is none of intel, pocl, basic, rusticl, oclgrind" >&2
    exit 2
    ;;
esac
exec "$@"
