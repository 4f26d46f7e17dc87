#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: corpus/json and corpus/safetensors beside this script."""
import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"

JSON = {
    "config": '{"hidden_size": 128, "eps": 1e-05, "tie": true, "activation": "gelu_new", "rope": null}',
    "nested": "[[[[[[{}]]]]]]",
    "deep": "[" * 70,
    "escapes": '"\\u00e9\\n\\ud83d\\ude00\\u0000\\/\\\\"',
    "lone_surrogate": '"\\ud800"',
    "numbers": "[0, -0, 1.5, 1e300, 1e-400, 9223372036854775807, 18446744073709551616, -1E+2]",
    "duplicate": '{"a": 1, "a": 2}',
    "many": json.dumps({f"key{i}": i for i in range(20)}),
    "white": " \t\r\n{ } ",
    "words": "[true, false, null, NaN, Infinity]",
    "comment": "[1 /* no */]",
    "mark": "\ufeff{}",
    "tokenizer": '{"model": {"type": "BPE", "vocab": {"Ġthe": 0}, "merges": [["Ġ", "t"]]}}',
}


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors(header, data=b""):
    text = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw + data


SAFETENSORS = {
    "nothing": b"",
    "empty": safetensors({}),
    "scalar": safetensors({"t": tensor("F32", [], 0, 4)}, b"\0\0\x80\x3f"),
    "two": safetensors({"__metadata__": {"format": "pt"}, "a": tensor("I64", [2], 0, 16),
                        "b": tensor("BF16", [1, 3], 16, 22)}, bytes(22)),
    "bools": safetensors({"t": tensor("BOOL", [3], 0, 3)}, b"\0\1\2"),
    "dims": safetensors({"t": tensor("F16", [0, 5], 0, 0), "u": tensor("F64", [1] * 9, 0, 8)}, bytes(8)),
    "foreign": safetensors({"t": tensor("F8_E4M3", [3], 0, 3), "u": tensor("Q9", [1], 3, 4)}, bytes(4)),
    "gap": safetensors({"a": tensor("F32", [1], 0, 4), "b": tensor("F32", [1], 5, 9)}, bytes(9)),
    "overlap": safetensors({"a": tensor("F32", [1], 0, 4), "b": tensor("F32", [1], 3, 7)}, bytes(7)),
    "backwards": safetensors({"a": tensor("F32", [1], 4, 0)}, bytes(4)),
    "overflow": safetensors({"a": tensor("F32", [2**32, 2**32], 0, 0)}),
    "trailing": safetensors({"a": tensor("F32", [1], 0, 4)}, bytes(5)),
    "missing": safetensors({"a": tensor("F32", [2], 0, 8)}, bytes(5)),
    "duplicate": safetensors('{"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
                             '"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'),
    "control": safetensors('{"a\\u0000":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'),
    "long": struct.pack("<Q", 2**63) + b"{}",
    "spaces": safetensors("{}      "),
}

for name, text in JSON.items():
    path = CORPUS / "json" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
for name, raw in SAFETENSORS.items():
    path = CORPUS / "safetensors" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
