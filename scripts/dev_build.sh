#!/usr/bin/env bash
# Developer build: configures once, then builds incrementally into ./build and links what it makes into
# python/dlbackend, so that PYTHONPATH=python finds the package. Uses ccache when it is installed, and builds what tests
# need of C++.
set -euo pipefail
cd "$(dirname "$0")/.."
launcher=()
if command -v ccache >/dev/null; then
  export CCACHE_BASEDIR="$PWD" CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
  # GCC knows the headers in a precompiled header by their text, comments too. Without this, ccache takes one for another
  # that differs in comments alone, and the headers of both are then defined twice.
  export CCACHE_DEPEND=1
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
# Every file is compiled by itself, so that a change takes seconds; wheels compile a folder's files together.
[ -f build/build.ninja ] || cmake -S . -B build -G Ninja -DPython_EXECUTABLE="$(command -v python3)" "${launcher[@]}"
grep -q DLB_UNITY:BOOL=OFF build/CMakeCache.txt || cmake -DDLB_UNITY=OFF -DDLB_BUILD_TESTS=ON build
# ccache may then take precompiled headers by what they were made from, and so share objects between checkouts.
export CCACHE_PCH_EXTSUM=1
for part in ops primitives; do
  mkdir -p build/CMakeFiles/dlbackend-$part.dir
  {
    cat csrc/$part/pch.h
    [ $part = ops ] || cat csrc/cl/*.h csrc/codegen/*.h csrc/runtime/*.h csrc/solver/*.h
    python3 -c 'from importlib.metadata import version as v; print(v("torch"))'
    c++ --version
  } | sha256sum >build/CMakeFiles/dlbackend-$part.dir/cmake_pch.hxx.gch.sum
done
cmake --build build -j "${JOBS:-$(nproc)}" "$@"
ln -sf ../../build/libdlbackend.so python/dlbackend/libdlbackend.so
ln -sf ../../build/dlbackend-compiler python/dlbackend/dlbackend-compiler
ln -sf ../../build/_build.py python/dlbackend/_build.py
rmdir python/dlbackend/packs 2>/dev/null || true  # a folder of its own in older checkouts
ln -sfn ../../build/packs python/dlbackend/packs
for module in build/_C.*.so; do ln -sf "../../$module" "python/dlbackend/$(basename "$module")"; done
