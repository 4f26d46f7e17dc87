#!/usr/bin/env bash
# The lab as one HTML file that needs no server: build/browser/lab.html. The library inside is WebAssembly.
#   scripts/browser_lab.sh            compiles (Emscripten: apt-get install emscripten node-acorn) and puts the page together
#   scripts/browser_lab.sh --test     moreover compares bits with the native program and tries the page in Chromium
set -euo pipefail
cd "$(dirname "$0")/.."

command -v em++ >/dev/null || { echo "browser_lab: no Emscripten (apt-get install emscripten node-acorn)" >&2; exit 1; }
python3 -c 'import sklearn' || { echo "browser_lab: no digits (pip install scikit-learn)" >&2; exit 1; }
export NODE_PATH=${NODE_PATH:-/usr/share/nodejs} # where Debian keeps acorn, which Emscripten asks for
out=build/browser
packaging/dependencies.sh $out/dependencies wasm32-emscripten
cmake -G Ninja -S . -B $out/wasm --toolchain $out/dependencies/toolchain.cmake -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_CXX_EXTENSIONS=OFF -DMULTIHEAD_BUILD_TESTS=OFF \
  -DMULTIHEAD_BUILD_CLI=OFF -DMULTIHEAD_INSTALL=OFF >$out/configure.log
ninja -C $out/wasm -j"${JOBS:-$(nproc)}" browser_lab
scripts/build.sh release browser_lab

native=build/release/examples/browser/browser_lab
module=$out/wasm/examples/browser/browser_lab.js
python3 examples/browser/data.py $native $out
python3 examples/browser/page.py $module $out/data.json $out/page.json $out/lab.html
ls -l $out/lab.html
if [[ ${1:-} == --test ]]; then
  python3 examples/browser/compare.py $native $module $out/data.json
  mkdir -p $out/pictures
  node examples/browser/page_test.js $out/lab.html $out/pictures
fi
