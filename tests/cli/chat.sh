#!/usr/bin/env bash
# A conversation with a tiny model: its template, its turns, a full context.
#   tests/cli/chat.sh PATH/TO/multihead
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_text >text.txt
expect 0 'model in run' "$multihead" train lm "${small[@]}" --data text.txt --out run
chat=("$multihead" generate run --chat --temperature 0)

expect 3 'run: has no chat template' "${chat[@]}"
expect 2 'system requires --chat' "$multihead" generate run --prompt the --system x
expect 2 'chat cannot be combined with --json' "${chat[@]}" --json
expect 2 'chat cannot be combined with --json' "${chat[@]}" --samples 2
expect 2 'chat cannot be combined with --json' "${chat[@]}" --special

printf '%s' '{% for m in messages %}{{ m.content }} {% endfor %}' >run/chat_template.jinja
expect 0 'for m in messages' "$multihead" info run
expect 0 '"chat_template": ' "$multihead" info run --json
# The template of one message is the message and a space: the answer continues it.
expect 0 '.' "${chat[@]}" --prompt the --max-new-tokens 5
cp out.txt answer.txt
[[ "the $(head -c 5 answer.txt)" == "$("$multihead" generate run --prompt 'the ' --temperature 0 --max-new-tokens 5 | head -c 9)" ]] ||
  fail "the answer is not the continuation of the prompt: $(cat answer.txt)"

# An answer ends before the first of several stop strings, none of which is shown.
answer=$(cat answer.txt)
stop=${answer:2:2}
expect 0 '' "${chat[@]}" --prompt the --max-new-tokens 5 --stop 'never seen' --stop "$stop"
[[ "$(cat out.txt)" == "${answer%%"$stop"*}" ]] || fail "--stop '$stop': $(cat out.txt) of $answer"
whole=$("$multihead" generate run --prompt 'the ' --temperature 0 --max-new-tokens 12)
expect 0 '' "$multihead" generate run --prompt 'the ' --temperature 0 --max-new-tokens 12 --stop "${whole:8:2}" --stop "${whole:6:2}"
said=${whole#the } first=${said%%"${whole:8:2}"*}
[[ "$(cat out.txt)" == "the ${first%%"${whole:6:2}"*}" ]] || fail "--stop: $(cat out.txt) of $whole"
expect 0 '"tokens": 9' "$multihead" generate run --prompt the --max-new-tokens 9 --min-new-tokens 9 --no-repeat-ngram 4 --json
expect 0 '' "$multihead" generate run --prompt the --max-new-tokens 12 --temperature 0 --suppress 'a e'
[[ "$(tail -c +4 out.txt)" != *[ae]* ]] || fail "--suppress: $(cat out.txt)"
expect 2 'min_new_tokens must be in' "$multihead" generate run --prompt the --max-new-tokens 3 --min-new-tokens 4

# Lines are turns. A second turn that follows the first reads on; the same as the whole conversation read at once.
printf 'a\non\n' | "${chat[@]}" --max-new-tokens 2 >turns.txt 2>err.txt || fail "two turns failed: $(cat err.txt)"
first=$("${chat[@]}" --max-new-tokens 2 --prompt a | head -c 2)
second=$("$multihead" generate run --prompt "a $first on " --temperature 0 --max-new-tokens 2)
[[ "$(cat turns.txt)" == "$first"$'\n'"${second: -2}" ]] || fail "turns: $(cat turns.txt), expected $first and ${second: -2}"
[[ ! -s err.txt ]] || fail "a conversation that fits says: $(cat err.txt)"

# A context of 16: an answer ends at it, old turns go, and a message that cannot fit is left out.
printf 'a\ncat\nthe cat sat on a mat and\non\n' | "${chat[@]}" --max-new-tokens 9 >out.txt 2>err.txt ||
  fail "a full context failed: $(cat err.txt)"
[[ $(wc -l <out.txt) -eq 3 ]] || fail "three answers expected: $(cat out.txt)"
grep -q 'dropping the oldest turns' err.txt || fail "nothing said about forgotten turns: $(cat err.txt)"
grep -q 'the message is skipped: with it the prompt has 25 tokens, the context 16' err.txt || fail "nothing said about the message: $(cat err.txt)"
expect 2 'the message is too long: with it the prompt has 25 tokens, the context 16' "${chat[@]}" --prompt 'the cat sat on a mat and'
"${chat[@]}" --prompt a >out.txt 2>err.txt || fail "an endless answer failed"
grep -q 'the context of 16 tokens is full: the answer ends here' err.txt || fail "nothing said about the end: $(cat err.txt)"

# An answer that is cut off within a character is part of the conversation as it was shown.
printf 'the cat\n%.0s' {1..40} >cats.txt
expect 0 'model in bytes' "$multihead" train lm --data cats.txt --out bytes --tokenizer bpe --vocab-size 260 --steps 1 --layers 1 --width 16 --heads 2 --quiet
cp run/chat_template.jinja bytes/
printf 'a\nb\n' | "$multihead" generate bytes --chat --regex 'é+' --max-new-tokens 1 >out.txt 2>err.txt ||
  fail "after half a character: $(cat err.txt)"
[[ "$(cat out.txt)" == $'\uFFFD\n\uFFFD' ]] || fail "half a character: $(cat out.txt)"

printf '%s' '{% include "x" %}' >run/chat_template.jinja
expect 3 'chat template, line 1: .*include.* is not supported' "${chat[@]}" --prompt the
printf '%s' '{{ raise_exception("never") }}' >run/chat_template.jinja
expect 2 'chat template: never' "${chat[@]}" --prompt the

finish
