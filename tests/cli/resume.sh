#!/usr/bin/env bash
# kill -9 at random moments, then --resume: the weights of an uninterrupted run, bit for bit.
#   tests/cli/resume.sh PATH/TO/multihead [ROUNDS]
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
rounds=${2:-4}

make_text 4000 >text.txt
train=("$multihead" train lm --data text.txt --layers 2 --heads 2 --width 48 --context 32 --batch 12
  --tokenizer char --dropout 0.1 --attention-dropout 0.1 --steps 150 --warmup 20 --eval-every 10 --eval-windows 8 --quiet)

begin=$(date +%s%N)
"${train[@]}" --out whole >/dev/null || fail "the uninterrupted run"
took=$((($(date +%s%N) - begin) / 1000000))

# Each round is killed at least once, then resumed (and perhaps killed again) until it ends by itself.
kills=0
from_checkpoint=0
for round in $(seq "$rounds"); do
  out=killed-$round
  hits=0
  for attempt in $(seq 50); do
    "${train[@]}" --out "$out" --resume >/dev/null 2>err.txt &
    run=$!
    # Somewhere in the run; late enough at times to pass a checkpoint, so that the loop ends.
    sleep "$(awk -v t="$took" -v r="$RANDOM" 'BEGIN { printf "%.3f", t / 1000 * (0.1 + 0.8 * r / 32768) }')"
    kill -9 "$run" 2>/dev/null
    wait "$run" 2>/dev/null
    code=$?
    if [[ $code -eq 137 ]]; then
      hits=$((hits + 1))
      if compgen -G "$out/checkpoint-*/manifest.json" >/dev/null; then from_checkpoint=$((from_checkpoint + 1)); fi
      continue
    fi
    [[ $code -eq 0 ]] || { fail "round $round: exit code $code: $(cat err.txt)"; break; }
    [[ $hits -eq 0 ]] || break
    # The run ended before its kill: once more from the start.
    rm -rf "$out"
  done
  [[ $hits -gt 0 && $code -eq 0 ]] || fail "round $round: $hits kills in $attempt attempts, the last exit code $code"
  kills=$((kills + hits))
  for file in model.safetensors config.json tokenizer.json checkpoint-150/optimizer.safetensors; do
    cmp -s "whole/$file" "$out/$file" || fail "round $round: $file differs"
  done
  rm -rf "$out"
done
echo "$kills kills in $rounds rounds, $from_checkpoint of them with a checkpoint to go on from"

# The comparison can fail.
"${train[@]}" --out other --seed 2 >/dev/null || fail "the run with another seed"
cmp -s whole/model.safetensors other/model.safetensors && fail "another seed gave the same weights"

results() { sed -E 's/"(seconds|train.tokens_per_second)":[^,}]*//g' "$1/metrics.jsonl"; }

# Signals save and say so by their exit codes; a plain --resume needs no flags repeated.
for signal in INT:130 TERM:143; do
  rm -rf gentle
  # A background job ignores SIGINT; setsid gives it a clean start.
  setsid bash -c 'trap - INT; exec "$@"' bash "${train[@]}" --out gentle >/dev/null 2>&1 &
  run=$!
  for _ in $(seq 100); do [[ -s gentle/metrics.jsonl ]] && break || sleep 0.05; done
  kill -"${signal%:*}" "$run"
  wait "$run"
  code=$?
  [[ $code -eq ${signal#*:} ]] || fail "SIG${signal%:*}: exit code $code"
  [[ -e gentle/model.safetensors ]] && fail "an interrupted run left a model"
  "$multihead" train lm --out gentle --resume --quiet >/dev/null || fail "resuming after SIG${signal%:*}"
  cmp -s whole/model.safetensors gentle/model.safetensors || fail "weights differ after SIG${signal%:*}"
  cmp -s <(results whole) <(results gentle) || fail "metrics differ after SIG${signal%:*}: $(diff <(results whole) <(results gentle))"
done

# A run that has ended is extended, stopped, and goes on by the command that it says; its folder's name has a blank.
"${train[@]/#150/20}" --out "it's mine" >/dev/null || fail "the run to extend"
setsid bash -c 'trap - INT; exec "$@"' bash "$multihead" train lm --out "it's mine" --resume --steps 150 >said.txt 2>/dev/null &
run=$!
for _ in $(seq 200); do grep -q '"steps": 150' "it's mine/train_config.json" && break || sleep 0.05; done
kill -INT "$run"
wait "$run"
[[ $? -eq 130 ]] || fail "the extended run did not stop"
command=$(sed -n 's/^stopped at step [0-9]*; continue with: multihead //p' said.txt)
[[ $command == "train lm --out 'it'\\''s mine' --resume" ]] || fail "the command to continue: $(cat said.txt)"
eval "\"\$multihead\" $command --quiet" >/dev/null || fail "continuing an extended run"
[[ -e "it's mine/checkpoint-150" ]] || fail "the extended run has not ended: $(ls "it's mine")"

# In bf16, too: weights of any number of threads, after a kill, and refused as another run.
bf16=("${train[@]}" --precision bf16)
MULTIHEAD_NUM_THREADS=1 "${bf16[@]}" --out half-whole >/dev/null || fail "the run in bf16"
cmp -s whole/model.safetensors half-whole/model.safetensors && fail "bf16 gave the weights of f32"
"${bf16[@]}" --out half >/dev/null 2>&1 &
run=$!
for _ in $(seq 100); do compgen -G "half/checkpoint-*/manifest.json" >/dev/null && break || sleep 0.05; done
kill -9 "$run"
wait "$run" 2>/dev/null
"$multihead" train lm --out half --resume --precision f32 --quiet >/dev/null 2>err.txt && fail "resumed in f32"
grep -q precision err.txt || fail "the refusal does not name the precision: $(cat err.txt)"
"$multihead" train lm --out half --resume --quiet >/dev/null || fail "resuming in bf16"
cmp -s half-whole/model.safetensors half/model.safetensors || fail "weights in bf16 differ after a kill"
finish
