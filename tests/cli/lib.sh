# shellcheck shell=bash disable=SC2034
# Sourced by the tests of the command line: a scratch folder, a small text, and what to expect of a command.
set -uo pipefail
multihead=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export MULTIHEAD_NUM_THREADS=2
failures=0

# Sentences with something to learn in them.
make_text() {
  awk -v n="${1:-900}" 'BEGIN {
    split("the cat sat on a mat and saw nine dogs run home", w, " "); s = 1
    for (i = 0; i < n; ++i) { s = (s * 16807) % 2147483647; printf "%s%s", w[(i + s % 3) % 12 + 1], i % 9 == 8 ? ".\n" : " " }
  }'
}

small=(--layers 2 --heads 2 --width 16 --context 16 --batch 4 --tokenizer char --steps 6 --warmup 2 --eval-every 3
  --log-every 1 --eval-windows 8 --quiet)

fail() {
  echo "FAIL: $*" >&2
  failures=$((failures + 1))
}

# expect CODE REGEX COMMAND...: the exit code, and for failures one line on stderr that matches. It starts no other
# program: there are thousands of failures.
expect() {
  local code=$1 pattern=$2 got said
  shift 2
  "$@" >out.txt 2>err.txt </dev/null
  got=$?
  IFS= read -rd '' said <err.txt || true  # all of it
  if [[ $got -ne $code ]]; then fail "exit code $got, expected $code: $* -- ${said:0:300}"; fi
  if [[ $code -ne 0 ]]; then
    local line=${said%$'\n'}
    if [[ $line == "$said" || $line == *$'\n'* ]]; then fail "expected one line on stderr: $* -- ${said:0:600}"; fi
    if [[ ! $line =~ $pattern ]]; then fail "stderr does not say \"$pattern\": $* -- $said"; fi
    if [[ -s out.txt ]]; then fail "a failure wrote to stdout: $*"; fi
    printf '%-4s %s\n' "$got" "${line:0:230}"
  elif ! grep -qE -- "$pattern" out.txt; then
    fail "stdout does not say \"$pattern\": $* -- $(head -c 300 out.txt)"
  fi
}

finish() {
  if [[ $failures -gt 0 ]]; then
    echo "$failures failures" >&2
    exit 1
  fi
  echo "all as expected"
}
