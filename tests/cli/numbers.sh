#!/usr/bin/env bash
# No number flag of any verb takes what is no number, too large a one or, but for one flag, a negative one.
#   tests/cli/numbers.sh PATH/TO/multihead [all]      one of the wrong numbers for each flag, in turns; all: every one
encoders=$(cd "$(dirname "${BASH_SOURCE[0]}")/../data/encoders" && pwd)
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

wrong=(nan -inf 1e400 99999999999999999999e999 '' 1x)
each=1
if [[ ${2:-} == all ]]; then each=${#wrong[@]}; fi

# What encoders are fine-tuned from.
cp -r "$encoders/bert" bert
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' >bert/vocab.txt

verbs() { "$multihead" --help | sed -nE 's/^  ([a-z0-9]+( [a-z0-9]+)?)  .*/\1/p'; }
number_flags() { "$multihead" "$@" --help | sed -nE 's/^  (--[a-z0-9-]+) [NX]  .*/\1/p'; }

turn=0
flags=0
while read -r -a verb; do
  # What the verb wants besides; none of it exists, for numbers are refused before anything is opened.
  case ${verb[*]} in
    "train classifier" | "train tagger" | "train embedder" | "train reranker") more=(--init bert --data none --out o) ;;
    train*) more=(--data none --out o) ;;
    bench*) more=() ;;
    *) more=(none --out o) && [[ ${verb[*]} == "tokenizer train" ]] || more=(none) ;;
  esac
  for flag in $(number_flags "${verb[@]}"); do
    flags=$((flags + 1))
    for ((i = 0; i < each; ++i, ++turn)); do
      expect 2 "^multihead: $flag (must be|must not be empty|is out of range)" \
        "$multihead" "${verb[@]}" "${more[@]}" "$flag" "${wrong[turn % ${#wrong[@]}]}"
    done
    if [[ $flag != --length-penalty ]]; then  # negative: prefers long ones
      expect 2 'got -1$' "$multihead" "${verb[@]}" "${more[@]}" "$flag" -1
    fi
  done
done < <(verbs) >log.txt
[[ $flags -gt 200 ]] || fail "only $flags flags take numbers: are all listed by --help?"
[[ ! -e o ]] || fail "a refused command left a folder behind"
finish
