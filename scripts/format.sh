#!/usr/bin/env bash
# Formats every C++ file with clang-format 14 and .clang-format.
#   scripts/format.sh            rewrites
#   scripts/format.sh --check    says where it would change one; fails if there is any
set -euo pipefail
cd "$(dirname "$0")/.."

files=()  # what git knows, and new files it does not ignore
while IFS= read -r -d '' file; do
  if [[ -f $file ]]; then files+=("$file"); fi
done < <(git ls-files -z --cached --others --exclude-standard -- '*.cc' '*.h')

if [[ ${1:-} != --check ]]; then
  clang-format-14 -i "${files[@]}"
  exit 0
fi

if ! printf '%s\0' "${files[@]}" | xargs -0 -n 50 -P "$(nproc)" clang-format-14 --dry-run --Werror; then
  echo "format: files differ where it says above; run scripts/format.sh" >&2
  exit 1
fi
echo "format: ${#files[@]} files are clean"
