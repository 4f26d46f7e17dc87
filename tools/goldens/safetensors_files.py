#!/usr/bin/env python3
"""Small files of the reference safetensors implementation.

    safetensors_files.py make [FOLDER]    writes the files that the tests of multihead/io read
    safetensors_files.py check FILE       loads a file of ours and compares it with what `make` would put there

Needs the packages torch and safetensors.
"""
import json
import pathlib
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "safetensors"
FLOATS = [0.0, -0.0, 1.0, -2.5, 3.140625, 65504.0]


def all_dtypes():
    floats = torch.tensor(FLOATS, dtype=torch.float64).reshape(2, 3)
    return {
        "f32": floats.float(),
        "f64": floats / 3,
        "f16": floats.half(),
        "bf16": floats.bfloat16(),
        "i64": torch.tensor([-(2**63), 2**63 - 1, 0, 7]).reshape(4, 1),
        "i32": torch.tensor([-(2**31), 2**31 - 1, 5], dtype=torch.int32),
        "bool": torch.tensor([True, False, True, True, False]),
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(3, 0, 2),
        "layer.0.größe": torch.arange(7, dtype=torch.float32),
    }


def foreign_dtypes():
    return {
        "u8": torch.arange(5, dtype=torch.uint8),
        "i16": torch.arange(3, dtype=torch.int16),
        "f8": torch.zeros(3).to(torch.float8_e4m3fn),
        "ours": torch.arange(2, dtype=torch.float32),
    }


def make(folder):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(all_dtypes(), folder / "all_dtypes.safetensors", metadata={"format": "pt"})
    save_file(foreign_dtypes(), folder / "foreign_dtypes.safetensors")
    save_file({}, folder / "empty.safetensors")
    sharded = folder / "sharded"
    sharded.mkdir(exist_ok=True)
    shards = [{"a": torch.arange(6.0).reshape(2, 3), "c": torch.arange(3)}, {"b": torch.ones(5)}]
    weight_map, total = {}, 0
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(tensors, sharded / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
        total += sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def check(path):
    expected, got = all_dtypes(), load_file(path)
    assert expected.keys() == got.keys(), sorted(got)
    for name, tensor in expected.items():
        assert tensor.dtype == got[name].dtype and tensor.shape == got[name].shape, name
        assert torch.equal(tensor, got[name]), name
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}, file.metadata()
    print("equal")


if __name__ == "__main__":
    command, *arguments = sys.argv[1:] or ["make"]
    if command == "make":
        make(pathlib.Path(arguments[0]) if arguments else FOLDER)
    else:
        check(arguments[0])
