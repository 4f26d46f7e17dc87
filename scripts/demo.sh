#!/usr/bin/env bash
# From a fresh clone to generated English: installs what is missing, compiles the command line, trains a small
# Transformer on Jane Austen's six novels and lets it write. Some minutes on two cores.
#   scripts/demo.sh [FOLDER [FLAG...]]
# FOLDER is where the model goes, runs/demo by default (an earlier demo there is replaced); FLAGs go to
# `multihead train lm` in place of --precision bf16 --steps 750: --steps 3000 takes longer and writes better.
set -euo pipefail
cd "$(dirname "$0")/.."

model=${1:-runs/demo}
shift || true
if (($# == 0)); then set -- --precision bf16 --steps 750; fi
multihead=build/native/multihead
corpus=data/austen.txt

heading() { printf '\n== %s   [%d s]\n' "$1" "$SECONDS"; }

heading "1/5 What is needed"
scripts/setup.sh --demo
setup_seconds=$SECONDS

heading "2/5 Compile"
start=$SECONDS
scripts/build.sh native multihead_cli | tail -n 1
compile_seconds=$((SECONDS - start))

heading "3/5 The text: six novels, from a Debian package"
if [[ -s $corpus ]]; then
  echo "$corpus is there already"
else
  python3 tools/corpora/austen.py --out data
fi

heading "4/5 Train (Ctrl-C stops and saves)"
start=$SECONDS
"$multihead" train lm --data "$corpus" --out "$model" --preset tiny --overwrite "$@"
train_seconds=$((SECONDS - start))

heading "5/5 Let it write"
prompts=("It was" "She had" "Mr.")
samples=()
for seed in "${!prompts[@]}"; do
  sample=$("$multihead" generate "$model" --prompt "${prompts[$seed]}" --max-new-tokens 120 --temperature 0.7 \
    --top-p 0.95 --seed "$seed" --quiet)
  samples+=("$sample")
  printf -- '--- sample %d\n%s\n' $((seed + 1)) "$sample"
done

heading "Done"
python3 - "$model/summary.json" "$setup_seconds" "$compile_seconds" "$train_seconds" "$SECONDS" "${samples[@]}" <<'PYTHON'
import json
import sys

path, setup, compiling, training, total, *samples = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    summary = json.load(file)
summary["demo"] = {"setup_seconds": int(setup), "compile_seconds": int(compiling), "train_seconds": int(training),
                   "total_seconds": int(total), "samples": samples}
with open(path, "w", encoding="utf-8") as file:
    json.dump(summary, file, indent=2, ensure_ascii=False)
    file.write("\n")
after = summary["validation"]
print(f"validation loss   {summary['progress']['first_loss']:.4f} -> {summary['kept_loss']:.4f} nats per token")
print(f"of all its text   {after['loss']:.4f} nats per token, {after['nats_per_character']:.4f} nats per character, {after['bits_per_byte']:.4f} bits per byte")
print(f"training speed    {summary['tokens_per_second']:,.0f} tokens/s")
print(f"time              {total} s: set-up {setup}, compiling {compiling}, training {training}")
PYTHON

cat <<EOF
model             $model (Hugging Face layout), figures in $model/summary.json

Next:
  $multihead generate $model --prompt "Emma" --max-new-tokens 300 --temperature 0.8
  $multihead eval $model --data $corpus --last 0.1
  $multihead info $model
  $multihead check $model
  $multihead train lm --help
EOF
