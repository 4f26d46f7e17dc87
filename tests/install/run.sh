#!/usr/bin/env bash
# Installs a build, moves the prefix and uses the library from outside in every promised way.
#   run.sh SOURCE_DIR BUILD_DIR [CXX]
set -euo pipefail

source_dir=$1
build_dir=$2
export CXX=${3:-c++}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/multihead-install.XXXXXX")
trap 'rm -rf "$work" "$build_dir"-{outside,subproject,shared}' EXIT

# The same flags for all ways and folders beside the build's, so that ccache, where present, compiles the library once
# (with debug information it would not: that names the folder); and without precompiled headers, as users have it. At
# -O3 GCC 12 warns of its own strings.
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build_dir/CMakeCache.txt"; }
flags=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG" -DCMAKE_CXX_EXTENSIONS=OFF
  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
  -DMULTIHEAD_WERROR="$(cached MULTIHEAD_WERROR)" -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)")

step() { echo "== $*"; }

expect_output() {  # expect_output PROGRAM: it runs and prints what main.cc prints on success
  local got
  got=$("$1")
  echo "$got"
  [[ $got == "multihead 0."*" ok" ]] || { echo "unexpected output of $1" >&2; exit 1; }
}

# With the generator that CMake chooses for users. Make compiles a subproject in its own folder, so that its paths are
# those of a build of its own.
build_outside() {  # build_outside NAME WAY [cmake arguments]
  local name=$1 way=$2
  shift 2
  step "$name"
  cp -r "$here" "$work/$name"  # a project that lies outside the tree
  local build=$build_dir-outside
  rm -rf "$build" "$build_dir-subproject"
  cmake --no-warn-unused-cli -G "Unix Makefiles" -S "$work/$name" -B "$build" "${flags[@]}" -DWAY="$way" "$@" >"$work/$name.log" ||
    { cat "$work/$name.log"; exit 1; }
  cmake --build "$build" -j"$(nproc)" >>"$work/$name.log" 2>&1 || { tail -n 40 "$work/$name.log"; exit 1; }
  expect_output "$build/outside"
}

with_pkg_config() {  # with_pkg_config NAME PREFIX [--static]
  local name=$1 prefix=$2
  shift 2
  step "$name"
  local pc
  pc=$(dirname "$(find "$prefix" -name multihead.pc)")
  local -a linking
  read -ra linking <<<"$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs "$@" multihead)"
  "$CXX" -std=c++20 "$here/main.cc" -o "$work/$name" "${linking[@]}" -Wl,-rpath,"$(dirname "$pc")"
  expect_output "$work/$name"
}

check_prefix() {  # no path of the build or of the first prefix may remain in the package files
  if grep -rIl -e "$source_dir/" -e "$build_dir" -e "$work/first" "$1" --include='*.cmake' --include='*.pc'; then
    echo "the files above hold absolute paths" >&2
    exit 1
  fi
  [[ ! -e $1/include/multihead/testing ]] || { echo "testing/ was installed" >&2; exit 1; }
  [[ -z $(find "$1/include" -type d -empty) ]] || { echo "empty folders were installed" >&2; exit 1; }
}

check_symbols() {  # the shared library's carry its version, C's and C++'s
  local symbols
  symbols=$(readelf --dyn-syms --wide "$(find "$1" -name 'libmultihead.so')")
  for name in mh_attention _ZN9multihead7versionEv; do
    grep -q " $name@@MULTIHEAD_0\.[0-9]*\$" <<<"$symbols" || { echo "$name has no version" >&2; exit 1; }
  done
}

run_program() {  # run_program PREFIX: it starts, and finds the modules that were installed
  [[ -x $1/bin/multihead ]] || return 0
  "$1/bin/multihead" --version
  [[ -n $(find "$1" -name multihead_sockets.so) ]] || return 0
  local said
  said=$("$1/bin/multihead" lab nowhere 2>&1 || true)
  [[ $said != *"needs multihead_sockets.so"* ]] || { echo "$said" >&2; exit 1; }
}

step "install static, then move the prefix"
cmake --install "$build_dir" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/moved"
check_prefix "$work/moved"
run_program "$work/moved"

build_outside find-static find_package -DCMAKE_PREFIX_PATH="$work/moved"

step "examples/downstream, a project outside the tree: learns, saves and loads"
cp -r "$source_dir/examples/downstream" "$work/rings"
cmake -G Ninja -S "$work/rings" -B "$work/rings/build" "${flags[@]}" -DCMAKE_PREFIX_PATH="$work/moved" >"$work/rings.log"
ninja -C "$work/rings/build" >>"$work/rings.log" || { tail -n 40 "$work/rings.log"; exit 1; }
"$work/rings/build/rings" "$work/rings/points.csv" "$work/rings/model.safetensors"

if command -v pkg-config >/dev/null; then
  with_pkg_config pkg-config-static "$work/moved" --static
  with_pkg_config pkg-config-plain "$work/moved"
fi
if command -v pkg-config >/dev/null; then
  step "a plugin that holds the library, opened and closed while its threads wait"
  read -ra linking <<<"$(PKG_CONFIG_PATH=$(dirname "$(find "$work/moved" -name multihead.pc)") pkg-config --cflags --libs --static multihead)"
  "$CXX" -std=c++20 -fPIC -shared "$here/plugin.cc" -o "$work/plugin.so" "${linking[@]}" -Wl,--exclude-libs,ALL
  "$CXX" -std=c++20 "$here/plugin_host.cc" -o "$work/plugin_host"
  "$work/plugin_host" "$work/plugin.so"
fi
subproject=(-DMULTIHEAD_SOURCE="$source_dir" -DMULTIHEAD_BINARY="$build_dir-subproject")
build_outside subdirectory add_subdirectory "${subproject[@]}"
build_outside fetch-content FetchContent "${subproject[@]}"

step "build and install shared, then move the prefix"
cmake -G Ninja -S "$source_dir" -B "$build_dir-shared" "${flags[@]}" -DBUILD_SHARED_LIBS=ON \
  -DMULTIHEAD_BUILD_TESTS=OFF -DMULTIHEAD_BUILD_EXAMPLES=OFF >"$work/shared.log"
ninja -C "$build_dir-shared" >>"$work/shared.log" || { tail -n 40 "$work/shared.log"; exit 1; }
cmake --install "$build_dir-shared" --prefix "$work/first" >>"$work/shared.log"
mv "$work/first" "$work/moved-shared"
rm -rf "$build_dir-shared"  # so that nothing is found there
check_prefix "$work/moved-shared"
check_symbols "$work/moved-shared"
run_program "$work/moved-shared"
build_outside find-shared find_package -DCMAKE_PREFIX_PATH="$work/moved-shared"
if command -v pkg-config >/dev/null; then with_pkg_config pkg-config-shared "$work/moved-shared"; fi

step "all ways work"
