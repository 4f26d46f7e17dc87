#!/usr/bin/env bash
# Installs the Debian packages that are missing. Says what it installs; does nothing when all are there.
#   scripts/setup.sh           to build the library and the command line
#   scripts/setup.sh --demo    also apt's package lists, from which the demo's corpus is fetched
#   scripts/setup.sh --models  also what scripts/chat.sh, search.sh and serve.sh fetch models with, and curl
#   scripts/setup.sh --package also what packaging/dependencies.sh unpacks and builds with (wheels, the static program)
#   scripts/setup.sh --test    also to build and run the tests
#   scripts/setup.sh --dev     also Clang, clang-format, clang-tidy, benchmarks and shellcheck (what .ci/run needs)
# Chromium is left out for its size: where one is installed, the test of the attention page opens it too.
set -euo pipefail

# docs/dependencies.md says what each one is for.
packages=(g++ cmake ninja-build pkg-config python3 libhwy-dev nlohmann-json3-dev libutf8proc-dev libfmt-dev libevent-dev)
model_packages=(curl python3-pip ca-certificates)
package_packages=(bzip2 xz-utils python3-venv)
test_packages=(make locales libpng-dev libopenmpi-dev openmpi-bin libgtest-dev libgmock-dev ccache python3-dev python3-venv ca-certificates)
dev_packages=(git clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev libbenchmark-dev shellcheck abigail-tools)

case "${1:-}" in
  "" | --demo) ;;
  --models) packages+=("${model_packages[@]}") ;;
  --package) packages+=("${package_packages[@]}") ;;
  --test) packages+=("${test_packages[@]}") ;;
  --dev) packages+=("${test_packages[@]}" "${dev_packages[@]}") ;;
  *)
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: this is not a Debian-like system; install what corresponds to these Debian 12 packages yourself:" >&2
  printf '  %s\n' "${packages[@]}" >&2
  exit 1
fi

# One line for each architecture that has the package.
installed() { dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -x installed >/dev/null; }

missing=()
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done
lists=yes
if [[ ${1:-} == --demo ]] && ! apt-cache show r-cran-janeaustenr >/dev/null 2>&1; then lists=no; fi
if [[ ${#missing[@]} -eq 0 && $lists == yes ]]; then
  echo "setup: all ${#packages[@]} packages are installed"
  exit 0
fi

root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: missing: ${missing[*]:-package lists}" >&2
    echo "setup: as root: apt-get update; apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  if ! "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >"$log" 2>&1; then
    cat "$log" >&2
    echo "setup: apt-get $1 failed, see above" >&2
    exit 1
  fi
}
apt update
if [[ ${#missing[@]} -gt 0 ]]; then
  echo "setup: installing from Debian: ${missing[*]}"
  apt install --no-install-recommends "${missing[@]}"
fi
echo "setup: done"
