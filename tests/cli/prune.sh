#!/usr/bin/env bash
# Models without some of their heads and units, and training that starts from a model.
#   tests/cli/prune.sh PATH/TO/multihead
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_text >text.txt
"$multihead" train lm --data text.txt --out model --layers 2 --heads 4 --width 32 --context 16 --batch 8 --tokenizer char \
  --steps 60 --quiet >log.txt 2>&1 || fail "training: $(cat log.txt)"
loss() { "$multihead" eval "$1" --data text.txt --json | grep -oE '"loss":[^,]*' | cut -d: -f2 | tr -d ' '; }

expect 0 '6 of 8 heads, .*' "$multihead" prune model --out even --heads 0.3,1.2
if grep -q pruned_heads even/config.json; then fail 'as many heads in every layer are a number of heads'; fi
expect 0 '5 of 8 heads' "$multihead" prune model --out uneven --heads 0.3,1.2,1.0
grep -q '"pruned_heads"' uneven/config.json || fail 'the folder does not say which heads are gone'
expect 0 'multihead' "$multihead" info uneven
expect 0 '^ok +cache' "$multihead" check uneven
expect 0 '^ok +gradients|^ok' "$multihead" check uneven --weights int8
expect 0 '' "$multihead" generate uneven --prompt 'the cat' --max-new-tokens 5
expect 0 '4 of 5 heads' "$multihead" prune uneven --out fewer --heads 0.0
expect 0 '"removed"' "$multihead" prune model --out half --keep-ratio 0.5 --keep-units 0.5 --data text.txt --json
grep -q '"importance"' out.txt || fail 'no importance'
expect 0 'importance of heads' "$multihead" prune model --out half2 --keep-ratio 0.5 --data text.txt
grep -q '\[0\.' out.txt || fail 'what is removed is not marked'
expect 0 '8 of 8 heads' "$multihead" prune model --out grouped --kv-heads 2
expect 0 '^ok +cache' "$multihead" check grouped
expect 2 'needs? --source|different|differ' "$multihead" attend uneven --text 'the cat' --out x.html

expect 2 'nothing to remove' "$multihead" prune model --out x
expect 2 '--out DIR is required' "$multihead" prune model --heads 0.1
expect 2 'not both' "$multihead" prune model --out x --heads 0.1 --keep-ratio 0.5 --data text.txt
expect 2 '--data FILE is required' "$multihead" prune model --out x --keep-ratio 0.5
expect 3 'layer 0 would lose all of its 4 heads' "$multihead" prune model --out x --heads 0.0,0.1,0.2,0.3
expect 3 'cannot come from 4' "$multihead" prune model --out x --kv-heads 3
for list in 0 .1 0. 0.4 2.0 '0.1,' a.b encoder.0.1 0.-1 99999999999999999999.0; do
  expect 2 '--heads: expected LAYER.HEAD with layers 0 to 1 and heads 0 to 3, got "' "$multihead" prune model --out x --heads "$list"
done
[[ ! -e x ]] || fail 'a refused command wrote a folder'
mkdir foreign && echo mine >foreign/config.json
expect 2 'foreign' "$multihead" prune model --out foreign --heads 0.1
expect 1 '/dev/null/x' "$multihead" prune model --out /dev/null/x --heads 0.1
[[ $(cat foreign/config.json) == mine ]] || fail 'a file of somebody else was replaced'

# Training goes on from a folder: its model, weights and tokenizer.
before=$(loss uneven)
"$multihead" train lm --data text.txt --out tuned --init uneven --steps 60 --batch 8 --lr 3e-3 --warmup 5 --quiet >log.txt 2>&1 || fail "tuning: $(cat log.txt)"
after=$(loss tuned)
awk -v a="$after" -v b="$before" 'BEGIN { exit !(a < b) }' || fail "tuning did not help: $before -> $after"
grep -q '"pruned_heads"' tuned/config.json || fail 'the tuned model has other heads'
"$multihead" train lm --data text.txt --out still --init uneven --steps 1 --lr 1e-12 --warmup 0 --weight-decay 0 --quiet >log.txt 2>&1 || fail "$(cat log.txt)"
[[ $(loss still) == "$before" ]] || fail "no step changed the model: $before -> $(loss still)"
expect 3 'nowhere' "$multihead" train lm --data text.txt --out x --init nowhere --steps 1
expect 2 'does not fit --layers 3' "$multihead" train lm --data text.txt --out x --init model --layers 3 --steps 1
# A run that was stopped continues with its own model.
"$multihead" train lm --data text.txt --out run --init uneven --steps 20 --save-every 5 --batch 4 --quiet >log.txt 2>&1 || fail "$(cat log.txt)"
"$multihead" train lm --data text.txt --out cut --init uneven --steps 20 --save-every 5 --batch 4 >log.txt 2>&1 &
run=$!
for _ in $(seq 200); do
  if compgen -G 'cut/checkpoint-*' >/dev/null; then break; fi
  sleep 0.05
done
kill -INT $run 2>/dev/null
wait $run
if [[ ! -e cut/model.safetensors ]]; then
  expect 2 'the run began from' "$multihead" train lm --data text.txt --out cut --init model --resume
  "$multihead" train lm --out cut --resume --quiet >log.txt 2>&1 || fail "resuming: $(cat log.txt)"
fi
cmp -s run/model.safetensors cut/model.safetensors || fail 'a resumed run has other weights'

# Translators.
printf 'a\tA\nab\tAB\nb\tB\nba\tBA\nabba\tABBA\n' >pairs.tsv
"$multihead" train seq2seq --data pairs.tsv --out translator --encoder-layers 2 --decoder-layers 1 --heads 4 --width 32 \
  --max-positions 16 --max-tokens 12 --tokenizer char --batch-tokens 64 --steps 80 --warmup 5 --quiet >log.txt 2>&1 ||
  fail "training: $(cat log.txt)"
expect 0 '13 of 16 heads' "$multihead" prune translator --out small --heads encoder.0.3,decoder.0.1,cross.0.0
expect 0 '' "$multihead" check small
[[ $(printf 'ab\n' | "$multihead" translate small | wc -l) -eq 1 ]] || fail 'a pruned translator does not translate'
expect 0 '10 of 16 heads' "$multihead" prune translator --out halved --keep-ratio 0.6 --keep-units 0.5 --data pairs.tsv
{ cat pairs.tsv && printf '%020d\tA\n' 0; } >longer.tsv
"$multihead" prune translator --out short --keep-ratio 0.6 --data longer.tsv >/dev/null 2>log.txt || fail "$(cat log.txt)"
grep -q 'longer.tsv: 1 of 6 pairs are longer than 16 tokens and left out' log.txt || fail "not said: $(cat log.txt)"
cmp -s short/model.safetensors <("$multihead" prune translator --out alike --keep-ratio 0.6 --data pairs.tsv >/dev/null && cat alike/model.safetensors) ||
  fail 'a pair that is too long counted'
expect 2 '--heads: expected encoder., decoder. or cross.' "$multihead" prune translator --out y --heads 0.1
expect 2 '--kv-heads is for language models' "$multihead" prune translator --out y --kv-heads 2
"$multihead" train seq2seq --data pairs.tsv --out better --init halved --steps 60 --warmup 5 --batch-tokens 64 --max-tokens 12 --quiet >log.txt 2>&1 ||
  fail "tuning: $(cat log.txt)"
grep -q '"cross_pruned_heads"\|"encoder_pruned_heads"' better/config.json || fail 'the tuned translator has other heads'
finish
