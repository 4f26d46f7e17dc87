#!/usr/bin/env bash
# Builds the Python package into a virtual environment, build/python-env, and runs its tests.
#   scripts/python_tests.sh          tests that compare with PyTorch, transformers or ONNX are skipped without them
#   scripts/python_tests.sh --all    installs those too (from PyPI; gigabytes)
set -euo pipefail
cd "$(dirname "$0")/.."

python=build/python-env/bin/python
if [[ ! -x $python ]]; then python3 -m venv build/python-env; fi

# The flags of tests/install/run.sh: what that compiled, the compiler cache has.
settings=()
for flag in CMAKE_UNITY_BUILD=OFF CMAKE_DISABLE_PRECOMPILE_HEADERS=ON MULTIHEAD_WERROR=ON; do
  settings+=("--config-settings=cmake.define.$flag")
done
if [[ ${1:-} == --all ]]; then
  "$python" -m pip install --quiet "${settings[@]}" '.[test]'
else
  "$python" -m pip install --quiet "${settings[@]}" . pytest ml_dtypes
fi
"$python" -m pytest -q python/tests
