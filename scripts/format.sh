#!/usr/bin/env bash
# Formats every C++ file with clang-format 14 and .clang-format.
#   scripts/format.sh            rewrites
#   scripts/format.sh --check    lists the files that would change; fails if there is one
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

differing=()
for file in "${files[@]}"; do
  clang-format-14 "$file" | cmp -s - "$file" || differing+=("$file")
done
if [[ ${#differing[@]} -gt 0 ]]; then
  printf '%s\n' "${differing[@]}" >&2
  echo "format: ${#differing[@]} of ${#files[@]} files differ; run scripts/format.sh" >&2
  exit 1
fi
echo "format: ${#files[@]} files are clean"
