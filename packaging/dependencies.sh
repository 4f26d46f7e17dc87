#!/usr/bin/env bash
# What multihead needs, built from Debian's sources as static libraries into FOLDER/root. Without TARGET by this
# machine's compiler; with TARGET (x86_64-linux-gnu.2.28, aarch64-linux-musl, ...) by Zig's Clang, which links against
# any C library, whatever this machine has; wasm32-emscripten is Emscripten's, and what the library alone needs.
# FOLDER/toolchain.cmake is for the builds that use them, FOLDER/LICENSES.txt goes with what they make. What is there is
# kept.
#   packaging/dependencies.sh FOLDER [TARGET]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh --package
mkdir -p "$1"
folder=$(realpath "$1")
target=${2:-}
jobs=${JOBS:-$(nproc)}

{
  if [[ $target == wasm32-emscripten ]]; then
    echo "set(CMAKE_CXX_FLAGS_INIT \"-msimd128 -fwasm-exceptions -include $PWD/cmake/emscripten.h\")"
    echo "include($(dirname "$(realpath "$(command -v emcc)")")/cmake/Modules/Platform/Emscripten.cmake)"
  elif [[ $target ]]; then
    zig=build/zig/bin/python
    if [[ ! -x $zig ]]; then
      python3 -m venv build/zig
      "$zig" -m pip install --quiet ziglang==0.17.1
    fi
    cpu="" # the least that an x86-64 or ARM processor has, and on ARM AES besides: Highway's NEON counts it in
    if [[ $target == aarch64-* ]]; then cpu="-mcpu=generic+crypto"; fi
    for tool in cc c++ ar ranlib; do
      flags=""
      if [[ $tool == c* ]]; then flags="-target $target $cpu -fno-sanitize=undefined"; fi # Zig adds it
      printf '#!/bin/sh\nexec %q -m ziglang %s %s "$@"\n' "$PWD/$zig" "$tool" "$flags" >"$folder/$tool"
      chmod +x "$folder/$tool"
    done
    cat <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${target%%-*})
set(CMAKE_C_COMPILER $folder/cc)
set(CMAKE_CXX_COMPILER $folder/c++)
set(CMAKE_AR $folder/ar)
set(CMAKE_RANLIB $folder/ranlib)
END
  fi
  cat <<END
set(CMAKE_FIND_ROOT_PATH $folder/root)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_LIBDIR} $folder/root/lib/pkgconfig:$folder/root/share/pkgconfig)
END
} >"$folder/toolchain.cmake"

# The sources, by name, from Debian; a machine without its source list gets one of its own for the download.
sources=build/sources
mkdir -p "$sources"
fetch() {
  local list
  list=$(mktemp -d)
  mkdir "$list/lists" # apt deletes other files there
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main" \
    >"$list/sources.list"
  local options=(-o "Dir::Etc::sourcelist=$list/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$list/lists" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" -qq update
  (cd "$sources" && apt-get "${options[@]}" -qq source --download-only "$@")
  rm -r "$list"
}

packages=(highway utf8proc nlohmann-json3)
if [[ $target != wasm32-emscripten ]]; then packages+=(fmtlib zlib libpng1.6 libevent); fi
missing=()
for package in "${packages[@]}"; do
  compgen -G "$sources/${package}_*.orig.tar.*" >/dev/null || missing+=("$package")
done
if ((${#missing[@]})); then fetch "${missing[@]}"; fi

install_package() {  # install_package PACKAGE [CMake options]
  local package=$1 source=$folder/src/$1
  shift
  if [[ -e $folder/$package.done ]]; then return; fi
  mkdir -p "$source"
  tar -xf "$sources/${package}"_*.orig.tar.* -C "$source" --strip-components=1
  if [[ $package == zlib ]]; then  # Debian left it out, and only Windows compiles it
    mkdir -p "$source/win32"
    touch "$source/win32/zlib1.rc"
  fi
  if ! {
    cmake -G Ninja -S "$source" -B "$source/build" --toolchain "$folder/toolchain.cmake" -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_INSTALL_PREFIX="$folder/root" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF \
      -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_TESTING=OFF "$@" && ninja -C "$source/build" -j"$jobs" install
  } >"$folder/$package.log" 2>&1; then
    tail -n 40 "$folder/$package.log" >&2
    exit 1
  fi
  mkdir -p "$folder/licenses"
  grep -h --directories=skip '' "$source"/LICENSE* >"$folder/licenses/$package"
  rm -rf "$source" "$folder"/root/lib/*.so*
  touch "$folder/$package.done"
}

install_package highway -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF -DHWY_ENABLE_TESTS=OFF
install_package utf8proc
install_package nlohmann-json3 -DJSON_BuildTests=OFF
if [[ $target != wasm32-emscripten ]]; then
  install_package fmtlib -DFMT_TEST=OFF -DFMT_DOC=OFF
  install_package zlib -DCMAKE_SHARED_LINKER_FLAGS=-Wl,--undefined-version  # its list names functions it has not
  install_package libpng1.6 -DPNG_SHARED=OFF -DPNG_TESTS=OFF -DPNG_EXECUTABLES=OFF
  install_package libevent -DEVENT__LIBRARY_TYPE=STATIC -DEVENT__DISABLE_OPENSSL=ON -DEVENT__DISABLE_MBEDTLS=ON \
    -DEVENT__DISABLE_TESTS=ON -DEVENT__DISABLE_SAMPLES=ON -DEVENT__DISABLE_REGRESS=ON -DEVENT__DISABLE_BENCHMARK=ON \
    -DEVENT__DISABLE_THREAD_SUPPORT=ON
fi
(cd "$folder/licenses" && tail -n +1 -- *) >"$folder/LICENSES.txt"

# Headers of Highway's that are installed with a library we do not use.
tar -xf "$sources"/highway_*.orig.tar.* -C "$folder/root/include" --strip-components=1 --wildcards '*/hwy/contrib/*.h'

# Highway 1.0.3 installs no CMake package of its own.
mkdir -p "$folder/root/lib/cmake/HWY"
cat >"$folder/root/lib/cmake/HWY/HWYConfig.cmake" <<'END'
if(NOT TARGET hwy::hwy)
  add_library(hwy::hwy STATIC IMPORTED)
  set_target_properties(hwy::hwy PROPERTIES
    IMPORTED_LOCATION ${CMAKE_CURRENT_LIST_DIR}/../../libhwy.a
    INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_LIST_DIR}/../../../include)
endif()
END
