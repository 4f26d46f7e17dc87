#!/usr/bin/env bash
# What lies in an --out that is not the run's stays as it is, and a new --out is on the disk in all its parents.
#   tests/cli/folders.sh PATH/TO/multihead
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_text >text.txt
train=("$multihead" train lm "${small[@]}" --data text.txt)
content() { (cd "$1" && find . -type f -exec sha256sum {} + | sort -k 2); }

# As the Trainer of transformers leaves a folder, with things of its user.
mkdir -p out/checkpoint-3 out/backup-2024.tmp out/photos.tmp
echo weights >out/checkpoint-3/model.safetensors
echo '{"global_step": 3}' >out/checkpoint-3/trainer_state.json
for name in config.json model.safetensors tokenizer.json notes.tmp-1-2 backup-2024.tmp/thesis.txt photos.tmp/manifest.json; do
  echo mine >out/$name
done
content out >before.txt
for flag in '' --resume --overwrite; do
  # shellcheck disable=SC2086
  expect 2 'nothing was written to folder "out", because "checkpoint-3" was not written by multihead, "config.json" .*' \
    "${train[@]}" --out out $flag
  content out | cmp -s before.txt - || fail "train $flag changed the folder of somebody else"
done
rm -r out/checkpoint-3 out/config.json out/model.safetensors out/tokenizer.json
content out >before.txt
expect 0 'model in out' "${train[@]}" --out out
expect 0 'model in out' "${train[@]}" --out out --overwrite
(cd out && sha256sum --quiet -c ../before.txt) || fail "train changed what is not its own"

# Links, pipes and devices under a run's names.
for name in metrics.jsonl summary.json model.safetensors .lock; do
  rm -rf run && cp -r out run && rm -f run/$name
  echo precious >precious.txt
  ln -s "$PWD/precious.txt" run/$name
  expect 2 "$name.* is a symbolic link" timeout 60 "${train[@]}" --out run --resume
  ln -sf /dev/zero run/$name
  expect 2 "$name.* is a symbolic link" timeout 60 "${train[@]}" --out run --overwrite
  rm run/$name && mkfifo run/$name
  expect 2 "$name.* is a pipe" timeout 60 "${train[@]}" --out run --resume
  [[ $(cat precious.txt) == precious ]] || fail "$name was written through"
done

# Every parent that is made is on the disk before anything lies in it.
if command -v strace >/dev/null && strace -o trace.txt -e trace=fsync -y true 2>/dev/null; then
  expect 0 'model in new/er/run' strace -f -y -o trace.txt -e trace=fsync "${train[@]}" --out new/er/run
  for parent in "$PWD" "$PWD/new" "$PWD/new/er" "$PWD/new/er/run"; do
    grep -qF "<$parent>)" trace.txt || fail "$parent was not flushed"
  done
else
  echo "skipped: no strace, so nobody saw which folders were flushed" >&2
fi

finish
