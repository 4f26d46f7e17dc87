#!/usr/bin/env bash
# The lab's answers, natively: what the page asks, and what it must refuse.
#   examples/browser/lab_test.sh PATH/TO/browser_lab
set -euo pipefail
answers=$({
  echo '{"do": "text", "text": "abab", "off": ["0.1"], "cut": [[1, 0, 3, 1]]}'
  echo '{"do": "text", "text": "A", "off": [], "cut": []}'
  echo '{"do": "train", "steps": 2}'
  echo '{"do": "digit", "text": "0", "off": [], "cut": []}'
  echo '{"do": "sing"}'
} | "$1")
expect() {
  sed -n "$1p" <<<"$answers" | grep -qE "$2" || { echo "answer $1 is not $2: $(sed -n "$1p" <<<"$answers" | cut -c1-300)" >&2; exit 1; }
}
expect 1 '"title":"changed".*"off":\["0.1"\].*"title":"as it is"'
expect 2 '"error":"the model knows the characters'
expect 3 '"loss":[0-9]'
expect 4 '"error":"the digits are missing'
expect 5 '"error":"nothing known to do is called'
