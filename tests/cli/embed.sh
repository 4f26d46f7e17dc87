#!/usr/bin/env bash
# Texts to vectors, and search among them.
#   tests/cli/embed.sh PATH/TO/multihead
encoders=$(cd "$(dirname "${BASH_SOURCE[0]}")/../data/encoders" && pwd)
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cp -r "$encoders/bert" model
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' the cat dog sat on a mat '##s' >model/vocab.txt
printf 'the cats\nthe dog sat on a mat\n\nsomething else\na mat\n' >texts.txt

expect 0 '^tokenizer: WordPiece, 13 tokens' "$multihead" info model
expect 0 '"model_type": "bert"' "$multihead" info model --json
expect 0 '5 vectors of 20 dimensions' "$multihead" embed model --data texts.txt --out all.npy
expect 0 '"out": "all.npy", "vectors": 5, "dimensions": 20, "texts_per_second": [0-9]' bash -c '"$1" embed model --data texts.txt --out all.npy --json --quiet | tr -s "\n " " "' bash "$multihead"
echo '{"mine": 1}' >foreign.npy.json
expect 3 'foreign.npy.json: is no record of vectors, which would be written there; move it away' "$multihead" embed model --data texts.txt --out foreign.npy
[[ $(<foreign.npy.json) == '{"mine": 1}' && ! -e foreign.npy ]] || fail "foreign.npy.json was replaced"
[[ $(stat -c %s all.npy) == $((128 + 5 * 20 * 4)) ]] || fail "all.npy has $(stat -c %s all.npy) bytes"
"$multihead" embed model --data texts.txt --out all.jsonl --quiet
[[ $(wc -l <all.jsonl) == 5 ]] || fail "all.jsonl has $(wc -l <all.jsonl) lines"
[[ $(printf 'a mat\n' | "$multihead" embed model --data - --out -) == "$(tail -n 1 all.jsonl)" ]] || fail "a text alone has another vector"
"$multihead" embed model --data texts.txt --out one.npy --batch-tokens 1 --threads 1 --quiet
"$multihead" embed model --data texts.txt --out int8.npy --weights int8 --batch-tokens 1 --threads 1 --quiet
expect 0 '5 vectors of 20 dimensions' "$multihead" embed model --data texts.txt --out int8_2.npy --weights int8
cmp int8.npy int8_2.npy || fail "int8 vectors depend on the batch"
cmp -s int8.npy all.npy && fail "--weights int8 changed nothing"
"$multihead" embed model --data texts.txt --out bf16.npy --precision bf16 --batch-tokens 1 --threads 1 --quiet
"$multihead" embed model --data texts.txt --out bf16_2.npy --precision bf16 --quiet
cmp bf16.npy bf16_2.npy || fail "bf16 vectors depend on the batch"
cmp -s bf16.npy all.npy && fail "--precision bf16 changed nothing"
cmp all.npy one.npy || fail "the batch changes the vectors"

expect 0 '^1.000 +2  the dog sat on a mat' "$multihead" search model --data texts.txt --query "the dog sat on a mat"
"$multihead" embed model --data texts.txt --out raw.npy --quiet
expect 0 '^1.000 +2  the dog sat on a mat' "$multihead" search model --data texts.txt --index raw.npy --query "the dog sat on a mat"
printf 'a mat\nthe cats\nsomething else\nthe dog sat on a mat\ndog\n' >others.txt
expect 3 'raw.npy: was made from other texts; delete it' "$multihead" search model --data others.txt --index raw.npy --query "a mat"
# Lines that three rows do not tell apart; other settings; vectors of another program; another model.
sed 's/^$/a dog/' texts.txt >edited.txt
expect 3 'raw.npy: was made from other texts' "$multihead" search model --data edited.txt --index raw.npy --query "a mat"
expect 3 'was made with --prompt "", not "the "; delete' "$multihead" search model --data texts.txt --index raw.npy --prompt 'the ' --query "a mat"
expect 3 'was made with --weights "stored", not "q4"' "$multihead" search model --data texts.txt --index raw.npy --weights q4 --query "a mat"
cp raw.npy numpy.npy
"$multihead" search model --data texts.txt --index numpy.npy --query "the dog sat on a mat" 2>err.txt | grep -q '^1.000 ' || fail "vectors without a record"
grep -q '^note: numpy.npy has no numpy.npy.json' err.txt || fail "no note: $(cat err.txt)"
expect 3 'numpy.npy: row [1-5] is not the vector of line' "$multihead" search model --data others.txt --index numpy.npy --query "a mat" --quiet
cp raw.npy.json numpy.npy.json
printf '\1' | dd of=numpy.npy bs=1 seek=350 conv=notrunc status=none
expect 3 'not those that numpy.npy.json describes' "$multihead" search model --data texts.txt --index numpy.npy --query "a mat"
expect 2 'truncate_dim must be in .1, 20., the width of the model, got 21' "$multihead" embed model --data texts.txt --out wide.npy --truncate-dim 21
[[ ! -e wide.npy && ! -e wide.npy.json ]] || fail "a refused --truncate-dim left a file"
expect 2 'truncate_dim must be in' "$multihead" search model --data texts.txt --index raw.npy --truncate-dim 21 --query "a mat"
printf '\xef\xbb\xbfthe cats\n' >marked.txt
[[ $("$multihead" embed model --data marked.txt --out - --quiet) == "$(head -n 1 all.jsonl)" ]] || fail "a byte order mark is read as text"
[[ $("$multihead" search model --data texts.txt --top 1 --quiet <marked.txt) =~ ^1\.000\ +1\ \ the\ cats$ ]] || fail "a byte order mark is part of a query"
gzip -k texts.txt
expect 3 'texts.txt.gz: this is compressed .gzip.; make it plain text in UTF-8 first .gunzip.' "$multihead" embed model --data texts.txt.gz --out packed.npy
expect 3 'stdin: this is compressed .gzip.' bash -c "'$multihead' search model --data texts.txt --quiet <texts.txt.gz"
expect 3 'stdin: this is UTF-16; make it plain text' bash -c 'printf "\xff\xfea\0" | "$1" embed model --data - --out packed.npy' bash "$multihead"
[[ ! -e packed.npy ]] || fail "compressed texts have vectors"
expect 0 '"line":5' "$multihead" search model --data texts.txt --query "a mat" --top 1 --json
# The file's lines, which are not the rows of a table; line ends of old; a place that cannot be written; files of two models.
printf 'text\nthe cats\n\n"x\ny"\na mat\n' >table.csv
expect 0 '^1.000 +6  a mat' "$multihead" search model --data table.csv --query "a mat" --top 1
printf 'a mat\rthe cats\r' >old.txt
expect 3 'old.txt: its lines end in CR alone; make that LF first' "$multihead" embed model --data old.txt --out old.npy
expect 3 'stdin: its lines end in CR alone' bash -c 'printf "text\ra mat\rthe cats\r" | "$1" embed model --data - --format csv --out -' bash "$multihead"
expect 0 '' bash -c 'printf "PAR1 is a mat\n" | "$1" embed model --data - --out -' bash "$multihead"
expect 3 'stdin: its lines end in CR alone' bash -c '"$1" search model --data texts.txt <old.txt' bash "$multihead"
expect 1 'nowhere' "$multihead" search model --data texts.txt --query "a mat" --index nowhere/x.npy
# A line without tokens has a vector of zeros, which is that line's when the index is read again.
make_text >text.txt
"$multihead" train lm "${small[@]}" --data text.txt --out decoder >/dev/null 2>&1 || fail "training a decoder"
printf '\nthe cat\n' >blank.txt
for _ in 1 2; do expect 0 '^0.000 +1' "$multihead" search decoder --data blank.txt --index blank.npy --query "the cat" --quiet; done
cp -r model mixed && seq 400 >>mixed/vocab.txt
expect 3 '^multihead: mixed: the tokenizer has 413 tokens, the model expects [0-9]+; they do not match' "$multihead" embed mixed --data texts.txt --out -
mkdir folder.npy
expect 1 'folder.npy' "$multihead" embed model --data texts.txt --out folder.npy --skip-existing
"$multihead" search model --data texts.txt --query "a mat" --index kept.npy >first.txt
"$multihead" search model --data texts.txt --query "a mat" --index kept.npy >second.txt
cmp first.txt second.txt || fail "the kept vectors give other lines"
[[ $(printf 'a mat\nthe cats\n' | "$multihead" search model --data texts.txt --top 1 | wc -l) == 2 ]] || fail "queries from stdin"

for part in 1 2 3; do "$multihead" embed model --data texts.txt --out "part_$part.jsonl" --part "$part/3" --quiet; done
cat part_1.jsonl part_2.jsonl part_3.jsonl | cmp - all.jsonl || fail "parts are not the whole"
# More texts than are computed before some are written.
for i in $(seq 1100); do printf 'the cat sat on %s mats\n' "$i"; done >many.txt
"$multihead" embed model --data many.txt --out many.jsonl --quiet
"$multihead" embed model --data many.txt --out many.npy --quiet
for part in 1 2; do
  "$multihead" embed model --data many.txt --out "many_$part.jsonl" --part "$part/2" --quiet
  "$multihead" embed model --data many.txt --out "many_$part.npy" --part "$part/2" --quiet
done
cat many_1.jsonl many_2.jsonl | cmp - many.jsonl || fail "parts of many texts are not the whole"
tail -q -c +129 many_1.npy many_2.npy | cmp - <(tail -c +129 many.npy) || fail "many.npy has other vectors"
printf 'kept\n' >part_2.jsonl
"$multihead" embed model --data texts.txt --out part_2.jsonl --part 2/3 --skip-existing
[[ $(<part_2.jsonl) == kept ]] || fail "--skip-existing wrote over a file"
expect 2 'part must be I/N' "$multihead" embed model --data texts.txt --out all.npy --part 4/3
for kind in int8 binary; do
  expect 0 '^(0.999|1.000) +2  the dog sat on a mat' "$multihead" search model --data texts.txt --compress $kind --query "the dog sat on a mat"
done

true >no_lines.txt
expect 3 'no_lines.txt: there are no lines to search' "$multihead" search model --data no_lines.txt --query "a mat"

# Queries and documents have the folder's prompts of these names, unless there is another.
cp -r model prompted
printf '{"prompts": {"query": "a cat ran to ", "document": "the "}, "default_prompt_name": "query"}' >prompted/config_sentence_transformers.json
printf 'dog\nmat\n' >words.txt
printf 'the dog\nthe mat\n' >said.txt
"$multihead" search prompted --data words.txt --query "dog" --json | grep -o '"score":[^,]*' >with_prompts.txt
"$multihead" search model --data said.txt --query "a cat ran to dog" --json | grep -o '"score":[^,]*' >spelled_out.txt
cmp with_prompts.txt spelled_out.txt || fail "the prompts of queries and documents"
printf 'dog\tmat\nmat\tdog\n' >pairs.tsv
printf 'a cat ran to dog\tthe mat\na cat ran to mat\tthe dog\n' >said.tsv
"$multihead" eval prompted --data pairs.tsv --json >with_prompts.txt
"$multihead" eval model --data said.tsv --json >spelled_out.txt
cmp with_prompts.txt spelled_out.txt || fail "the prompts of queries and documents in eval"

# Ranked as the folder says.
for how in dot euclidean manhattan tanimoto; do
  cp -r model "by_$how"
  printf '{"similarity_fn_name": "%s"}' $how >"by_$how/config_sentence_transformers.json"
done
expect 0 '^11.832 +2  the dog sat on a mat' "$multihead" search by_dot --data texts.txt --index raw.npy --query "the dog sat on a mat"
expect 0 '^-?0.000 +2  the dog sat on a mat' "$multihead" search by_euclidean --data texts.txt --query "the dog sat on a mat"
expect 0 '^-[0-9]+.*  the cats' "$multihead" search by_manhattan --data texts.txt --query "the dog sat on a mat"
expect 3 'similarity_fn_name "tanimoto" is not supported' "$multihead" search by_tanimoto --data texts.txt --query "a mat"
expect 0 '^-0.[0-9]+ +2  the dog sat on a mat' "$multihead" search by_euclidean --data texts.txt --compress int8 --query "the dog sat on a mat"
expect 2 '--compress cannot find by manhattan distances' "$multihead" search by_manhattan --data texts.txt --compress int8 --query "a mat"
expect 3 'is not the vector of line 1 .*length 1, not' "$multihead" search by_dot --data texts.txt --index kept.npy --query "a mat"

# Queries and documents through one Transformer, pooled in two ways.
mkdir -p routed/query routed/document
cp -r model routed/shared
printf '[{"type": "sentence_transformers.models.Router", "path": ""}]' >routed/modules.json
printf '{"types": {"shared": "sentence_transformers.models.Transformer", "query": "sentence_transformers.models.Pooling", "document": "sentence_transformers.models.Pooling"}, "structure": {
  "query": ["shared", "query"], "document": ["shared", "document"]}}' >routed/router_config.json
printf '{"pooling_mode": "cls"}' >routed/query/config.json
printf '{"pooling_mode": "max"}' >routed/document/config.json
"$multihead" embed model --data texts.txt --out cls.npy --pooling cls --quiet
"$multihead" embed routed --data texts.txt --out query.npy --task query --quiet
cmp cls.npy query.npy || fail "the route of queries is not pooled as it says"
expect 0 '^0.[0-9]+ +[1-5]  ' "$multihead" search routed --data texts.txt --query "the dog sat on a mat"
expect 0 '^1.000 +2  the dog' "$multihead" search routed --data texts.txt --pooling cls --query "the dog sat on a mat"

expect 2 'data FILE and --out FILE are required' "$multihead" embed model
expect 2 'must end in .npy or .jsonl' "$multihead" embed model --data texts.txt --out all.csv
expect 3 'No such file' "$multihead" embed model --data nothing.txt --out all.npy
expect 3 'nothing' "$multihead" embed nothing --data texts.txt --out all.npy
expect 2 'prompt_name' "$multihead" embed model --data texts.txt --out all.npy --prompt-name query
printf 'one\n' >short.txt
expect 3 'delete it to recreate it' "$multihead" search model --data short.txt --query a --index kept.npy
head -c 200 all.npy >cut.npy
expect 3 'holds 72 bytes' "$multihead" search model --data texts.txt --query a --index cut.npy
expect 3 'an encoder; use' "$multihead" generate model --prompt the

# Looked at and checked like other models.
expect 0 '^ok +batch invariance' "$multihead" check model
expect 0 '^ok +context' "$multihead" check model --weights q8
expect 0 'page.html: [0-9]+ KiB$' "$multihead" attend model --text 'the cat sat' --beside 'a mat' --heads 0 --out page.html
grep -q '"queries":\["\[CLS\]","the","cat","sat","\[SEP\]"\]' page.html || fail 'the page lacks the special tokens'
grep -q '"special":\[0,4\]' page.html || fail 'special tokens are not marked'
expect 2 'the text is empty' "$multihead" attend model --out x.html
expect 2 'is for language models and translators' "$multihead" attend model --text the --beside-model model --out x.html
cp -r "$encoders/bert_masked_lm" masked
cp model/vocab.txt masked
expect 0 'mask.html' "$multihead" attend masked --text 'the [MASK] sat' --out mask.html
grep -q '"lens":\[\[\[\["' mask.html || fail 'a masked language model does not say what it would put there'

expect 0 '"text":"the cats","vector":\{"' "$multihead" embed masked --kind sparse --max-active 3 --data texts.txt --out -
expect 0 '^[0-9.]+ +2  the dog sat on a mat' "$multihead" search masked --kind sparse --data texts.txt --query "the dog sat on a mat"
expect 2 'for dense vectors' "$multihead" embed masked --kind sparse --data texts.txt --out all.npy
expect 2 '--normalize is for dense vectors; those of "masked" are sparse' "$multihead" embed masked --kind sparse --normalize --data texts.txt --out -
expect 2 '--max-active is for sparse vectors; those of "model" are dense' "$multihead" embed model --max-active 3 --data texts.txt --out -
expect 2 '--task is for multi-vector models' "$multihead" embed model --task query --data texts.txt --out -
expect 2 '--skip-existing needs --out FILE' "$multihead" embed model --skip-existing --data texts.txt --out -
expect 2 'for dense vectors' "$multihead" search masked --kind sparse --data texts.txt --compress int8 --query a
expect 3 'not a multi-vector model' "$multihead" embed model --kind multi_vector --data texts.txt --out -

for name in bert_classifier bert_masked_lm; do
  cp -r "$encoders/$name" "$name"
  cp model/vocab.txt "$name"
done
expect 0 '^0\.[0-9]{3}  [A-Za-z_0-9]+  the cats$' "$multihead" classify bert_classifier --data texts.txt
expect 0 '"labels":\[\{' "$multihead" classify bert_classifier --data texts.txt --top 2 --json
cp -r "$encoders/bert_tokens" tagger
cp model/vocab.txt tagger
expect 0 '"entities":\[\{"label":"[A-Z]+","score":0.[0-9]+,"word":"' "$multihead" classify tagger --data texts.txt --json
expect 0 '^ +1  0\.[0-9]{3}  [BIO]' "$multihead" classify tagger --data texts.txt --aggregate none
expect 2 'aggregate' "$multihead" classify tagger --data texts.txt --aggregate all

images=$encoders/../images
expect 0 '^0\.604  dog  .*second.ppm$' "$multihead" classify "$images/vit_classifier" --image "$images/second.ppm"
expect 3 'is neither PNG nor binary PPM' "$multihead" classify "$images/vit_classifier" --image texts.txt
head -c 100 "$images/second.ppm" >cut.ppm
expect 3 'ends after' "$multihead" classify "$images/vit_classifier" --image cut.ppm
printf 'P6 12 12 65535\n' >deep.ppm
expect 3 'not 8 bits' "$multihead" classify "$images/vit_classifier" --image deep.ppm
expect 3 'expected an image classification head' "$multihead" classify "$images/vit" --image cut.ppm
expect 3 'an encoder of images' "$multihead" embed "$images/vit" --data texts.txt --out -
if [[ -e $(dirname "$multihead")/multihead_png.so ]]; then
  expect 0 '^0\.540  dog  .*first.png$' "$multihead" classify "$images/vit_classifier" --image "$images/first.png"
  expect 0 '^0\.[0-9]{3}  .*small.png$' "$multihead" classify "$images/vit_classifier" --image "$images/small.png"
  cp -r "$images/vit_classifier" fixed && sed -i 's/"do_resize": true/"do_resize": false/' fixed/preprocessor_config.json
  expect 3 '12x8 pixels; the model takes 12x12, and its preprocessor_config.json says that nothing' "$multihead" classify fixed --image "$images/small.png"
  expect 3 'nowhere.png' "$multihead" classify fixed --image nowhere.png
  head -c 300 "$images/first.png" >cut.png
  expect 3 'cut.png' "$multihead" classify "$images/vit_classifier" --image cut.png
else
  expect 2 'PNG images need multihead_png.so' "$multihead" classify "$images/vit_classifier" --image "$images/first.png"
fi
expect 2 'one label, this one has 3' "$multihead" rerank bert_classifier --data texts.txt --query cat
expect 0 ' sat on a mat$' "$multihead" fill-mask bert_masked_lm --text "the [MASK] sat on a mat"
[[ $("$multihead" fill-mask bert_masked_lm --text "the [MASK] sat on a [MASK]" --top 3 | wc -l) == 6 ]] || fail "two masks, three words each"
expect 2 'data FILE or --image FILE is required' "$multihead" classify bert_classifier
expect 2 'query TEXT are required' "$multihead" rerank bert_classifier --data texts.txt
expect 3 'expected a sequence or token classification head' "$multihead" classify model --data texts.txt
expect 2 'the text has no \[MASK\]' "$multihead" fill-mask bert_masked_lm --text "no mask"
expect 2 'expected a masked_lm head' "$multihead" fill-mask bert_classifier --text "a [MASK]"
finish
