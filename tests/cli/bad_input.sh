#!/usr/bin/env bash
# Every wrong input gets its exit code and one line that says what came and what was expected.
#   tests/cli/bad_input.sh PATH/TO/multihead
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_text >text.txt
train=("$multihead" train lm "${small[@]}")
fresh=("${train[@]}" --out run)

# The corpus.
expect 3 'missing.txt.*No such file' "${fresh[@]}" --data missing.txt
: >empty.txt
expect 3 'empty.txt.*empty' "${fresh[@]}" --data empty.txt
head -c 5000 "$multihead" >binary.txt
expect 3 'binary.txt.*(NUL|UTF-8|text)' "${fresh[@]}" --data binary.txt
printf 'caf\xe9 is Latin-1, as are these words, and long enough for a context.' >latin.txt
expect 3 'latin.txt.*UTF-8' "${fresh[@]}" --data latin.txt
expect 3 'folder' "${fresh[@]}" --data .
printf 'too short.' >short.txt
expect 3 'short.txt.*more than one context of 16' "${fresh[@]}" --data short.txt
printf 'long enough to hold a context or two, or even three.' >other.txt

# Flags and settings.
expect 2 'unknown flag "--colour"' "${fresh[@]}" --data text.txt --colour red
expect 2 '--lr needs a value, X' "${fresh[@]}" --data text.txt --lr
expect 2 '--seed is given 2 times; it takes one value' "${fresh[@]}" --data text.txt --seed 1 --seed 2
expect 2 'embed_dim 128 is not divisible by num_heads 3' "$multihead" train lm --data text.txt --out run --heads 3
huge=(--layers 4000 --width 8192 --heads 8)
takes='a model of [0-9]{13} weights, with gradients and optimizer needs .*TB, but only .* are available; choose'
expect 4 "$takes" "$multihead" train lm --data text.txt --out run "${huge[@]}"
expect 4 "$takes" "$multihead" bench train "${huge[@]}"
expect 2 'context must be positive, got 0' "$multihead" train lm --data text.txt --out run --context 0
expect 2 '--lr must be a number, got "nan"' "${fresh[@]}" --data text.txt --lr nan
expect 2 '--lr must be a number, got "0,001"' "${fresh[@]}" --data text.txt --lr 0,001
expect 2 '--keep must be a whole number, got "2.5"' "${fresh[@]}" --data text.txt --keep 2.5
expect 2 '--keep is out of range' "${fresh[@]}" --data text.txt --keep 99999999999999999999
expect 2 '--threads must be in \[1, 1024\], got 0' "${fresh[@]}" --data text.txt --threads 0
expect 2 '--threads' "${fresh[@]}" --data text.txt --threads 1000000000
expect 2 'tiny, small, tutorial' "${fresh[@]}" --data text.txt --preset huge
expect 2 'none, learned, sinusoidal, rotary or alibi' "${fresh[@]}" --data text.txt --positions rope
expect 2 '--data FILE is required' "${fresh[@]}"
expect 2 '--out DIR is required' "${train[@]}" --data text.txt
expect 2 'unknown verb "train seq", expected one of train lm, train seq2seq(, train [a-z]+)+$' "$multihead" train seq
expect 2 'did you mean "generate"' "$multihead" genrate run
expect 2 'unknown flag "--max-tokens" .did you mean "--max-new-tokens"' "$multihead" generate run --max-tokens 3
expect 2 'unknown verb "train", expected one of train lm, train seq2seq(, train [a-z]+)+$' "$multihead" train
expect 0 'bench gemm' "$multihead" bench --help
expect 0 '--max-new-tokens' "$multihead" help generate
expect 2 'unknown verb' "$multihead" $'sing\nsong'
# An empty value, as of an unset variable, is not an absent flag.
for flag in --init --tokenizer-file --time --lora-targets --data --valid --config; do
  expect 2 "^multihead: $flag must not be empty, expected [A-Z]+; see multihead train seq2seq --help" \
    "$multihead" train seq2seq --out run "$flag" ''
done
for flag in --regex --json-schema --grammar --suppress --stop --draft --system; do
  expect 2 "^multihead: $flag must not be empty" "$multihead" generate run --prompt the "$flag="
done
expect 2 '^multihead: --api-key-file must not be empty, expected FILE' "$multihead" serve run --api-key-file ""
expect 2 '^multihead: --query must not be empty, expected TEXT' "$multihead" search run --data text.txt --query ""
expect 2 '^multihead: DIR must not be empty' "$multihead" info ""
echo 'init = ""' >bad.toml
expect 2 '--init must not be empty' "${fresh[@]}" --data text.txt --config bad.toml
printf 'lr = 0.01\ncolour = 3\n' >bad.toml
expect 2 'colour' "${fresh[@]}" --data text.txt --config bad.toml
expect 3 'none.toml' "${fresh[@]}" --data text.txt --config none.toml
while IFS='|' read -r line why; do
  printf '# a remark\n%b\n' "$line" >bad.toml
  expect 2 "^multihead: --config: line [23]: wrong setting .*: $why" "${fresh[@]}" --data text.txt --config bad.toml
done <<'EOF'
[train]|sections are not read
lr = |expected a value
lr = []|expected a value
lr 0.01|expected its end, got "0.01"
lr = 1 2|expected its end, got "2"
lr = "1" 2|expected its end, got "2"
lr = [1|expected , or ] behind a value
lr = "1|a quote is never closed
lr = '1|a quote is never closed
out = "a\\q"|unknown escape ..\\q"; known are
out = "a\\ud800"|.*needs 4 hexadecimal digits of a character, got "d800"
config = "bad.toml"|it cannot name another file
lr = 1\nlr = 2|line 2 sets it too
EOF
printf '# a remark\n; another\n\n"steps"=x # the line wins\nlr = nan\n' >bad.toml
expect 2 '--lr must be a number, got "nan"' "${fresh[@]}" --data text.txt --config bad.toml
printf "prompt = 'the # 1'\njson\ntop-k = 1\n" >good.toml
expect 2 'unexpected argument "more"' "$multihead" generate run more
expect 2 '--quiet must be true or false, got "maybe"' "$multihead" generate run --quiet=maybe
mkfifo pipe && expect 3 'pipe.*not a regular file' timeout 60 "${fresh[@]}" --data text.txt --config pipe
head -c 300000 /dev/zero | tr '\0' '\a' >noise.toml
expect 2 '--config: .{1,300}$' "${fresh[@]}" --data text.txt --config noise.toml
[[ ! -e run ]] || fail "a refused command left a folder behind"

# Flags that others make useless.
expect 2 '--vocab-size has no effect with --tokenizer "char"' "${fresh[@]}" --data text.txt --vocab-size 300
expect 2 '--patience has no effect without validation data' "${train[@]:0:3}" --out run --data text.txt --validation-share 0 --patience 3
expect 2 '--eval-windows has no effect without validation data' "${fresh[@]}" --data text.txt --validation-share 0
expect 2 '--overwrite has no effect with --resume, which keeps' "${fresh[@]}" --data text.txt --resume --overwrite
[[ ! -e run ]] || fail "a refused command left a folder behind"

# A run, and what can be wrong with it afterwards.
expect 0 'model in run' "${fresh[@]}" --data text.txt
expect 2 'run holds a run of 6 steps; resume it, overwrite it' "${fresh[@]}" --data text.txt
expect 2 'lr was .*, is now 0.5' "${fresh[@]}" --data text.txt --resume --lr 0.5
make_text 901 >longer.txt
expect 2 'text was' "${train[@]}" --out run --data longer.txt --resume
expect 3 'other.txt.*not among the 18' "${train[@]}" --out run --data other.txt --resume
expect 3 'there is no folder "nothing"' "$multihead" generate nothing --prompt x
expect 2 '--prompt must not be empty, expected TEXT' "$multihead" generate run --prompt ''
expect 2 'prompt is empty' "$multihead" generate run
expect 2 'a prompt of 3 tokens and 200 new ones \(max_new_tokens\) need a context of 202, the model has 16; ask for' \
  "$multihead" generate run --prompt the --max-new-tokens 200 --past-context error
expect 2 'temperature' "$multihead" generate run --prompt the --temperature -1
for threads in many 0 -1 2.5 4096; do
  MULTIHEAD_NUM_THREADS=$threads expect 2 "MULTIHEAD_NUM_THREADS: expected a whole number in .1, 1024., got '$threads'" \
    "$multihead" generate run --prompt the
done
MULTIHEAD_ISA=sse9 expect 2 "MULTIHEAD_ISA: expected .*, got 'sse9'" "$multihead" generate run --prompt the
MULTIHEAD_NUM_THREADS=many expect 0 'the' "$multihead" generate run --prompt the --max-new-tokens 2 --threads 2
MULTIHEAD_NUM_THREADS='' expect 0 'the' "$multihead" generate run --prompt the --max-new-tokens 2
expect 2 '"#"' "$multihead" generate run --config good.toml
expect 0 '"prompt": "the"' "$multihead" generate run --config good.toml --prompt the --max-new-tokens 2
printf '\xef\xbb\xbfprompt = "the\\u0020cat\\n" # a remark\r\nstop = [%s, "\\"",]\n' "'a\\b'" >quoted.toml
expect 0 '"prompt": "the cat\\n"' "$multihead" generate run --config quoted.toml --json --max-new-tokens 2
printf "prompt = 'the\\\\ncat'\n" >literal.toml
expect 2 'character "\\\\" ' "$multihead" generate run --config literal.toml
expect 0 'the' "$multihead" generate --config good.toml --json=false --max-new-tokens=2 --prompt the -- run
expect 3 'other.txt|character|token' "$multihead" eval run --data other.txt  # letters the model never saw
expect 2 'context must be in \[1, 16\]' "$multihead" eval run --data text.txt --context 17
expect 2 'character|token' "$multihead" generate run --prompt 'Z€'
expect 2 'outside \[0,' "$multihead" tokenizer decode run 5 1000000
ids=$("$multihead" tokenizer encode run 'the cat')
[[ -n $ids && $(printf 'the cat' | "$multihead" tokenizer encode run) == "$ids" ]] ||
  fail 'tokenizer encode without a text does not read stdin'
encode=("$multihead" tokenizer encode special)
expect 0 'tokens in' "$multihead" tokenizer train text.txt --out special --vocab-size 270
printf 'the cat<|endoftext|>the cat' >special.txt
expect 0 'tokens in' "${encode[@]}" --data special.txt --out with.tokens --special
expect 0 'tokens in' "${encode[@]}" --data special.txt --out without.tokens
cmp -s with.tokens without.tokens && fail '--special changes nothing in a file'
expect 2 '--offsets is for a TEXT or stdin, not --data' "${encode[@]}" --data special.txt --out x.tokens --offsets
expect 2 '--as-file is for a TEXT or stdin, not --data' "${encode[@]}" --data special.txt --out x.tokens --as-file
expect 2 'give TEXT or --data, not both; got "words"' "${encode[@]}" words --data special.txt --out x.tokens
[[ ! -e x.tokens ]] || fail 'a refused command has written a file'

# An output is not an input: not by a link either, and not a part of the model.
ln -s text.txt link.txt && ln text.txt hard.txt && ln -s run linked
sums=$(sha256sum text.txt with.tokens run/config.json)
for out in text.txt ./text.txt link.txt hard.txt run/config.json linked/tokenizer.json; do
  expect 2 '--logprobs would replace ".*", which (--data|DIR) names; choose another' "$multihead" eval run --data text.txt --logprobs $out
  expect 2 '--out would replace ".*", which (--data|DIR) names' "$multihead" tokenizer encode run --data text.txt --out $out
done
expect 2 '--out would replace "with.tokens", which FILE names' "$multihead" tokenizer list without.tokens with.tokens --out with.tokens
[[ $(sha256sum text.txt with.tokens run/config.json) == "$sums" ]] || fail 'an input was written over'
for _ in 1 2; do expect 0 'perplexity' "$multihead" eval run --data text.txt --logprobs run/logprobs.tsv; done
expect 0 'tokens in' "$multihead" tokenizer encode run --data text.txt --out run.tokens
expect 3 '"run.tokens" was written with another tokenizer' "$multihead" tokenizer list with.tokens run.tokens --out x.list
[[ ! -e x.list ]] || fail 'a list of token files that do not belong together was written'

for stdin in '< .' '<&-'; do  # a folder, closed: no end of the input
  expect 3 'stdin cannot be read: (Is a directory|Bad file descriptor)' \
    bash -c "\"\$1\" tokenizer encode run - $stdin" bash "$multihead"
done

marked() { printf '\xef\xbb\xbfthe' | "$multihead" generate run --prompt - --max-new-tokens 3 --seed 1 --quiet; }
[[ $(marked) == "$("$multihead" generate run --prompt the --max-new-tokens 3 --seed 1 --quiet)" ]] || fail 'a byte order mark is part of the prompt'
expect 3 'stdin: this is compressed .gzip.' bash -c 'gzip <text.txt | "$1" generate run --prompt -' bash "$multihead"
expect 2 'the prompt is empty' "$multihead" generate run --prompt -
expect 2 'the prompt is empty' "$multihead" generate run --prompt - --chat

# Vocabulary mismatch: the tokenizer of another model.
expect 0 'tokens in' "$multihead" tokenizer train text.txt other.txt --out tok --vocab-size 300
expect 2 'folder "tok" holds a tokenizer; overwrite it' "$multihead" tokenizer train text.txt --out tok
expect 0 'tokens in' "$multihead" tokenizer train text.txt other.txt --out tok --vocab-size 300 --overwrite
expect 2 'folder "run" holds a model' "$multihead" tokenizer train text.txt --out run --overwrite
cp -r run mixed && cp tok/tokenizer.json mixed/
expect 3 'the tokenizer has [0-9]+ tokens, the model expects 18' "$multihead" generate mixed --prompt the

# Truncated, garbled, missing parts.
cp -r run cut && truncate -s -100 cut/model.safetensors
expect 3 'cut.*safetensors' "$multihead" info cut
cp -r run noise && printf 'garbage' | dd of=noise/model.safetensors bs=1 seek=3 conv=notrunc status=none
expect 3 'noise.*safetensors' "$multihead" generate noise --prompt the
cp -r run config && printf '{"hidden_size": ' >config/config.json
expect 3 'config.json' "$multihead" info config
cp -r run token && echo '{}' >token/tokenizer.json
expect 3 'tokenizer.json' "$multihead" generate token --prompt the
cp -r run damaged && printf 'X' | dd of=damaged/checkpoint-6/optimizer.safetensors bs=1 seek=900 conv=notrunc status=none
expect 3 'optimizer.safetensors' "${train[@]}" --out damaged --data text.txt --resume
cp -r run half && truncate -s 200 half/checkpoint-6/model.safetensors
expect 3 'half/checkpoint-6/model.safetensors.*200 bytes' "${train[@]}" --out half --data text.txt --resume
cp -r run gone && rm gone/checkpoint-6/manifest.json  # not one of ours any more: not touched
expect 2 'folder "gone", because "checkpoint-6" was not written by multihead; move it away' \
  "${train[@]}" --out gone --data text.txt --resume
cp -r run saving && rm saving/config.json
expect 3 'saving" has no config.json: the training run in it is unfinished; continue with --resume' \
  "$multihead" generate saving --prompt the
expect 0 'model in saving' "${train[@]}" --out saving --data text.txt --resume
expect 0 'the' "$multihead" generate saving --prompt the --max-new-tokens 2
rm saving/train_config.json saving/config.json
expect 3 'saving" has no config.json: saving it was interrupted; save it again' "$multihead" info saving

mkdir words && cp run/tokenizer.json words/
expect 3 '"words" has no config.json: it is not a model.s' "${train[@]}" --out run2 --data text.txt --init words
expect 3 '"words" has no config.json: it is not a model.s' "$multihead" info words

# Two runs in one folder.
"$multihead" train lm --data text.txt --out busy --context 16 --steps 100000 --quiet --eval-every 0 >/dev/null 2>&1 &
first=$!
for _ in $(seq 100); do [[ -e busy/metrics.jsonl ]] && break || sleep 0.1; done
expect 1 'busy.*in use by process' "${train[@]}" --out busy --data text.txt --overwrite
kill -TERM "$first"
wait "$first"
[[ $? -eq 143 ]] || fail "SIGTERM should end a run with 143"

# A terminal that closes stops a run, which can be resumed; one whose folder vanishes stops with an error, and makes no
# other in its place.
env --default-signal=HUP "$multihead" train lm --data text.txt --out closing --context 16 --steps 100000 --quiet --eval-every 0 >/dev/null 2>&1 &
first=$!
for _ in $(seq 100); do [[ -e closing/metrics.jsonl ]] && break || sleep 0.1; done
kill -HUP "$first"
wait "$first"
[[ $? -eq 129 ]] || fail "SIGHUP should end a run with 129"
compgen -G 'closing/checkpoint-*' >/dev/null || fail "SIGHUP should leave a checkpoint"
"$multihead" train lm --data text.txt --out vanishing --context 16 --steps 100000 --quiet --eval-every 0 --save-every 15 >/dev/null 2>vanishing.txt &
first=$!
for _ in $(seq 100); do [[ -e vanishing/metrics.jsonl ]] && break || sleep 0.1; done
mv vanishing vanished
wait "$first"
[[ $? -eq 1 ]] || fail "a run without its folder should end with 1"
grep -q 'its folder "vanishing" has vanished' vanishing.txt || fail "a run without its folder: $(cat vanishing.txt)"
[[ ! -e vanishing ]] || fail "a run made its folder anew: $(ls vanishing)"

# A full disk and a read-only folder, in a mount namespace of our own.
isolated() { unshare -rm bash -c "$1" bash "$multihead" "${small[@]}"; }
if isolated 'mkdir m && mount -t tmpfs -o size=40k none m' 2>/dev/null; then
  rm -rf m && mkdir m
  full() {  # it warns of the checkpoints it cannot write and goes on to the model
    isolated 'mount -t tmpfs -o size='"$1"' none m
      "$1" train lm "${@:2}" --data text.txt --out m/run 2>log.txt
      code=$?
      grep -q "^warning: the checkpoint of step 3 was not saved" log.txt || echo "no warning" >&2
      tail -n 1 log.txt >&2
      exit $code'
  }
  expect 1 'm/run.*No space left on device' full 40k
  expect 0 'model in m/run' full 200k
  readonly_folder() { isolated 'mount -t tmpfs -o ro none m; "$1" train lm "${@:2}" --data text.txt --out m/run'; }
  expect 1 'm/run.*Read-only file system' readonly_folder
else
  echo "skipped: no mount namespaces here, so no full disk and no read-only folder" >&2
fi

# A folder without the right to write; root has it anyway, so root becomes nobody.
user=()
if [[ $(id -u) -eq 0 ]]; then user=(setpriv --reuid=65534 --regid=65534 --clear-groups); fi
chmod 755 . && chmod -R a+rX run && mkdir -m 555 locked && cp -r run model && chmod -R a-w model
if "${user[@]}" test -x "$multihead" 2>/dev/null; then
  expect 1 'locked/run.*Permission denied' "${user[@]}" "${train[@]}" --out locked/run --data text.txt
  expect 1 'model/.lock.*Permission denied' "${user[@]}" "${train[@]}" --out model --data text.txt --resume
  expect 0 'the' "${user[@]}" "$multihead" generate model --prompt the --max-new-tokens 2  # reading is enough
else
  echo "skipped: no other user can run the program, so no folder without permission" >&2
fi
chmod -R u+w model

# Nobody reads what we say: a closed pipe ends a command as SIGPIPE would and without a word, a run goes on to
# its end, a full disk is an error.
quietly() {  # quietly CODE COMMAND...: its stdout is a pipe that is closed before it writes
  local code=$1
  shift
  { sleep 0.2; "$@" 2>err.txt; echo $? >code.txt; } | true
  [[ $(cat code.txt) -eq $code ]] || fail "a closed pipe ended with $(cat code.txt), expected $code: $*"
  [[ ! -s err.txt ]] || fail "a closed pipe made a message: $* -- $(cat err.txt)"
}
quietly 141 "$multihead" --help
quietly 141 "$multihead" generate run --prompt the --max-new-tokens 9223372036854775807
quietly 141 "${fresh[@]}" --data text.txt --overwrite
expect 0 'perplexity' "$multihead" eval run --data text.txt
refused() {  # refused REGEX: stdout took nothing
  grep -qE "^multihead: stdout cannot be written: $1" err.txt || fail "no word about stdout: $(cat err.txt)"
}
"$multihead" info run >/dev/full 2>err.txt && fail "a full stdout should be an error"
refused 'No space left on device'
"$multihead" info run 1</dev/null 2>err.txt && fail "an stdout open for reading only should be an error"
refused 'Bad file descriptor'
"$multihead" nonsense >/dev/null 2>/dev/full
[[ $? -eq 2 ]] || fail "a full stderr changed the exit code"
"${fresh[@]}" --data text.txt --overwrite >&- 2>err.txt
[[ $? -eq 1 ]] || fail "a closed stdout should be an error"
if grep -rlI 'model in run' run >&2; then fail "what was meant for a closed stdout is in a file"; fi

finish
