#!/usr/bin/env bash
# Builds for 64-bit ARM with Debian's cross compiler and runs the fast C++ tests in an emulator (QEMU's user mode).
# Adds the architecture arm64 to the system's package sources: as root, on a machine meant for it.
#   scripts/arm64.sh [ctest arguments]      e.g. scripts/arm64.sh -R Attention
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh --test
dpkg --add-architecture arm64
apt-get -q update
apt-get -q -y install --no-install-recommends g++-aarch64-linux-gnu qemu-user \
  lib{hwy,fmt,utf8proc,gtest,gmock}-dev:arm64

scripts/build.sh arm64

# Left out: what starts ARM programs by itself, and forks of many threads, which this emulator does not survive.
ctest --test-dir build/arm64 -L fast -E '^(cli|example)\.|ForkTest|Forked|AfterFork' -j"$(nproc)" --output-on-failure \
  --no-tests=error "$@"

# The emulator's CPU has every instruction of ARM. Quantised weights once more without its int8 matrix products, and
# without dot products.
for cpu in neoverse-n1 cortex-a53; do
  qemu-aarch64 -cpu "$cpu" build/arm64/kernels_test --gtest_brief=1 --gtest_filter='*PackedLinear*:*Stored*'
done
