#!/usr/bin/env bash
# No number flag of any verb takes what is no number, too large a one or, but for one flag, a negative one.
#   tests/cli/numbers.sh PATH/TO/multihead
encoders=$(cd "$(dirname "${BASH_SOURCE[0]}")/../data/encoders" && pwd)
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# What encoders are fine-tuned from.
cp -r "$encoders/bert" bert
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' >bert/vocab.txt

verbs() { "$multihead" --help | sed -nE 's/^  ([a-z0-9]+( [a-z0-9]+)?)  .*/\1/p'; }
number_flags() { "$multihead" "$@" --help | sed -nE 's/^  (--[a-z0-9-]+) [NX]  .*/\1/p'; }

while read -r -a verb; do
  # What the verb wants besides; none of it exists, for numbers are refused before anything is opened.
  case ${verb[*]} in
    "train classifier" | "train tagger" | "train embedder" | "train reranker") more=(--init bert --data none --out o) ;;
    train*) more=(--data none --out o) ;;
    bench*) more=() ;;
    *) more=(none --out o) && [[ ${verb[*]} == "tokenizer train" ]] || more=(none) ;;
  esac
  for flag in $(number_flags "${verb[@]}"); do
    for value in nan -inf 1e400 99999999999999999999e999 '' 1x; do
      expect 2 "^multihead: $flag (must be|must not be empty|is out of range)" "$multihead" "${verb[@]}" "${more[@]}" "$flag" "$value"
    done
    if [[ $flag != --length-penalty ]]; then  # negative: prefers long ones
      expect 2 'got -1$' "$multihead" "${verb[@]}" "${more[@]}" "$flag" -1
    fi
  done
done < <(verbs) >log.txt
refusals=$(wc -l <log.txt)
[[ $refusals -gt 900 ]] || fail "only $refusals refusals: are all flags listed by --help?"
[[ ! -e o ]] || fail "a refused command left a folder behind"
finish
