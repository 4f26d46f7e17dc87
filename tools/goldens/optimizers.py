"""Twelve steps of PyTorch's optimisers on fixed gradients, in f64.

    python3 tools/goldens/optimizers.py multihead/optim/testdata/optimizers.json
"""
import json
import sys

import torch

CASES = {
    "sgd": (torch.optim.SGD, dict(lr=0.05)),
    "sgd_momentum": (torch.optim.SGD, dict(lr=0.05, momentum=0.9, weight_decay=0.02)),
    "sgd_nesterov": (torch.optim.SGD, dict(lr=0.05, momentum=0.8, nesterov=True)),
    "adam": (torch.optim.Adam, dict(lr=0.03)),
    "adam_l2": (torch.optim.Adam, dict(lr=0.03, betas=(0.8, 0.95), eps=1e-5, weight_decay=0.1)),
    "adamw": (torch.optim.AdamW, dict(lr=0.03, betas=(0.9, 0.99), weight_decay=0.1)),
}
COUNT, STEPS, CLIP = 7, 12, 0.7


def gradient(step):
    return torch.tensor([((step * 13 + i * 7) % 11 - 5) / 8 for i in range(COUNT)], dtype=torch.float64)


def trajectory(make, options, clip):
    w = torch.tensor([(i - 3) / 4 for i in range(COUNT)], dtype=torch.float64, requires_grad=True)
    optimizer = make([w], **options)
    rows = []
    for step in range(STEPS):
        w.grad = gradient(step)
        norm = torch.nn.utils.clip_grad_norm_([w], CLIP).item() if clip else None
        optimizer.step()
        rows.append({"weights": w.detach().tolist(), "norm": norm})
    return rows


if __name__ == "__main__":
    result = {"torch": torch.__version__}
    for name, (make, options) in CASES.items():
        result[name] = trajectory(make, options, False)
    result["adamw_clipped"] = trajectory(*CASES["adamw"], True)
    with open(sys.argv[1], "w") as f:
        json.dump(result, f, indent=0)
        f.write("\n")
