"""Inputs, weights and outputs of the founding documents' modules, as PyTorch computes them: examples/data/.

    python3 tools/goldens/founding_documents.py [--notebook FILE]

Every module is restated here in plain tensor algebra, with the documents' own rules (mask polarity, scale,
biases, -1e6 sentinel, layout). With --notebook, the multi-head attention of the notebook itself (its text, with
"In [n]:" lines between the cells) is executed as well and must agree with the restatement.
Needs PyPI torch, safetensors.
"""
import argparse
import math
import pathlib
import re

import torch
from safetensors.torch import save_file

DATA = pathlib.Path(__file__).resolve().parents[2] / "examples" / "data"


def linear(x, w, name):
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def weights(**shapes):
    """Random tensors; a linear layer is (out, in) or (out, in, "bias")."""
    w = {}
    for name, (rows, columns, *bias) in shapes.items():
        name = name.replace("__", ".")
        w[f"{name}.weight"] = torch.randn(rows, columns) / math.sqrt(columns)
        if bias:
            w[f"{name}.bias"] = torch.randn(rows) / math.sqrt(columns)
    return w


def save(name, tensors):
    save_file({k: v.contiguous() for k, v in tensors.items()}, DATA / f"{name}.safetensors")


def labml():
    """[seq, batch, dim]; mask[q, k, batch], nonzero = may attend; softmax over the keys, which are axis 1."""
    torch.manual_seed(1)
    seq_q, seq_k, batch, heads, d_model = 5, 7, 3, 2, 12
    d_k = d_model // heads
    w = weights(query__linear=(d_model, d_model), key__linear=(d_model, d_model),
                value__linear=(d_model, d_model, "bias"), output=(d_model, d_model, "bias"))
    query, key = torch.randn(seq_q, batch, d_model), torch.randn(seq_k, batch, d_model)
    mask = (torch.rand(seq_q, seq_k, batch) < 0.6).float()
    mask[:, 0] = 1
    relative, relative_bias = torch.randn(seq_q + seq_k - 1, heads, d_k), torch.randn(seq_q + seq_k - 1, heads)

    def attend(extra):
        split = lambda x: x.reshape(*x.shape[:-1], heads, d_k)
        q, k, v = (split(linear(x, w, f"{n}.linear")) for x, n in ((query, "query"), (key, "key"), (key, "value")))
        scores = torch.einsum("ibhd,jbhd->ijbh", q, k) + extra(q)
        scores = (scores / math.sqrt(d_k)).masked_fill(mask[..., None] == 0, -math.inf)
        attn = scores.softmax(1)
        return attn, linear(torch.einsum("ijbh,jbhd->ibhd", attn, v).reshape(seq_q, batch, d_model), w, "output")

    def by_distance(q):  # row of the table: key - query + (seq_q - 1)
        row = torch.arange(seq_k)[None, :] - torch.arange(seq_q)[:, None] + seq_q - 1
        return torch.einsum("ibhd,ijhd->ijbh", q, relative[row]) + relative_bias[row][:, :, None, :]

    attn, out = attend(lambda q: torch.zeros(()))
    trained = {"query.linear.weight": w["query.linear.weight"], "query": query, "key": key, "relative": relative,
               "relative_bias": relative_bias}
    for x in trained.values():
        x.requires_grad_()
    _, relative_out = attend(by_distance)
    gradients = torch.autograd.grad(relative_out.square().sum(), list(trained.values()))
    save("labml", {**{k: v.detach() for k, v in w.items()}, **{k: v.detach() for k, v in trained.items()},
                   "mask": mask, "attn": attn.detach(), "out": out.detach(), "relative_out": relative_out.detach(),
                   **{f"grad.{name}": g for name, g in zip(trained, gradients)}})


def blog():
    """Self-attention with scores / sqrt(embed_dim), whatever the number of heads."""
    torch.manual_seed(2)
    batch, length, embed, heads = 2, 7, 24, 4
    w = weights(**{n: (embed, embed, "bias") for n in ("query_proj", "key_proj", "value_proj", "out_proj")})
    x = torch.randn(batch, length, embed)
    split = lambda t: t.reshape(batch, length, heads, embed // heads).transpose(1, 2)
    q, k, v = (split(linear(x, w, f"{n}_proj")) for n in ("query", "key", "value"))
    attn = (q @ k.transpose(-2, -1) / embed ** 0.5).softmax(-1)
    out = linear((attn @ v).transpose(1, 2).reshape(batch, length, embed), w, "out_proj")
    save("blog", {**w, "x": x, "attn": attn, "out": out})


def masked(scores, lens):
    """Scores [B, Tq, Tk] of keys at or past `lens` ([B] or [B, Tq]) replaced by -1e6."""
    lens = lens[:, None].expand(scores.shape[:2]) if lens.dim() == 1 else lens
    return torch.where(torch.arange(scores.shape[-1]) < lens[..., None], scores, torch.tensor(-1e6))


def dot_product(q, k, v, lens):
    attn = masked(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), lens).softmax(-1)
    return attn, attn @ v


def multi_head(w, prefix, heads, q, k, v, lens):
    def split(x):  # [B, T, E] -> [B * heads, T, E / heads]
        return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2).flatten(0, 1)

    q, k, v = split(linear(q, w, prefix + "W_q")), split(linear(k, w, prefix + "W_k")), split(linear(v, w, prefix + "W_v"))
    attn, out = dot_product(q, k, v, lens.repeat_interleave(heads, 0))
    out = out.reshape(-1, heads, *out.shape[1:]).transpose(1, 2).flatten(2)
    return attn.reshape(-1, heads, *attn.shape[1:]), linear(out, w, prefix + "W_o")


def positions(length, dim, start=0):
    angle = torch.arange(start, start + length)[:, None] / torch.pow(10000, torch.arange(0, dim, 2) / dim)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


def norm(w, name, x):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"])


def block_weights(prefix, dim, ffn, attentions, norms):
    w = {}
    for a in attentions:
        w |= weights(**{f"{prefix}{a}.{n}": (dim, dim) for n in ("W_q", "W_k", "W_v", "W_o")})
    w |= weights(**{prefix + "ffn.0": (ffn, dim), prefix + "ffn.2": (dim, ffn)})
    for n in norms:
        w[f"{prefix}{n}.weight"], w[f"{prefix}{n}.bias"] = 1 + 0.1 * torch.randn(dim), 0.1 * torch.randn(dim)
    return w


def feed_forward(w, prefix, x):
    return linear(linear(x, w, prefix + "ffn.0").relu(), w, prefix + "ffn.2")


def lecture():
    torch.manual_seed(3)
    t = {"scores": torch.rand(2, 2, 4), "lens": torch.tensor([2, 3]), "lens_2d": torch.tensor([[1, 4], [0, 2]])}
    t |= {"masked": masked(t["scores"], t["lens"]), "masked_2d": masked(t["scores"], t["lens_2d"])}
    t |= {"dot.q": torch.randn(2, 4, 2), "dot.k": torch.randn(2, 6, 2), "dot.v": torch.randn(2, 6, 4)}
    t["dot.weights"], t["dot.out"] = dot_product(t["dot.q"], t["dot.k"], t["dot.v"], torch.tensor([2, 4]))

    w = weights(mha__W_q=(4, 4), mha__W_k=(4, 4), mha__W_v=(4, 6), mha__W_o=(4, 4))
    t |= w | {"mha.q": torch.randn(2, 4, 4), "mha.k": torch.randn(2, 6, 4), "mha.v": torch.randn(2, 6, 6)}
    t["mha.weights"], t["mha.out"] = multi_head(w, "mha.", 2, t["mha.q"], t["mha.k"], t["mha.v"], torch.tensor([3, 2]))
    t["P"] = positions(60, 32)[None]

    x, w = torch.randn(2, 4, 8), {}
    for i in range(2):
        w |= block_weights(f"encoder.{i}.", 8, 16, ["attention"], ["norm1", "norm2"])
    t |= w | {"encoder.x": x}
    x = x + positions(4, 8)
    for i in range(2):
        p = f"encoder.{i}."
        x = norm(w, p + "norm1", x + multi_head(w, p + "attention.", 4, x, x, x, t["lens"])[1])
        x = norm(w, p + "norm2", x + feed_forward(w, p, x))
    save("lecture", t | {"encoder.out": x})


def decoder():
    """The lecture's decoder with its faults mended: residual around the cross-attention, positions that count."""
    torch.manual_seed(4)
    heads, dim, vocab, blocks = 4, 8, 11, 2
    x, memory, lens = torch.randn(2, 5, dim), torch.randn(2, 4, dim), torch.tensor([2, 3])
    w = weights(dense=(vocab, dim, "bias"))
    for i in range(blocks):
        w |= block_weights(f"{i}.", dim, 16, ["attention1", "attention2"], ["norm1", "norm2", "norm3"])
    t = w | {"x": x, "memory": memory}
    causal = torch.arange(1, 6).repeat(2, 1)
    x = x + positions(5, dim)
    for i in range(blocks):
        p = f"{i}."
        x = norm(w, p + "norm1", x + multi_head(w, p + "attention1.", heads, x, x, x, causal)[1])
        x = norm(w, p + "norm2", x + multi_head(w, p + "attention2.", heads, x, memory, memory, lens)[1])
        x = norm(w, p + "norm3", x + feed_forward(w, p, x))
    save("decoder", t | {"out": linear(x, w, "dense")})


def d2l(notebook):
    torch.manual_seed(5)
    hidden, heads = 100, 5
    w = weights(**{n: (hidden, hidden, "bias") for n in ("W_q", "W_k", "W_v", "W_o")})
    x, y = torch.randn(2, 4, hidden), torch.randn(2, 6, hidden)
    t = w | {"x": x, "y": y}
    own = None
    if notebook:
        cells = re.split(r"^In \[\d+\]:\n", notebook.read_text(), flags=re.M)[1:]
        code = [c for c in cells if re.match(r"\s*(import|def|class)\b", c)]
        space = {}
        for cell in code:  # prose and printed results follow a cell's code unindented
            exec(re.split(r"^(?!\s|import|from|def|class|$)", cell, flags=re.M)[0], space)
        own = space["MultiHeadAttention"](hidden, heads, 0.5).eval()
        own.load_state_dict(w)
    for name, lens in ("", [3, 2]), ("_empty", [3, 0]):
        t["weights" + name], t["out" + name] = multi_head(w, "", heads, x, y, y, torch.tensor(lens))
        if own:
            difference = (own(x, y, y, torch.tensor(lens)) - t["out" + name]).abs().max().item()
            assert difference < 1e-6, difference
            print(f"the notebook's own module, valid_lens {lens}: largest difference {difference:.1e}")
    save("d2l", t)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notebook", type=pathlib.Path, help="text of the notebook, to run its own code too")
    arguments = parser.parse_args()
    DATA.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        labml(), blog(), lecture(), decoder(), d2l(arguments.notebook)
