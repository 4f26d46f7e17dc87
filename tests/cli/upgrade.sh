#!/usr/bin/env bash
# What earlier releases wrote is read: a stopped run goes on to the same model, models and cached prompts give the same
# text. tests/data/upgrade/ holds a folder for each release.
#   upgrade.sh PROGRAM
set -euo pipefail
program=$(realpath "$1")
releases=$(cd "$(dirname "$0")/../data/upgrade" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for release in "$releases"/*/; do
  cp -r "$release" "$work/release"
  cd "$work/release"
  {
    "$program" train lm --data text.txt --out run --resume --quiet | grep '^validation loss'
    "$program" generate run --prompt "the cat" --temperature 0 --max-new-tokens 40 --prefix-cache cache
    "$program" generate q4 --prompt "the cat" --temperature 0 --max-new-tokens 40
  } | cat -E >found.txt
  diff expected.txt found.txt || { echo "$release: not what that release wrote" >&2; exit 1; }
  # Prompts are cached for the layout that the weights are packed in, here that of AVX-512.
  if "$program" --version | grep -q avx512; then
    diff <(ls "$release/cache") <(ls cache) || { echo "$release: its cached prompts were not used" >&2; exit 1; }
  else
    diff <(ls "$release/cache") <(comm -12 <(ls "$release/cache") <(ls cache)) ||
      { echo "$release: cached prompts are gone" >&2; exit 1; }
  fi
  cd "$work"
  rm -r "$work/release"
done
echo "every release's files are read"
