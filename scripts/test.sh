#!/usr/bin/env bash
# Everything from a fresh clone: set-up, release build, all tests (slow ones too; --fast leaves them out).
set -euo pipefail
cd "$(dirname "$0")/.."

labels=()
case "${1:-}" in
  "") ;;
  --fast) labels=(-L fast) ;;
  *)
    sed -n '2s/^# //p' "$0"
    exit 2
    ;;
esac

scripts/setup.sh --test
scripts/build.sh release
ctest --test-dir build/release --output-on-failure --no-tests=error -j"$(nproc)" "${labels[@]}"

scripts/python_tests.sh "$@"
