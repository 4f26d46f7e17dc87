#!/usr/bin/env bash
# bench attention: what it prints, its JSON, its refusals, and that Ctrl-C ends it.
#   tests/cli/bench_attention.sh PATH/TO/multihead
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bench=("$multihead" bench attention --quiet)
tiny=(--shape 1x2x37x8:causal 2x4/2x1/67x16 --seconds 0.02)

# json FILE EXPRESSION: a condition on `r`, the report.
json() {
  python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); s = r["shapes"]; assert eval(sys.argv[2])' "$@" ||
    fail "$1: not $2 -- $(head -c 1500 "$1")"
}

# A word that changes nothing is said to.
"$multihead" bench gemm --m 8 --n 8 --k 8 --seconds 0.01 --float32-matmul-precision high >out.txt 2>err.txt ||
  fail "bench gemm --float32-matmul-precision high"
if ! grep -q "no tiles" out.txt; then [ ! -s err.txt ]; else grep -q 'high has no effect' err.txt; fi ||
  fail "what --float32-matmul-precision does here: $(cat err.txt)"

# Results for people and for programs.
expect 0 '1x2x37x8:causal +forward +[0-9.]+ ms +[0-9.]+ GFLOP/s +0\.[0-9]+ of .*error [0-9]e-0[6-8]' "${bench[@]}" "${tiny[@]}"
expect 0 'peak [0-9]+ GFLOP/s in f32.*memory: read [0-9.]+ GB/s, copy [0-9.]+ GB/s' "${bench[@]}" "${tiny[@]}"
expect 0 '"shape": "2x4x1/67x16|2x4/2x1/67x16"' "${bench[@]}" "${tiny[@]}" --backward --json --threads 2
cp out.txt report.json
if command -v python3 >/dev/null; then
  json report.json '[(x["shape"], x["direction"]) for x in s] == [(n, d) for d in ("forward", "backward") for n in ("1x2x37x8:causal", "2x4/2x1/67x16")]'
  json report.json 'r["threads"] == 2 and r["cpu"] and r["isa"] in ("baseline", "avx2", "avx512") and len(r["date"]) == 10'
  json report.json 'all(r["calibration"][k] > 0 for k in ("fma_gflops", "read_gbps", "copy_gbps"))'
  json report.json 'r["calibration"]["bf16_unit"] in ("", "dots", "tiles") and (r["calibration"]["bf16_gflops"] > 0) == (r["calibration"]["bf16_unit"] != "")'
  json report.json 'all(x[k] > 0 for x in s for k in ("seconds", "seconds_min", "flops", "bytes", "gflops", "gbps", "read_gbps", "peak_gflops", "share_of_peak", "share_of_read_rate"))'
  json report.json 'all(0 <= x["error"] < 1e-5 and x["rounds"] >= 3 for x in s)'
  json report.json 's[0]["flops"] == 4 * 2 * 8 * 37 * 38 / 2 and s[2]["flops"] == 2.5 * s[0]["flops"]'
  json report.json 's[1]["bytes"] == 4 * 16 * 2 * (2 * 4 + 2 * 2 * 67) and s[1]["dtype"] == "f32"'
fi

# Every option computes what the f64 reference computes: a wrong result is exit code 1.
for options in window=9 lengths causal:lengths:backward bias:training alibi:backward causal:lambda softcap=3 bf16 bthd:causal \
  causal:dropout=0.2:backward bthd:backward cold; do
  expect 0 "5x3x41x12(:[a-z0-9=.:]+)? .*error [0-9]e-" "${bench[@]}" --seconds 0.01 --shape "5x3x41x12:$options"
done
# Every precision of f32 products has an error of its own.
for precision in highest high medium highest_tiles; do
  expect 0 "5x3x41x12:bias .*backward.*error [0-9]e-" "${bench[@]}" --seconds 0.01 --shape 5x3x41x12:causal 5x3x41x12:bias \
    --backward --float32-matmul-precision "$precision"
done
expect 0 '1x1x4200x8 .*backward.*error [0-9]e-' "${bench[@]}" --seconds 0.01 --shape 1x1x4200x8:backward # rows of it
expect 0 '1x32/8x1/16384x128:bf16:cold' "$multihead" bench attention --help

# The instruction set asked for is the one used; one that does not exist is named.
MULTIHEAD_ISA=baseline expect 0 ', baseline, ' "${bench[@]}" "${tiny[@]}"
MULTIHEAD_ISA=sse9 expect 2 "MULTIHEAD_ISA: expected one of baseline, avx2, avx512, got 'sse9'" "${bench[@]}" "${tiny[@]}"

# Refusals, before anything is measured.
expect 2 '"8x1024x64": expected BxHxTxD' "${bench[@]}" --shape 8x1024x64
expect 2 'whole numbers in \[1, 16777216\]' "${bench[@]}" --shape 1x0x4x4
expect 2 'whole numbers' "${bench[@]}" --shape 1x2x99999999999999999999x4
expect 2 'whole numbers' "${bench[@]}" --shape 1x2x-4x4
expect 2 'more than 2\^29 elements' "${bench[@]}" --shape 4096x64x4096x64
expect 2 'multiple of the key heads' "${bench[@]}" --shape 1x8/3x4x4
expect 2 'unknown option "red", expected causal, window=N' "${bench[@]}" --shape 1x2x4x4:red
expect 2 'unknown option "causal=1"' "${bench[@]}" --shape 1x2x4x4:causal=1
expect 2 'dropout must be in \(0, 1\)' "${bench[@]}" --shape 1x2x4x4:dropout=1
expect 2 'softcap must be a number' "${bench[@]}" --shape 1x2x4x4:softcap=nan
expect 2 'softcap must be positive' "${bench[@]}" --shape 1x2x4x4:softcap=-1
expect 2 'as many queries as keys' "${bench[@]}" --shape 2x2x4/8x4:lengths
expect 2 'cold is for the forward pass' "${bench[@]}" --shape 2x2x4/8x4:cold:backward
expect 2 '--seconds must be in' "${bench[@]}" --seconds 0
expect 2 'all, forward, options, decode, backward' "${bench[@]}" --part some
expect 2 'unknown flag "--vs"' "${bench[@]}" --vs torch

# Ctrl-C.
interrupted() {
  set -m # a group of its own, in which the shell does not ignore SIGINT
  "$@" >out.txt 2>err.txt &
  local pid=$!
  set +m
  sleep 1
  kill -INT "$pid"
  wait "$pid"
  local got=$?
  if [[ $got -ne 130 ]]; then fail "Ctrl-C gave $got: $* -- $(head -c 300 err.txt)"; fi
}
interrupted "${bench[@]}" --shape 1x2x256x32 --seconds 100

finish
