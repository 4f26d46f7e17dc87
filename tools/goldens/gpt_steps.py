"""Ten AdamW steps of a small GPT in PyTorch: losses, gradient norms and some gradients of each step.

    python3 tools/goldens/gpt_steps.py multihead/train/testdata/gpt_steps.json

Weights and tokens come from a linear congruential generator that the test repeats, so none are stored.
"""
import json
import sys

import torch
import torch.nn.functional as F

VOCAB, CONTEXT, LAYERS, HEADS, WIDTH, BATCH, STEPS = 23, 13, 2, 3, 24, 5, 10


class Lcg:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return self.state >> 40  # 24 bits

    def uniform(self):  # exact in f32: [-0.5, 0.5)
        return self.next() / 2**24 - 0.5


def shapes():
    yield "token_embedding.weight", (VOCAB, WIDTH)
    yield "position_embedding.weight", (CONTEXT, WIDTH)
    for i in range(LAYERS):
        p = f"layers.{i}."
        yield p + "self_attn.in_proj_weight", (3 * WIDTH, WIDTH)
        yield p + "self_attn.in_proj_bias", (3 * WIDTH,)
        yield p + "self_attn.out_proj.weight", (WIDTH, WIDTH)
        yield p + "self_attn.out_proj.bias", (WIDTH,)
        yield p + "linear1.weight", (4 * WIDTH, WIDTH)
        yield p + "linear1.bias", (4 * WIDTH,)
        yield p + "linear2.weight", (WIDTH, 4 * WIDTH)
        yield p + "linear2.bias", (WIDTH,)
        for n in ("norm1", "norm2"):
            yield p + n + ".weight", (WIDTH,)
            yield p + n + ".bias", (WIDTH,)
    yield "final_norm.weight", (WIDTH,)
    yield "final_norm.bias", (WIDTH,)


def weights(dtype):
    rng, out = Lcg(7), {}
    for name, shape in shapes():
        count = torch.Size(shape).numel()
        values = torch.tensor([rng.uniform() for _ in range(count)], dtype=torch.float64).view(shape) * 0.5
        if "norm" in name and name.endswith("weight"):
            values = values + 1
        out[name] = values.to(dtype).requires_grad_()
    return out


def loss_of(w, tokens, targets):
    x = w["token_embedding.weight"][tokens] + w["position_embedding.weight"][: tokens.shape[1]]
    norm = lambda x, n: F.layer_norm(x, (WIDTH,), w[n + ".weight"], w[n + ".bias"], 1e-5)
    for i in range(LAYERS):
        p = f"layers.{i}."
        h = F.linear(norm(x, p + "norm1"), w[p + "self_attn.in_proj_weight"], w[p + "self_attn.in_proj_bias"])
        q, k, v = (t.view(*t.shape[:2], HEADS, -1).transpose(1, 2) for t in h.chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.linear(a, w[p + "self_attn.out_proj.weight"], w[p + "self_attn.out_proj.bias"])
        h = F.linear(norm(x, p + "norm2"), w[p + "linear1.weight"], w[p + "linear1.bias"])
        x = x + F.linear(F.gelu(h, approximate="tanh"), w[p + "linear2.weight"], w[p + "linear2.bias"])
    logits = F.linear(norm(x, "final_norm"), w["token_embedding.weight"])
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def run(dtype):
    w, rng, steps = weights(dtype), Lcg(11), []
    optimizer = torch.optim.AdamW(w.values(), 1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    for _ in range(STEPS):
        rows = [[rng.next() % VOCAB for _ in range(CONTEXT + 1)] for _ in range(BATCH)]
        tokens = torch.tensor(rows)
        loss = loss_of(w, tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        gradients = {n: t.grad.flatten()[:: max(1, t.numel() // 5)].tolist() for n, t in w.items()}
        norms = {n: t.grad.norm().item() for n, t in w.items()}
        total = torch.nn.utils.clip_grad_norm_(w.values(), 1.0).item()
        optimizer.step()
        steps.append({"loss": loss.item(), "grad_norm": total, "norms": norms, "gradients": gradients})
    return steps


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = {"torch": torch.__version__, "f64": run(torch.float64), "f32": run(torch.float32)}
    with open(sys.argv[1], "w") as f:
        json.dump(result, f, indent=0)
        f.write("\n")
