#!/usr/bin/env bash
# A translator from the command line: trained, resumed, used, measured; wrong input gets its exit code.
#   tests/cli/translate.sh PATH/TO/multihead
data=$(cd "$(dirname "${BASH_SOURCE[0]}")/../data" && pwd)
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for word in ab ba abba baab aab bba abab bab aba bb aa b a babb; do
  printf '%s\t%s\n' "$word" "$(tr ab AB <<<"$word")"
done >train.tsv
head -3 train.tsv >valid.tsv
sizes=(--encoder-layers 1 --decoder-layers 1 --heads 2 --width 16 --max-positions 16 --max-tokens 12 --tokenizer char
       --batch-tokens 32 --steps 6 --warmup 2 --eval-every 3)
train=("$multihead" train seq2seq "${sizes[@]}")

expect 2 '--out DIR is required' "${train[@]}" --data train.tsv
expect 2 '--data FILE is required' "${train[@]}" --out run
expect 3 'missing.tsv.*No such file' "${train[@]}" --data missing.tsv --out run
printf 'a\tA\nb\n' >columns.tsv
expect 3 'columns.tsv.*line 2' "${train[@]}" --data columns.tsv --out run
printf 'a\tA\n\nb\n' >blank.tsv
expect 3 'blank.tsv.*line 3' "${train[@]}" --data blank.tsv --out run
bare=("$multihead" train seq2seq --data train.tsv --out run)
expect 2 'num_heads 3' "${bare[@]}" --heads 3
expect 2 '--max-tokens must be in \[2, --max-positions = 16\]' "${bare[@]}" --max-positions 16 --max-tokens 17
expect 2 '--average 9' "${bare[@]}" --average 9
[[ ! -e run ]] || fail "a refused run left a folder"

expect 0 '' "${train[@]}" --data train.tsv --valid valid.tsv --out run
expect 2 'resume it' "${train[@]}" --data train.tsv --valid valid.tsv --out run

expect 0 '' "$multihead" translate run --text abba
expect 2 '--scores has no effect with --json' "$multihead" translate run --text abba --json --scores
expect 0 'tokenizer: characters' "$multihead" info run
expect 0 '"kv_cache_bytes": [1-9]' "$multihead" info run --json
expect 0 'ok +search' "$multihead" check run --length 7
expect 0 '"passed": true' "$multihead" check run --length 3 --json
# expect() closes stdin: lines come through a shell.
lines() { expect "$1" "$2" bash -c 'printf "$1" | "$0" translate run' "$multihead" "$3"; }
# A blank line stays one.
lines 0 '' 'ab\n\n \nba\n'
[[ $(wc -l <out.txt) -eq 4 && -z $(sed -n 2,3p out.txt | tr -d '\n') ]] || fail "blank lines: $(cat out.txt)"
lines 3 'line 1 has 17 tokens, the model reads at most 16' 'abababababababab\n'
# A signal ends it while it waits for lines, of which it has read a group.
mkfifo lines_in
"$multihead" translate run --beam 1 --max-length 3 <lines_in >out.txt 2>err.txt &
exec 9>lines_in
for _ in $(seq 512); do echo ab; done >&9
for _ in $(seq 100); do
  if [[ $(wc -l <out.txt) == 512 ]]; then break; fi
  sleep 0.05
done
kill -TERM $!
for _ in $(seq 100); do
  if ! kill -0 $! 2>/dev/null; then break; fi
  sleep 0.05
done
exec 9>&-
code=0
wait $! || code=$?
[[ $code == 143 && $(wc -l <out.txt) == 512 ]] || fail "after SIGTERM: exit code $code, $(wc -l <out.txt) lines"
expect 2 'num_hypotheses 5 exceeds beam_size 4' "$multihead" translate run --text ab --n-best 5
expect 2 'alternatives are searched, not sampled' "$multihead" translate run --text ab --alternatives --sample
[ "$("$multihead" translate run --text ab --alternatives --n-best 5 --quiet | sort -u | wc -l)" = 5 ] ||
  fail "--alternatives gives other than five translations"
expect 2 'beam_size must be at least 1' "$multihead" translate run --text ab --beam 0
expect 3 'a language model; use AutoModel, load_language_model' "$multihead" translate "$data/hugging_face/gpt2"
expect 3 'nowhere' "$multihead" translate nowhere --text ab
mkdir prophetnet
echo '{"model_type": "prophetnet"}' >prophetnet/config.json
expect 3 'is "prophetnet", which is not supported' "$multihead" translate prophetnet --text ab
# What a folder asks for is done, goes behind the flags, or is refused by name.
cp -r run asks
echo '{"num_beams": 1, "max_new_tokens": 2}' >asks/generation_config.json
expect 2 'num_hypotheses 2 exceeds beam_size 1' "$multihead" translate asks --text ab --n-best 2
expect 0 '' "$multihead" translate asks --text ab --n-best 2 --beam 2
echo '{"early_stopping": true, "max_new_tokens": 2}' >asks/generation_config.json
expect 0 '' "$multihead" translate asks --text ab
echo '{"early_stopping": "never"}' >asks/generation_config.json
expect 3 'early_stopping' "$multihead" translate asks --text ab
rm asks/tokenizer.json
touch asks/source.spm
expect 3 'cannot open "asks/vocab.json"' "$multihead" translate asks --text ab
mv asks/model.safetensors asks/pytorch_model.bin
expect 3 'AutoModelForSeq2SeqLM.from_pretrained\(' "$multihead" translate asks --text ab

expect 2 '--weight-dtype must be one of f32, bf16, f16, int8, q8, q5, q4; got "int4"' "$multihead" translate run --text ab --weight-dtype int4
for threads in 1 3; do
  MULTIHEAD_NUM_THREADS=$threads "$multihead" translate run --weight-dtype int8 --n-best 2 --quiet \
    < <(printf 'ab\nbaab\na\n') >"int8.$threads"
done
[[ $(wc -l <int8.1) == 6 ]] || fail "--weight-dtype int8 printed $(wc -l <int8.1) of 6 lines"
cmp int8.1 int8.3 || fail "--weight-dtype int8 depends on the threads"
expect 0 'BLEU' "$multihead" eval run --data valid.tsv --bleu --weight-dtype int8

lines=$(printf 'ab\nbaab\na\n' | "$multihead" translate run --n-best 2 --quiet | wc -l)
[[ $lines == 6 ]] || fail "--n-best 2 of 3 lines printed $lines lines"
"$multihead" translate run --json --quiet < <(printf 'ab\nba\n') | python3 -c '
import json, sys
rows = [json.loads(line) for line in sys.stdin]
assert [row["source"] for row in rows] == ["ab", "ba"], rows
assert all(row["translations"][0]["score"] < 0 for row in rows), rows' || fail "--json of translate"

# Tokens of half a character: what is printed is UTF-8 all the same.
for word in ab ba abba baab; do printf '%s\t%s\n' "$word" "$(sed 's/a/ä/g; s/b/ß/g' <<<"$word")"; done >bytes.tsv
bytes=(--tokenizer bpe --vocab-size 300 --steps 1 --warmup 0 --eval-every 0 --heads 2 --width 16 --quiet)
"$multihead" train seq2seq "${bytes[@]}" --encoder-layers 1 --decoder-layers 1 --max-positions 32 --max-tokens 12 \
  --batch-tokens 32 --data bytes.tsv --out bytes >/dev/null || fail "training on bytes"
"$multihead" translate bytes --text ab --sample --n-best 50 --max-length 12 --quiet >sampled.txt
iconv -f UTF-8 -t UTF-8 sampled.txt >/dev/null || fail "translate printed no UTF-8"
for _ in {1..200}; do printf 'ä ö ü ß '; done >bytes.txt
"$multihead" train lm "${bytes[@]}" --layers 1 --context 16 --batch 4 --data bytes.txt --out bytes_lm >/dev/null ||
  fail "training on bytes"
"$multihead" generate bytes_lm --prompt 'ä' --max-new-tokens 60 --quiet | iconv -f UTF-8 -t UTF-8 >/dev/null ||
  fail "generate printed no UTF-8"

expect 0 '' "$multihead" eval run --data valid.tsv --bleu --chrf
expect 3 'columns.tsv.*line 2' "$multihead" eval run --data columns.tsv --bleu
"$multihead" eval run --data valid.tsv --bleu --chrf --json | python3 -c '
import json, sys
result = json.load(sys.stdin)
assert 0 <= result["bleu"] <= 100 and 0 <= result["chrf"] <= 100 and result["loss"] > 0, result
assert result["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|"), result' || fail "--json of eval"
finish
