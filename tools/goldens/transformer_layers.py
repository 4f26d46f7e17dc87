"""Outputs and gradients of torch.nn.TransformerEncoderLayer, TransformerDecoderLayer and Transformer in f64:
tests/data/transformer_layers.safetensors.

    python3 tools/goldens/transformer_layers.py

Weights and inputs are a formula, so that only results are stored. Needs PyPI torch, safetensors.
"""
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "transformer_layers.safetensors"
EMBED, HEADS, HIDDEN = 4, 2, 7
BATCH, TARGET, SOURCE = 2, 4, 5
LENGTHS = torch.tensor([5, 3])  # of the source


def wave(shape, k, scale=0.4):
    n = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (scale * torch.sin(1.3 * n + 0.7 * k)).reshape(shape)


def fill(module):
    for k, (name, parameter) in enumerate(sorted(module.named_parameters())):
        is_norm = "norm" in name and name.endswith("weight")
        parameter.data = wave(parameter.shape, k) + (1 if is_norm else 0)


def record(tensors, case, module, output, inputs):
    (output * wave(output.shape, 99, 1)).sum().backward()
    tensors[f"{case}/output"] = output.detach().contiguous()
    for name, x in inputs.items():
        tensors[f"{case}/grad/{name}"] = x.grad
    for name, parameter in module.named_parameters():
        tensors[f"{case}/grad/{name}"] = parameter.grad


def inputs_of():
    return {"source": wave((BATCH, SOURCE, EMBED), 50, 1).requires_grad_(),
            "target": wave((BATCH, TARGET, EMBED), 60, 1).requires_grad_()}


def main():
    torch.set_default_dtype(torch.float64)
    tensors = {}
    padding = torch.arange(SOURCE)[None] >= LENGTHS[:, None]
    causal = torch.triu(torch.ones(TARGET, TARGET, dtype=torch.bool), 1)
    for norm_first in (False, True):
        for activation in ("relu", "gelu"):
            options = dict(d_model=EMBED, nhead=HEADS, dim_feedforward=HIDDEN, dropout=0.0, activation=activation,
                           batch_first=True, norm_first=norm_first)
            kind = f"{'pre' if norm_first else 'post'}_{activation}"
            for masked in (False, True):
                case = f"{kind}_{'masked' if masked else 'open'}"
                layer, x = nn.TransformerEncoderLayer(**options), inputs_of()
                fill(layer)
                y = layer(x["source"], src_key_padding_mask=padding if masked else None)
                record(tensors, f"encoder/{case}", layer, y, {"source": x["source"]})
                layer, x = nn.TransformerDecoderLayer(**options), inputs_of()
                fill(layer)
                y = layer(x["target"], x["source"], tgt_mask=causal if masked else None,
                          memory_key_padding_mask=padding if masked else None)
                record(tensors, f"decoder/{case}", layer, y, x)
            if (activation == "gelu") == norm_first:
                model, x = nn.Transformer(num_encoder_layers=1, num_decoder_layers=2, **options), inputs_of()
                fill(model)
                y = model(x["source"], x["target"], tgt_mask=causal, src_key_padding_mask=padding,
                          memory_key_padding_mask=padding)
                record(tensors, f"transformer/{kind}_masked", model, y, x)
    save_file(tensors, OUT)
    OUT.chmod(0o644)
    print(f"{OUT}: {len(tensors)} tensors, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
