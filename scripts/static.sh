#!/usr/bin/env bash
# Builds build/static/multihead: the whole command line in one file that needs no library of the system it runs on; the
# licences of what it holds are in build/static/LICENSES.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

packaging/dependencies.sh build/static
printf '\n==> the C library <==\n' | cat - /usr/share/doc/libc6/copyright >>build/static/LICENSES.txt
cmake -G Ninja -S . -B build/static/program --toolchain build/static/toolchain.cmake -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_EXTENSIONS=OFF -DMULTIHEAD_STATIC_PROGRAM=ON -DMULTIHEAD_BUILD_TESTS=OFF \
  -DMULTIHEAD_BUILD_EXAMPLES=OFF -DMULTIHEAD_INSTALL=OFF >build/static/configure.log
ninja -C build/static/program -j"${JOBS:-$(nproc)}" multihead_cli
strip -o build/static/multihead build/static/program/multihead
if readelf -d build/static/multihead | grep NEEDED; then
  echo "scripts/static.sh: the program needs the libraries above" >&2
  exit 1
fi
ls -l build/static/multihead
