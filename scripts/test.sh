#!/usr/bin/env bash
# Everything from a fresh clone: set-up, release build, all tests (slow ones too; --fast leaves them out).
set -euo pipefail
cd "$(dirname "$0")/.."

labels=()
if [[ ${1:-} == --fast ]]; then labels=(-L fast); fi

scripts/setup.sh --test
scripts/build.sh release
ctest --test-dir build/release --output-on-failure --no-tests=error -j"$(nproc)" "${labels[@]}"

scripts/python_tests.sh "$@"
