#!/usr/bin/env bash
# Encoders fine-tuned: classifiers, embedders, masked language models, adapters.
#   tests/cli/fine_tune.sh PATH/TO/multihead
encoders=$(cd "$(dirname "${BASH_SOURCE[0]}")/../data/encoders" && pwd)
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cp -r "$encoders/bert" bert
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' the cat dog sat on a mat '##s' red sun sea green night >bert/vocab.txt
for _ in 1 2 3 4 5 6; do
  printf 'the cat sat on a mat\tlow\nthe dog sat\tlow\nred sun\thigh\ngreen sea\thigh\nthe cats\tlow\nred night\thigh\n'
done >labels.tsv
printf 'the cat\tred sun\nthe dog\tgreen sea\na mat\tred night\nthe cats\tsea\n' >pairs.tsv
for _ in $(seq 60); do printf 'the red cat sat on a mat\na green sea at night\n'; done >text.txt
printf 'red sun\n' >one.txt
printf 'sea sun\thigh\n' >other.tsv
printf 'the cat\tlow\n' >low.tsv
printf 'the cat\nred sun\n' >two.txt
fast=(--steps 12 --warmup 2 --lr 1e-2 --eval-every 4 --quiet)

expect 0 '36 texts, 2 labels, 12 steps' "$multihead" train classifier --init bert --data labels.tsv --valid labels.tsv --out classifier --batch 8 "${fast[@]}"
expect 0 'high  red sun' "$multihead" classify classifier --data one.txt
printf 'red sun\n\nsea\n' >gap.txt  # a blank line has its own answer: answers stay beside their lines
[[ $("$multihead" classify classifier --data gap.txt --quiet | wc -l) -eq 3 ]] || fail 'a line without an answer'
expect 0 '"macro_f1": ' "$multihead" eval classifier --data labels.tsv --json
expect 0 'accuracy  [01]\.' "$multihead" eval classifier --data labels.tsv
expect 0 'weighted mean' "$multihead" eval classifier --data labels.tsv --predictions told.tsv --page told.html
[[ $(head -1 told.tsv) == $'label\tpredicted\tscore\ttext' && $(wc -l <told.tsv) -eq 37 ]] || fail "predictions: $(head -2 told.tsv)"
grep -q '<h2>Confusion matrix</h2>' told.html || fail "no page"
expect 3 'a line is one text, and these data have two columns' "$multihead" eval classifier --data labels.tsv --format text
expect 0 'over       4 queries among 4 documents' "$multihead" eval bert --data pairs.tsv
printf 'the cat\tred sun\t1\nthe dog\tgreen sea\t0.5\na mat\tthe cats\t0\n' >scored.tsv
printf 'the cat\tred sun\t1\nthe cat\tsea\t0\na mat\tthe cats\t0\na mat\tnight\t1\n' >scored2.tsv
expect 0 '^Spearman +-?[01]\.[0-9]{4}$' "$multihead" eval bert --data scored.tsv
cp -r "$encoders/bert_tokens" tagger && cp bert/vocab.txt tagger/
printf 'the O\ncat B-NAME\n\nred B-NAME\nsun I-NAME\n' >tagged.conll
expect 0 'of 2 entities' "$multihead" eval tagger --data tagged.conll
printf 'the O\ncat NAME\n' >untagged.conll
expect 3 'line 2: a tag must be O' "$multihead" eval tagger --data untagged.conll
printf '{"text": "the cat", "entities": [{"start": 0, "end": 3, "label": "X"}, {"start": 2, "end": 7, "label": "Y"}]}' >overlap.jsonl
expect 3 'overlap.jsonl: line 1: the entities "X" and "Y" overlap' "$multihead" eval tagger --data overlap.jsonl
printf 'red sun\tmiddle\n' >middle.tsv
expect 3 'middle.tsv: line 1: the model has no label "middle"; its labels are "high", "low"' "$multihead" eval classifier --data middle.tsv
cp -r classifier twins
tr -d '\n' <classifier/config.json | sed 's/"high"/"low"/; s/"label2id": *{[^}]*}, *//' >twins/config.json
expect 3 'twins: the labels 0 and 1 of the model are both called "low"' "$multihead" eval twins --data low.tsv
expect 3 'the labels 0 and 1 of the model are both called "low"' "$multihead" train classifier --init twins --data low.tsv --out x
expect 0 '"macro_f1"' "$multihead" train classifier --data labels.tsv --out classifier --resume --init bert --json "${fast[@]}" --batch 8 --valid labels.tsv
expect 0 'accuracy 0\.[0-9]+|accuracy 1\.0' "$multihead" train classifier --init bert --data labels.tsv --valid labels.tsv --out frozen --freeze true "${fast[@]}"
expect 0 '42 parameters trained' "$multihead" train classifier --init bert --data labels.tsv --valid labels.tsv --out frozen --freeze true --overwrite "${fast[@]}"

# --help shows what --init changes.
expect 0 '--dropout X .*\[the model.s\]' "$multihead" train classifier --help
expect 0 '--max-length N .*\[256, or the model.s limit if that is less\]' "$multihead" train classifier --help
expect 0 '--batch N .*\[24; with --init 4\]' "$multihead" train lm --help

# Tables in other formats; the label column is no text.
{ echo 'label,text' && awk -F'\t' '{ printf "%s,\"%s\"\n", $2, $1 }' labels.tsv; } >labels.csv
awk -F'\t' '{ printf "{\"text\":\"%s\",\"label\":\"%s\"}\n", $1, $2 }' labels.tsv >labels.jsonl
"$multihead" classify classifier --data labels.tsv --quiet >from.tsv || fail "classify labels.tsv"
for file in labels.csv labels.jsonl; do
  "$multihead" classify classifier --data $file --quiet | cmp - from.tsv || fail "$file is read otherwise"
  expect 0 'over      36 texts' "$multihead" eval classifier --data $file
done
[[ $(wc -l <from.tsv) -eq 36 ]] && grep -q '  red sun$' from.tsv || fail "labels were read as text"
"$multihead" classify classifier --data labels.csv --format tsv >out.txt 2>&1 || fail "--format"

cp labels.tsv labels.txt
expect 3 'line 1 has a TAB: give --format' "$multihead" classify classifier --data labels.txt
expect 2 'top has no effect on a tagger|stride has no effect on a classifier' "$multihead" classify classifier --data one.txt --stride 4
expect 2 'last has no effect on a classifier' "$multihead" eval classifier --data labels.tsv --last 0.5
expect 2 'lora-alpha has no effect with --lora-rank 0' "$multihead" train classifier --init bert --data labels.tsv --out x --lora-alpha 3
expect 2 'momentum has no effect' "$multihead" train classifier --init bert --data labels.tsv --out x --momentum 0.3
expect 2 'give one of --steps, --epochs and --time' "$multihead" train classifier --init bert --data labels.tsv --out x --steps 3 --epochs 3
expect 0 '18 steps' "$multihead" train classifier --data labels.tsv --out classifier --resume --steps 18 --quiet
expect 0 ' 72 steps' "$multihead" train classifier --init bert --data labels.csv --out passes --batch 1 --epochs 2 --quiet

expect 0 'recall at 1 [01]\.' "$multihead" train embedder --init bert --data pairs.tsv --valid pairs.tsv --out embedder --batch 4 --chunk 2 "${fast[@]}"
printf 'the cat\tred sun\ta mat\nthe dog\tgreen sea\tnight\n' >triplets.tsv
expect 0 'recall at 1 [01]\.' "$multihead" train embedder --init bert --data triplets.tsv --valid triplets.tsv --out triplets --batch 2 --matryoshka 8,3 "${fast[@]}"
expect 0 'spearman ' "$multihead" train embedder --init bert --data scored.tsv --valid scored.tsv --out scored --batch 2 "${fast[@]}"
expect 2 'must be less than the 20 columns' "$multihead" train embedder --init bert --data scored.tsv --out x --batch 2 --matryoshka 30
expect 0 'ndcg at 10 [01]\.' "$multihead" train reranker --init bert --data triplets.tsv --valid triplets.tsv --out reranker "${fast[@]}"
expect 0 'over       2 queries' "$multihead" eval reranker --data scored2.tsv
cat scored2.tsv scored2.tsv >repeated.tsv # and its pairs are counted
expect 0 "over       $(wc -l <scored2.tsv) pairs" "$multihead" eval reranker --data repeated.tsv
[[ $("$multihead" eval reranker --data repeated.tsv --json) == "$("$multihead" eval reranker --data scored2.tsv --json)" ]] ||
  fail 'eval counts a repeated pair twice'
expect 0 'nats per pair' "$multihead" train reranker --init bert --data pairs.tsv --valid pairs.tsv --out mined --ranking lists --negatives 2 --miner bert "${fast[@]}"
expect 3 'give a column "score" or "negative", or --negatives 4' "$multihead" train reranker --init bert --data pairs.tsv --out x
expect 0 'f1 [01]\.' "$multihead" train tagger --init bert --data tagged.conll --valid tagged.conll --out spans "${fast[@]}"
expect 0 'of 2 entities' "$multihead" eval spans --data tagged.conll
printf '%s\n' '{"prompt": 3, "completion": "x"}' >odd.jsonl
expect 3 'line 2: a tag must be O' "$multihead" train tagger --init bert --data untagged.conll --out x
expect 0 ' steps, ' "$multihead" train classifier --init bert --data labels.tsv --valid labels.tsv --out timed --time 1s --best accuracy --balanced true --quiet
expect 2 'best must be a figure of the evaluations, one of loss, accuracy, macro_f1' "$multihead" train classifier --init bert --data labels.tsv --valid other.tsv --out badly --best f2 --quiet
expect 2 "best macro_f1 needs data to evaluate on" "$multihead" train classifier --init bert --data labels.tsv --out unmeasured --best macro_f1 --quiet
grep -q '^| macro_f1 | ' timed/README.md || fail "no card"
expect 0 '2 vectors of 20 dimensions' "$multihead" embed embedder --data two.txt --out v.npy
expect 0 'nats per hidden token' "$multihead" train mlm --init bert --data text.txt --out mlm --max-length 16 --batch 2 "${fast[@]}"
expect 0 '^ *0\.' "$multihead" fill-mask mlm --text 'the red [MASK] sat'
expect 0 'parameters trained' "$multihead" train mlm --data text.txt --out new --layers 1 --heads 2 --width 16 --context 16 --vocab-size 270 --batch 2 "${fast[@]}"

expect 0 '362 parameters trained' "$multihead" train classifier --init bert --data labels.tsv --valid labels.tsv --out lora --lora-rank 2 --batch 8 "${fast[@]}"
[[ -e lora/adapter_model.safetensors && ! -e lora/model.safetensors ]] || fail "an adapter's folder holds $(ls lora)"
expect 0 'red sun' "$multihead" classify lora --data one.txt
"$multihead" train lm --data text.txt --out lm --layers 1 --heads 2 --width 16 --context 16 --vocab-size 270 --batch 2 "${fast[@]}"
"$multihead" train lm --data text.txt --init lm --out tuned --lora-rank 2 --batch 2 "${fast[@]}"
expect 0 'parameters' "$multihead" convert tuned merged
expect 3 'line 1: "prompt" and "completion" must both be texts' "$multihead" train lm --data odd.jsonl --init lm --out x
[[ $("$multihead" generate tuned --prompt the --max-new-tokens 8 --quiet) == $("$multihead" generate merged --prompt the --max-new-tokens 8 --quiet) ]] || fail "a merged adapter says something else"

# A head alone, several labels, numbers.
expect 0 'accuracy [01]\.' "$multihead" train classifier --init bert --data labels.tsv --valid labels.tsv --out head --head-only true --head-c 1 --quiet
expect 0 'macro F1' "$multihead" eval head --data labels.tsv
expect 0 'low|high' "$multihead" classify head --data labels.tsv
expect 2 'lr has no effect with --head-only' "$multihead" train classifier --init bert --data labels.tsv --out x --head-only true --lr 0.1
awk -F'\t' '{ printf "%s\t%s\n", $1, NR % 3 ? $2 ",odd" : "[]" }' labels.tsv >several.tsv
expect 0 'micro f1 [01]\.' "$multihead" train classifier --init bert --data several.tsv --valid several.tsv --out several --multi-label true "${fast[@]}"
expect 0 'accuracy  [01]\.' "$multihead" eval several --data several.tsv --predictions told.tsv
[[ $(head -1 told.tsv) == $'labels\tpredicted\ttext' && $(wc -l <told.tsv) -eq 37 ]] || fail "predictions: $(head -2 told.tsv)"
awk -F'\t' '{ printf "%s\t%s.5\n", $1, NR % 3 }' labels.tsv >numbers.tsv
expect 3 'give --regression true' "$multihead" train classifier --init bert --data numbers.tsv --out x
expect 0 'mean squared error' "$multihead" train classifier --init bert --data numbers.tsv --valid numbers.tsv --out numbers --regression true "${fast[@]}"
expect 0 'MSE        [0-9]' "$multihead" eval numbers --data numbers.tsv
expect 0 '"pearson"' "$multihead" eval numbers --data numbers.tsv --json
"$multihead" eval numbers --data numbers.tsv --json | grep -q mrr && fail 'numbers of single texts have no ranking'

# Images in folders called by their labels.
mkdir -p pictures/dark pictures/bright
for i in 1 2 3 4; do
  printf 'P6 8 8 255\n%0192d' "$i" >pictures/dark/$i.ppm
  { printf 'P6 8 8 255\n' && printf "%0192d$i" 0 | tail -c 192 | tr 0 z; } >pictures/bright/$i.ppm
done
expect 0 '8 images, 2 labels, 12 steps' "$multihead" train images --data pictures --valid pictures --out vit --layers 1 --width 16 "${fast[@]}"
expect 0 'accuracy  1\.' "$multihead" eval vit --data pictures
expect 0 'dark  pictures/dark/1.ppm' "$multihead" classify vit --image pictures/dark/1.ppm
expect 0 '8 images' "$multihead" train images --init vit --data pictures --out tuned_vit "${fast[@]}"
expect 2 'its model has other sizes' "$multihead" train images --init vit --data pictures --out x --width 20
expect 2 'lora-rank' "$multihead" train images --data pictures --out x --lora-rank 2
expect 3 'nowhere": expected a folder with a folder' "$multihead" train images --data nowhere --out x
expect 3 'labels.tsv": expected a folder' "$multihead" train images --data pictures --valid labels.tsv --out x
touch pictures/dark/5.gif
expect 3 'dark/5.gif": expected a PNG or PPM file' "$multihead" train images --data pictures --out x
expect 3 'dark/5.gif": expected a PNG or PPM file' "$multihead" eval vit --data pictures

expect 2 '"--ffn-width" is now called --ff; ' "$multihead" train mlm --data text.txt --out x --ffn-width 32
expect 2 '--init DIR is required' "$multihead" train classifier --data labels.tsv --out x
expect 3 'line 1 must have two columns' "$multihead" train classifier --init bert --data text.txt --out x
expect 3 'nothing' "$multihead" train embedder --init nothing --data pairs.tsv --out x
expect 2 'fewer than the 32 of a batch' "$multihead" train embedder --init bert --data pairs.tsv --out x
expect 2 'needs --init' "$multihead" train lm --data text.txt --out x --lora-rank 2
[[ ! -e x ]] || fail 'a run that cannot begin left a folder'
finish
