#!/usr/bin/env bash
# Configures and builds one CMake preset in build/<preset>, on all processors (JOBS=n for fewer).
#   scripts/build.sh [PRESET [TARGET...]]     default: release, everything
set -euo pipefail
cd "$(dirname "$0")/.."

# One compiler cache serves every clone: paths inside the tree count relative to it.
export CCACHE_BASEDIR=${CCACHE_BASEDIR-$PWD} CCACHE_NOHASHDIR=1

preset=${1:-release}
shift || true
mkdir -p "build/$preset"
if ! cmake --preset "$preset" >"build/$preset/configure.log" 2>&1; then
  cat "build/$preset/configure.log" >&2
  exit 1
fi
ninja -C "build/$preset" -j"${JOBS:-$(nproc)}" "$@"
