#!/usr/bin/env bash
# From a fresh clone to generated English: installs what is missing, compiles the command line, trains a small
# Transformer on Jane Austen's six novels, lets it write. About five minutes on two cores.
#   scripts/demo.sh [FOLDER]      where the model goes, default runs/demo (an earlier demo there is replaced)
set -euo pipefail
cd "$(dirname "$0")/.."

model=${1:-runs/demo}
multihead=build/release/multihead
corpus=data/austen.txt

heading() { printf '\n== %s (%d s so far)\n' "$1" "$SECONDS"; }

heading "1/5 What is needed"
scripts/setup.sh --demo

heading "2/5 Compile"
compile_start=$SECONDS
scripts/build.sh release multihead_cli | tail -n 1
compile_seconds=$((SECONDS - compile_start))
echo "compiled in $compile_seconds s"

heading "3/5 The text"
if [[ -s $corpus ]]; then
  echo "$corpus is there already"
else
  python3 tools/corpora/austen.py --out data
fi

heading "4/5 Train (Ctrl-C stops it cleanly)"
train_start=$SECONDS
"$multihead" train lm --data "$corpus" --out "$model" --preset tiny --overwrite
train_seconds=$((SECONDS - train_start))

heading "5/5 Let it write"
samples=()
for prompt in "It was " "\"My dear " "Elizabeth "; do
  sample=$("$multihead" generate "$model" --prompt "$prompt" --max-new-tokens 120 --temperature 0.8 --top-p 0.95 --seed "${#samples[@]}" --quiet)
  samples+=("$sample")
  printf -- '--- %s\n' "$sample"
done

python3 - "$model/summary.json" "$compile_seconds" "$train_seconds" "$SECONDS" "${samples[@]}" <<'PYTHON'
import json, sys
path, compile_s, train_s, total_s, *samples = sys.argv[1:]
with open(path) as file:
    summary = json.load(file)
summary["demo"] = {"compile_seconds": int(compile_s), "train_seconds": int(train_s), "total_seconds": int(total_s),
                   "samples": samples}
with open(path, "w") as file:
    json.dump(summary, file, indent=2, ensure_ascii=False)
    file.write("\n")
print()
print(json.dumps({k: v for k, v in summary.items() if k != "demo"}, indent=2))
PYTHON

cat <<EOF

The model lies in $model (Hugging Face layout; figures in $model/summary.json). Next:
  $multihead generate $model --prompt "She " --max-new-tokens 300
  $multihead eval $model --data $corpus
  $multihead info $model
  $multihead check $model
  $multihead train lm --help
EOF
