#!/usr/bin/env bash
# Language models with quantised weights: --weights, and folders that quantize writes.
#   tests/cli/quantize.sh PATH/TO/multihead
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_text >text.txt
"$multihead" train lm --data text.txt --out run --layers 2 --heads 2 --width 64 --context 16 --batch 4 --tokenizer char --steps 60 --quiet >log.txt || fail "training"

losses() { "$multihead" eval "$1" --data text.txt --json "${@:2}" | grep -oE '"loss":[^,]*' | cut -d: -f2; }
text() { "$multihead" generate "$1" --prompt "the cat" --max-new-tokens 9 --temperature 0 "${@:2}"; }
# near A B SHARE
near() { awk -v a="$1" -v b="$2" -v s="$3" 'BEGIN { exit !(a > 0 && b > 0 && (a - b) ^ 2 <= (s * a) ^ 2) }'; }

exact=$(losses run)
near "$exact" "$(losses run --weights f32)" 0 || fail "--weights f32 changes the loss"
for weights in int8 q8 q4; do
  loss=$(losses run --weights $weights)
  near "$exact" "$loss" 0.03 || fail "$weights: loss $loss, $exact in f32"
  expect 0 "^ok +cache" "$multihead" check run --weights $weights
  expect 0 "^$weights: $weights weights" "$multihead" quantize run --out $weights --weights $weights
  [[ $(losses $weights) == "$loss" ]] || fail "$weights: the folder has another loss than --weights"
  [[ $(losses $weights --weights $weights) == "$loss" ]] || fail "$weights: the folder with --weights"
  [[ $(text $weights) == "$(text run --weights $weights)" ]] || fail "$weights: the folder writes another text"
  expect 0 "parameters" "$multihead" info $weights
done
bytes() { stat -c %s "$1/model.safetensors"; }
(($(bytes q4) * 4 < $(bytes run))) || fail "q4 takes $(bytes q4) bytes, f32 $(bytes run)"

# Guesses change the time, not the text.
for draft in lookup q4 q8; do
  [[ $(text run --draft $draft) == "$(text run)" ]] || fail "--draft $draft writes another text"
  sampled=$("$multihead" generate run --prompt "the cat" --max-new-tokens 20 --seed 3)
  [[ $("$multihead" generate run --prompt "the cat" --max-new-tokens 20 --seed 3 --draft $draft --draft-tokens 3) == "$sampled" ]] ||
    fail "--draft $draft samples another text"
done
expect 2 'supports one sample' "$multihead" generate run --prompt the --draft q4 --samples 2
expect 3 'there is no folder "nowhere"' "$multihead" generate run --prompt the --draft nowhere
"$multihead" train lm --data text.txt --out other --layers 1 --heads 1 --width 16 --context 16 --batch 2 --steps 1 --vocab-size 300 --quiet >log.txt || fail "training another"
expect 3 'its tokenizer differs from that of run' "$multihead" generate run --prompt the --draft other

expect 3 'weights are already packed, as q4' "$multihead" generate q4 --prompt the --weights q8
for to in no.gguf no; do expect 3 'q4: holds weights in q4, a form of this library' "$multihead" convert q4 $to; done
[[ ! -e no.gguf && ! -e no ]] || fail 'packed weights were converted'
expect 2 'must be one of' "$multihead" generate run --prompt the --weights q3
expect 2 'must be one of' "$multihead" quantize run --out other --weights f32
expect 2 'out DIR is required' "$multihead" quantize run
# Not onto the model itself, whose weights would be lost.
sum=$(md5sum <run/model.safetensors)
ln -s run link
for out in run ./run/ link; do
  expect 2 'would replace ".*", which (DIR|MODEL) names; choose another' "$multihead" quantize run --out $out
  expect 2 'would replace ".*", which (DIR|MODEL) names; choose another' "$multihead" convert run $out
  expect 2 'would replace ".*", which (DIR|MODEL) names; choose another' "$multihead" prune run --out $out --heads 0.0
done
expect 0 'parameters' "$multihead" convert other other.gguf --type f32
expect 2 'would replace ".*", which (DIR|MODEL) names; choose another' "$multihead" convert other.gguf other.gguf --type q8_0
[[ $(md5sum <run/model.safetensors) == "$sum" ]] || fail "the model was written over"
# Nor onto another one, a run, a tokenizer or a file, unless told so.
sum=$(md5sum <q4/model.safetensors)
sure='; overwrite it \(--overwrite\) or choose another (folder|file)'
expect 2 "folder \"q4\" holds a model$sure" "$multihead" quantize run --out q4 --weights q8
expect 2 "folder \"q4\" holds a model$sure" "$multihead" prune run --out q4 --heads 0.0
expect 2 "folder \"q4\" holds a model$sure" "$multihead" convert run q4
expect 2 "folder \"run\" holds a training run$sure" "$multihead" quantize other --out run
expect 2 "file \"other.gguf\" exists$sure" "$multihead" convert run other.gguf
[[ $(md5sum <q4/model.safetensors) == "$sum" ]] || fail "a model was written over"
"$multihead" tokenizer train text.txt --out tok --vocab-size 270 >log.txt || fail "a tokenizer"
expect 2 "folder \"tok\" holds a tokenizer$sure" "$multihead" quantize run --out tok
expect 0 '"out": "other.gguf"' "$multihead" convert other other.gguf --overwrite --json --quiet
expect 0 '"parameters": [0-9]+' "$multihead" convert run tok --overwrite --json
# What is not kept is said; decoders whose tokens see the whole text have no cache.
sed 's/"model_type"/"is_causal": false,\n  "model_type"/' other/config.json >other/config.new
mkdir seeing && cp other/tokenizer* other/model.safetensors seeing && mv other/config.new seeing/config.json
expect 0 'parameters; f32 weights' "$multihead" info seeing
expect 2 'see the whole text cannot be written' "$multihead" convert seeing seeing.gguf
expect 0 'parameters' "$multihead" convert run vectors
echo '[]' >vectors/modules.json
expect 0 '^vectors8: q8 weights' "$multihead" quantize vectors --out vectors8 --weights q8
grep -q '^note: vectors says how texts become vectors' err.txt || fail "no note of a pooling that is lost"
expect 0 '^q4: q8 weights' "$multihead" quantize run --out q4 --weights q8 --overwrite
expect 0 '3 of 4 heads' "$multihead" prune run --out q4 --heads 0.0 --overwrite
mkdir mine && echo mine >mine/config.json
expect 2 'not written by multihead' "$multihead" quantize run --out mine
[[ $(cat mine/config.json) == mine ]] || fail "quantize wrote over a foreign file"
finish
