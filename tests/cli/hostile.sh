#!/usr/bin/env bash
# Files and surroundings that mean no good: names for a terminal, weights that are no numbers, limits, odd paths.
#   tests/cli/hostile.sh PATH/TO/multihead
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_text >text.txt
train=("$multihead" train lm "${small[@]}")
expect 0 'model in run' "${train[@]}" --data text.txt --out run

# What a terminal would obey stands in a config, in names of tensors and in those of files.
harmless() {  # harmless COMMAND...: nothing but printable text and line breaks, and no line of its own making
  "$@" >out.txt 2>&1 </dev/null
  if LC_ALL=C grep -qP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]' out.txt; then
    fail "raw control characters: $*"
  fi
  iconv -f utf-8 -t utf-8 out.txt >/dev/null 2>&1 || fail "no UTF-8: $*"
  if grep -q '^forged' out.txt; then fail "a forged line: $*"; fi
}
name=$'\e]0;title\a\e[31mred \xc2\x9b2J \xe2\x80\xae \xff \x7f\nforged line'
cp -r run names && python3 - names "$name" <<'END'
import json, os, struct, sys
folder, bad = sys.argv[1], os.fsencode(sys.argv[2]).decode("utf-8", "replace")
path = folder + "/config.json"
config = json.load(open(path))
config[bad] = bad
json.dump(config, open(path, "w"))
path = folder + "/model.safetensors"
data = open(path, "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + size])
next(v for k, v in header.items() if k != "__metadata__")["dtype"] = "F9\u202e\x1b[2J"
text = json.dumps(header).encode()
open(path, "wb").write(struct.pack("<Q", len(text)) + text + data[8 + size:])
END
harmless "$multihead" info names
cp run/model.safetensors names/
harmless "$multihead" info names
harmless "$multihead" info names --json
harmless "$multihead" "$name"
harmless "$multihead" info "$name"
harmless "$multihead" generate "$name" --prompt x
harmless "$multihead" generate run --prompt x --temperature "$name"
harmless "$multihead" eval run --data "$name"
harmless "$multihead" tokenizer encode "$name" x
harmless "${train[@]}" "--$name"
harmless "${train[@]}" --data "$name" --out never
mkdir "$name"
harmless "$multihead" info "$name"
harmless "$multihead" tokenizer train text.txt --out "$name/tok" --vocab-size 300
harmless "${train[@]}" --data text.txt --out "$name/run"

# Weights that are no numbers: every verb says which tensor of which file, and none of them exits with 0.
cp -r run nan && python3 - nan/model.safetensors <<'END'
import json, struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
size = struct.unpack("<Q", data[:8])[0]
begin = 8 + size + json.loads(data[8:8 + size])["model.layers.0.input_layernorm.weight"]["data_offsets"][0]
data[begin:begin + 4] = struct.pack("<f", float("nan"))
open(sys.argv[1], "wb").write(data)
END
holds='nan/model.safetensors: tensor "model.layers.0.input_layernorm.weight" holds NaN or Inf'
expect 3 "$holds" "$multihead" eval nan --data text.txt
expect 3 "$holds" "$multihead" eval nan --data text.txt --json
expect 3 "$holds" "$multihead" generate nan --prompt the --json
expect 3 "$holds" "$multihead" attend nan --text the --out page.html
"$multihead" check nan >out.txt 2>err.txt && fail 'check passes weights that are NaN'
grep -q "$holds" err.txt || fail "check does not name the tensor: $(cat err.txt)"

# A perplexity that no number holds is null in JSON and an empty place in a table; training goes on.
expect 0 'model in spike' "$multihead" train lm --data text.txt --out spike --layers 1 --heads 2 --width 16 --context 16 \
  --ff 32 --batch 2 --vocab-size 300 --steps 60 --eval-every 5 --warmup 0 --schedule constant --optimizer adamw --lr 20 \
  --label-smoothing 0.99 --quiet
grep -q '"eval/perplexity":null' spike/metrics.jsonl || fail 'the loss did not leave the range of numbers'
python3 -c '
import json
for line in open("spike/metrics.jsonl"): json.loads(line)' || fail 'metrics.jsonl is no JSON'

# Files that are not there are bad input, whichever flag names them.
given=("$multihead" train lm --layers 1 --heads 2 --width 16 --context 16 --batch 2 --steps 6 --quiet)
expect 3 'nowhere.*No such file' "${given[@]}" --data text.txt --out never --tokenizer-file nowhere
printf 'ab\tAB\nba\tBA\n' >pairs.tsv
expect 3 'nowhere.*No such file' "$multihead" train seq2seq --data pairs.tsv --valid nowhere --out never
expect 3 'nowhere.*No such file' "$multihead" train seq2seq --data pairs.tsv --tokenizer-file nowhere --out never
[[ ! -e never ]] || fail 'a refused run left a folder'

# Paths are bytes.
odd=$'caf\xe9' && mkdir "$odd" && cp text.txt "$odd/text.txt"
expect 0 'model in' "${train[@]}" --data "$odd/text.txt" --out "$odd/run"
expect 0 '"folder"' "${train[@]}" --data "$odd/text.txt" --out "$odd/run" --overwrite --json
expect 0 'model in' "${train[@]}" --out "$odd/run" --resume
expect 0 'perplexity' "$multihead" eval "$odd/run" --data "$odd/text.txt"
expect 0 'the' "$multihead" generate "$odd/run" --prompt the --max-new-tokens 2
expect 0 'tokens in' "$multihead" tokenizer encode "$odd/run" --data "$odd/text.txt" --out "$odd/text.tokens"
expect 0 'model in' "${given[@]}" --data "$odd/text.tokens" --tokenizer-file "$odd/run" --out "$odd/again"

# Threads that cannot be made are done without, and that is said once.
short() {  # short COMMAND...: does its work, or says that there is no memory; never a signal
  "$@" >out.txt 2>err.txt </dev/null
  local code=$?
  if [[ $code -ge 126 ]]; then fail "ended with $code: $* -- $(head -c 300 err.txt)"; fi
  return "$code"
}
generate=("$multihead" generate run --prompt the --max-new-tokens 3 --temperature 0 --threads 8)
"${generate[@]}" >whole.txt
# shellcheck disable=SC2030,SC2031  # a limit holds for the rest of its shell
for kilobytes in $(seq 20000 9000 150000); do
  if ! (
    failures=0
    ulimit -v "$kilobytes"
    if short "${generate[@]}" && ! cmp -s out.txt whole.txt; then fail "other text under $kilobytes kB"; fi
    if grep -q -e '--batch' err.txt; then fail "advice that generate cannot follow: $(cat err.txt)"; fi
    [[ $failures -eq 0 ]]
  ); then failures=$((failures + 1)); fi
done
user=()
if [[ $(id -u) -eq 0 ]]; then user=(setpriv --reuid=54321 --regid=54321 --clear-groups); fi
chmod 755 . && chmod -R a+rX run
if [[ ${#user[@]} -gt 0 ]] && "${user[@]}" test -x "$multihead" 2>/dev/null; then
  for limit in 1 2 3 5; do
    short "${user[@]}" prlimit --nproc=$limit "${generate[@]}" || fail "a limit of $limit processes: $(cat err.txt)"
    cmp out.txt whole.txt || fail "other text under a limit of $limit processes"
    grep -q "^note: only $limit of 8 threads could be started" err.txt || fail "no word of the limit: $(cat err.txt)"
    [[ $(wc -l <err.txt) -eq 1 ]] || fail "said more than once: $(cat err.txt)"
  done
else
  echo "skipped: no user without processes here" >&2
fi

finish
