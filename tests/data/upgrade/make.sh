#!/usr/bin/env bash
# Writes FOLDER/<version of PROGRAM>: a run stopped halfway, a quantised model and cached prompts, which later versions
# must open (tests/cli/upgrade.sh). Run once for a release, with the program of that release.
#   tests/data/upgrade/make.sh PROGRAM FOLDER
set -euo pipefail
program=$(realpath "$1")
cd "$2"
version=$("$program" --version | head -n 1 | cut -d' ' -f2)
mkdir "$version"
cd "$version"

for i in $(seq 60); do echo "the cat sat on mat number $i and the dog ran after it"; done >text.txt
"$program" train lm --data text.txt --out whole --layers 1 --heads 2 --width 16 --ff 16 --context 16 --tokenizer char \
  --positions rotary --steps 80 --save-every 40 --eval-every 40 --batch 8 --lr 0.05 --warmup 1 --quiet >whole.txt
grep '^validation loss' whole.txt >expected.txt
"$program" quantize whole --out q4 --weights q4 --quiet
"$program" generate whole --prompt "the cat" --temperature 0 --max-new-tokens 40 --prefix-cache cache >>expected.txt
"$program" generate q4 --prompt "the cat" --temperature 0 --max-new-tokens 40 >>expected.txt

# As if it had been killed after step 40.
mkdir run
cp -r whole/checkpoint-40 whole/train_config.json run/
head -n 6 whole/metrics.jsonl >run/metrics.jsonl
head -n 7 whole/metrics.csv >run/metrics.csv
cat -E expected.txt >marked.txt # the ends of lines, where a space would not be seen
mv marked.txt expected.txt
rm -r whole whole.txt
