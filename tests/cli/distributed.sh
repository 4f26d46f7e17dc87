#!/usr/bin/env bash
# Training on several processes under every MPI there is: the weights of one process, whatever dies on the way.
#   tests/cli/distributed.sh PATH/TO/multihead
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
unset MULTIHEAD_NUM_THREADS
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none  # containers forbid the other

launchers=()
for flavour in openmpi mpich; do
  launcher=$(command -v mpirun.$flavour || command -v mpirun) || continue
  [[ -e $(dirname "$multihead")/multihead_$flavour.so ]] && launchers+=("$launcher")
done
if [[ ${#launchers[@]} -eq 0 ]]; then
  echo "skipped: no mpirun, or no plugin for it beside $multihead"
  exit 77
fi

make_text 3000 >text.txt
make_text 900 | sed 's/\./\tcat./' | grep -P '\t' >pairs.tsv
lm=(train lm --data text.txt --layers 2 --heads 2 --width 32 --context 16 --batch 2 --tokenizer char --dropout 0.1
  --attention-dropout 0.1 --warmup 5 --eval-every 10 --eval-windows 8 --quiet)
long=("${lm[@]}" --shards 8 --steps 200 --save-every 10)
lm+=(--steps 40)
pairs=(train seq2seq --data pairs.tsv --valid pairs.tsv --width 16 --heads 2 --encoder-layers 1 --decoder-layers 1
  --tokenizer char --batch-tokens 200 --steps 10 --warmup 2 --eval-every 5 --shards 8 --quiet)
same() { cmp -s "$1/model.safetensors" "$2/model.safetensors" || fail "$2: other weights than $1"; }

"$multihead" "${lm[@]}" --shards 8 --out one >/dev/null || fail "one process"
"$multihead" "${pairs[@]}" --out pairs-one >/dev/null || fail "one process, pairs"
for launcher in "${launchers[@]}"; do
  name=$(basename "$launcher")
  for ranks in 2 3 4; do
    "$launcher" -n $ranks "$multihead" "${lm[@]}" --out "$name-$ranks" >out.txt 2>err.txt ||
      fail "$name, $ranks ranks: $(cat err.txt)"
    [[ $(grep -c 'model in' out.txt) -eq 1 ]] || fail "$name, $ranks ranks: not one rank talks: $(cat out.txt)"
    same one "$name-$ranks"
    cmp -s one/checkpoint-40/optimizer.safetensors "$name-$ranks/checkpoint-40/optimizer.safetensors" ||
      fail "$name, $ranks ranks: other moments"
  done
  "$launcher" -n 3 "$multihead" "${pairs[@]}" --out "$name-pairs" >/dev/null || fail "$name, pairs"
  same pairs-one "$name-pairs"
done
# Encoders, too; and only the first rank needs to see the model that training begins with.
mlm=(train mlm --data text.txt --layers 1 --width 16 --heads 2 --context 24 --batch 2 --shards 4 --steps 6 --warmup 2 --quiet)
"$multihead" "${mlm[@]}" --out mlm-one >/dev/null || fail "one process, masked words"
"${launchers[0]}" -n 3 "$multihead" "${mlm[@]}" --out mlm-three >/dev/null || fail "masked words"
same mlm-one mlm-three
tuned=(train lm --data text.txt --batch 2 --shards 4 --steps 6 --warmup 2 --lora-rank 2 --quiet)
"$multihead" "${tuned[@]}" --init one --out tuned-one >/dev/null || fail "one process, an adapter"
"${launchers[0]}" -n 1 "$multihead" "${tuned[@]}" --init one --out tuned-three : \
  -n 2 "$multihead" "${tuned[@]}" --out /nowhere >/dev/null || fail "an adapter"
cmp -s {tuned-one,tuned-three}/adapter_model.safetensors || fail "an adapter: other weights"

# Sequences cut over ranks, and resumed on another number.
cut=(train lm --data text.txt --layers 1 --heads 2 --width 16 --context 1100 --batch 1 --tokenizer char --dropout 0.1
  --attention-dropout 0.1 --warmup 2 --eval-every 0 --save-every 2 --validation-share 0 --quiet)
"$multihead" "${cut[@]}" --context-shards 4 --steps 4 --out cut-one >/dev/null || fail "cut sequences, one process"
for launcher in "${launchers[@]}"; do
  for ranks in 2 4; do
    "$launcher" -n $ranks "$multihead" "${cut[@]}" --context-shards 4 --steps 4 --out "cut-$ranks" --overwrite >/dev/null ||
      fail "cut sequences, $ranks ranks"
    same cut-one "cut-$ranks"
  done
done
rm -r cut-4/model.safetensors cut-4/checkpoint-4
"$launcher" -n 2 "$multihead" train lm --out cut-4 --resume --quiet >/dev/null || fail "cut sequences, resumed"
same cut-one cut-4

# A text encoded by several, and lists of what they gave.
"$multihead" tokenizer encode one --data text.txt --out one.tokens >/dev/null || fail "encoding alone"
"$launcher" -n 3 "$multihead" tokenizer encode one --data text.txt --out three.tokens >out.txt || fail "encoding on ranks"
[[ $(grep -c 'tokens in' out.txt) -eq 1 ]] || fail "encoding: not one rank talks: $(cat out.txt)"
cmp -s one.tokens three.tokens || fail "other tokens on three ranks"
"$multihead" tokenizer list one.tokens three.tokens --out corpus.list >/dev/null || fail "a list"
[[ $("$launcher" -n 2 "$multihead" tokenizer verify corpus.list) == *' in 2 files, checksum '* ]] || fail "verifying a list"
listed=(train lm --data corpus.list --tokenizer-file one --layers 1 --heads 2 --width 16 --context 16 --batch 2 --shards 4
  --steps 5 --warmup 2 --eval-every 0 --quiet)
"$multihead" "${listed[@]}" --out listed-one >/dev/null || fail "a list, one process"
"$launcher" -n 3 "$multihead" "${listed[@]}" --out listed-3 >/dev/null || fail "a list, three ranks"
same listed-one listed-3

# Rank 2 dies; the others say so, and other numbers of ranks go on.
launcher=${launchers[0]}
"$multihead" "${long[@]}" --out whole >/dev/null || fail "the long run"
kill_rank() {  # kill_rank SIGNAL RANKS: the job's exit code in $code, what it said in err.txt
  "$launcher" -n "$2" "$multihead" "${long[@]}" --out dying --resume >/dev/null 2>err.txt &
  local job=$!
  for _ in $(seq 200); do compgen -G "dying/checkpoint-*/manifest.json" >/dev/null && break || sleep 0.05; done
  local victims
  mapfile -t victims < <(pgrep -P "$job" | xargs -r -n1 pgrep -P | cat; pgrep -P "$job")
  local victim=
  for candidate in "${victims[@]}"; do
    if grep -qzE '^(OMPI_COMM_WORLD_RANK|PMI_RANK)=1$' "/proc/$candidate/environ" 2>/dev/null; then victim=$candidate; fi
  done
  [[ -n $victim ]] || { fail "no rank 1 to be found"; kill "$job"; }
  kill -"$1" "$victim"
  wait "$job"
  code=$?
}
kill_rank KILL 4
[[ $code -ne 0 ]] || fail "a killed rank: exit code 0"
grep -qE "rank 1" err.txt || fail "nobody names the killed rank: $(cat err.txt)"
"$launcher" -n 3 "$multihead" "${long[@]}" --out dying --resume >/dev/null 2>&1 || fail "resuming on three ranks"
same whole dying
rm -rf dying
begin=$SECONDS
kill_rank STOP 3
[[ $code -ne 0 ]] || fail "a stopped rank: exit code 0"
[[ $((SECONDS - begin)) -le 20 ]] || fail "a stopped rank: the job ended only after $((SECONDS - begin)) s"
grep -qE "rank 0: rank 1 .* has been silent" err.txt || fail "rank 0 does not name the silent rank: $(cat err.txt)"
grep -qE "rank 2: rank 1 .* is lost" err.txt || fail "rank 2 does not name the silent rank: $(cat err.txt)"
"$multihead" "${long[@]}" --out dying --resume >/dev/null || fail "resuming alone"
same whole dying

# One rank is told to stop: all do, and save once.
rm -rf dying
kill_rank TERM 3
[[ $code -eq 143 ]] || fail "SIGTERM: exit code $code: $(cat err.txt)"
[[ ! -e dying/model.safetensors ]] || fail "an interrupted job left a model"
"$launcher" -n 2 "$multihead" "${long[@]}" --out dying --resume >/dev/null || fail "resuming after SIGTERM"
same whole dying

# What cannot be one job is refused by the first rank, with its exit code.
refuse() {  # refuse CODE REGEX COMMAND...
  local code=$1 pattern=$2
  shift 2
  timeout 60 "$@" >/dev/null 2>err.txt
  local got=$?
  [[ $got -eq $code ]] || fail "exit code $got, expected $code: $*: $(cat err.txt)"
  grep -qE -- "$pattern" err.txt || fail "stderr does not say \"$pattern\": $(cat err.txt)"
}
refuse 2 "3 ranks cannot share 2 shards" "$launcher" -n 3 "$multihead" "${lm[@]}" --shards 2 --out no
refuse 2 "holds a run" "$launcher" -n 2 "$multihead" "${lm[@]}" --out one
refuse 2 "rank 1 on .*instruction set" "$launcher" -n 1 "$multihead" "${lm[@]}" --out no : \
  -n 1 env MULTIHEAD_ISA=baseline "$multihead" "${lm[@]}" --out no
refuse 2 "rank 1 on .*lr is" "$launcher" -n 1 "$multihead" "${lm[@]}" --out no : -n 1 "$multihead" "${lm[@]}" --lr 1 --out no
refuse 2 "3 processes cannot share 4 parts evenly" "$launcher" -n 3 "$multihead" "${cut[@]}" --context-shards 4 --out no
printf 'x' | dd of=three.tokens bs=1 seek=100 conv=notrunc 2>/dev/null
refuse 3 'three.tokens: the tokens are corrupt' "$launcher" -n 2 "$multihead" tokenizer verify corpus.list
refuse 3 'three.tokens: the tokens are corrupt' "$launcher" -n 2 "$multihead" "${listed[@]}" --out no
MULTIHEAD_MPI_PLUGIN=/nowhere.so refuse 2 "nowhere.so" "$launcher" -n 2 "$multihead" "${lm[@]}" --out no
cp "$multihead" alone
refuse 2 "found no multihead_openmpi.so" "$launcher" -n 2 ./alone "${lm[@]}" --out no
[[ ! -e no/train_config.json ]] || fail "a refused job left a run"

# Two jobs in one folder, the first of which runs until it is told to stop.
endless=("${long[@]/#200/1000000}")
"$launcher" -n 2 "$multihead" "${endless[@]}" --out busy >/dev/null 2>&1 &
job=$!
for _ in $(seq 1200); do [[ -s busy/metrics.jsonl ]] && break || sleep 0.05; done
refuse 1 "in use by process" "$launcher" -n 2 "$multihead" "${endless[@]}" --out busy --resume
kill -TERM "$job" || fail "the first of two jobs"
wait "$job"
finish
