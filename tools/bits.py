"""A table of checksums of what the library computes: run it before and after a change that must not change a bit.

    PYTHONPATH=... python tools/bits.py > before.txt
    ...
    PYTHONPATH=... python tools/bits.py | diff before.txt -

One line per case: instruction set, dtype, case, then the first 12 digits of the SHA-256 of each result. Covered are
attention forward and backward for every option and shape below, decoding, fifty steps of training, generated tokens and
translations. An instruction set that this CPU lacks is left out with a line that says so; the tables of two CPUs agree
where their instruction sets and dtypes do (bf16 rounds differently where its products run on pairs or tiles).
"""

import argparse
import hashlib
import os
import subprocess
import sys

import numpy as np

ISAS = ("baseline", "avx2", "avx512")
DTYPES = ("float32", "bfloat16", "float16", "float64")

# batch, heads, kv_heads, queries, keys, head_dim, value_dim
SHAPES = {
    "small": (2, 3, 3, 5, 7, 8, 8),
    "odd": (2, 2, 2, 67, 131, 40, 24),
    "grouped": (1, 6, 2, 129, 300, 32, 32),
    "wide": (1, 2, 2, 70, 530, 128, 64),
    "decode": (3, 4, 2, 1, 777, 64, 64),
    "few": (2, 4, 4, 4, 300, 16, 16),
}


def digest(*tensors):
    """A checksum of the tensors' bytes; bf16 and f16 are widened first, which loses nothing."""
    found = []
    for t in tensors:
        if t is None:
            found.append("-" * 12)
            continue
        array = np.ascontiguousarray(np.asarray(t.to("float32") if t.dtype in ("bfloat16", "float16") else t))
        found.append(hashlib.sha256(array.tobytes()).hexdigest()[:12])
    return " ".join(found)


class Case:
    """Random inputs of one shape and dtype."""

    def __init__(self, mh, name, dtype):
        self.mh, self.dtype = mh, dtype
        self.batch, self.heads, self.kv_heads, self.queries, self.keys, self.dim, self.value_dim = SHAPES[name]
        self.random = np.random.default_rng(7)
        self.number = "float64" if dtype == "float64" else "float32"
        self.query = self.leaf(self.batch, self.heads, self.queries, self.dim, dtype=dtype)
        self.key = self.leaf(self.batch, self.kv_heads, self.keys, self.dim, dtype=dtype)
        self.value = self.leaf(self.batch, self.kv_heads, self.keys, self.value_dim, dtype=dtype)
        self.weight = self.array(self.batch, self.heads, self.queries, self.value_dim, dtype=dtype)

    def array(self, *shape, dtype=None):
        return self.mh.tensor(self.random.standard_normal(shape)).to(dtype or self.number)

    def leaf(self, *shape, dtype=None):
        x = self.array(*shape, dtype=dtype)
        x.requires_grad = True
        return x

    def flags(self, *shape):
        return self.random.random(shape) < 0.7


def attention_options(mh):
    """Name -> the keyword arguments of attention() for a case."""
    plain = {
        "plain": lambda c: {},
        "scale": lambda c: {"scale": 0.3},
        "causal": lambda c: {"mask": mh.causal()},
        "causal_start": lambda c: {"mask": mh.causal(align="start")},
        "window": lambda c: {"mask": mh.window(33, 5)},
        "lengths": lambda c: {"mask": mh.lengths(c.random.integers(0, c.keys + 1, c.batch))},
        "keep_keys": lambda c: {"mask": mh.keep(c.flags(c.batch, 1, 1, c.keys))},
        "keep_all": lambda c: {"mask": mh.keep(c.flags(c.batch, c.heads, c.queries, c.keys))},
        "keep_causal": lambda c: {"mask": mh.keep(c.flags(1, c.heads, c.queries, c.keys)) & mh.causal()},
        "documents": lambda c: {
            "mask": mh.documents(
                np.broadcast_to(np.arange(c.queries) * 3 // c.queries, (c.batch, c.queries)).copy(),
                np.broadcast_to(np.arange(c.keys) * 3 // c.keys, (c.batch, c.keys)).copy(),
            )
        },
        "mask_mod": lambda c: {"mask": mh.mask_mod(lambda b, h, q, k: (q * 7 + k + h) % 3 != 0)},
        "softcap": lambda c: {"softcap": 5.0},
        "score_mod": lambda c: {"score_mod": mh.score_mod(lambda s, b, h, q, k: s + 0.1 * np.sin(s) - 0.01 * (q - k))},
        "bias": lambda c: {"bias": c.leaf(c.batch, c.heads, c.queries, c.keys)},
        "bias_heads": lambda c: {"bias": c.leaf(1, c.heads, c.queries, c.keys)},
        "alibi": lambda c: {"alibi_slopes": c.leaf(c.heads), "mask": mh.causal()},
        "relative": lambda c: {"relative_bias": c.leaf(c.heads, 65), "relative_center": 32},
        "sinks": lambda c: {"sinks": c.leaf(c.heads), "mask": mh.causal()},
        "dropout": lambda c: {"dropout_p": 0.2, "rng": mh.Rng(99)},
        "uniform": lambda c: {"mask": mh.lengths(np.zeros(c.batch, "i8")), "empty_row": "uniform"},
    }
    everything = ("causal", "softcap", "score_mod", "bias_heads", "alibi", "relative", "dropout")

    def all_at_once(case):
        merged = {}
        for name in everything:
            merged.update(plain[name](case))
        return merged

    return {**plain, "all": all_at_once}


def attention_lines(mh, dtype):
    for option, arguments in attention_options(mh).items():
        for shape in SHAPES:
            case = Case(mh, shape, dtype)
            options = arguments(case)
            with mh.Tape() as tape:
                out, lse = mh.attention(case.query, case.key, case.value, return_lse=True, **options)
                tape.backward(out, case.weight)
            leaves = [case.query, case.key, case.value]
            leaves += [x for x in options.values() if isinstance(x, mh.Tensor)]
            yield f"attention {option} {shape}", digest(out, lse, *[x.grad for x in leaves])
            with mh.NoTape():
                capture = mh.AttentionCapture(key_mass=True, entropy=True, top_k=2)
                if "rng" in options:
                    options["rng"] = mh.Rng(99)
                if dtype != "float64":
                    mh.attention(case.query, case.key, case.value, capture=capture, **options)
                    yield f"capture {option} {shape}", digest(capture.weights, capture.key_mass, capture.entropy)


def ragged_lines(mh, dtype):
    random = np.random.default_rng(8)
    query, key, value = (mh.tensor(random.standard_normal((200, h, 32))).to(dtype) for h in (4, 2, 2))
    for x in (query, key, value):
        x.requires_grad = True
    starts = np.array([0, 3, 3, 80, 200], "i4")
    with mh.Tape() as tape:
        out = mh.attention_ragged(query, key, value, starts, starts, mask=mh.causal())
        tape.backward(out, mh.tensor(random.standard_normal(out.shape)).to(dtype))
    yield "attention ragged", digest(out, query.grad, key.grad, value.grad)


MODELS = {
    "gpt": dict(positions="learned", norm="layer", activation="gelu"),
    "llama": dict(positions="rotary", norm="rms", activation="silu", gated=True, num_kv_heads=2),
    "alibi": dict(positions="alibi", norm="layer", window=20),
}


def fifty_steps(mh, parameters, loss_of):
    optimizer = mh.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)
    for step in range(50):
        with mh.Tape() as tape:
            tape.backward(loss_of(step))
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
        optimizer.zero_grad()
    return digest(*parameters[:2], parameters[-1])


def language_model_lines(mh):
    tokens = np.random.default_rng(9).integers(0, 97, (50, 4, 48)).astype("i4")
    for name, fields in MODELS.items():
        config = mh.models.LanguageModelConfig(
            vocab_size=97, context=64, num_layers=2, num_heads=4, embed_dim=64, ffn_dim=128, dropout_p=0.1, **fields
        )
        rng = mh.Rng(3)
        model = mh.models.LanguageModel(config, rng=rng)
        yield f"train {name}", fifty_steps(
            mh, model.parameters(), lambda i: model.loss(tokens[i][:, :-1], tokens[i][:, 1:], rng=rng)
        )
        logits = model(tokens[0])
        yield f"logits {name}", digest(logits)
        text = [model.generate([1, 2, 3], max_new_tokens=40, temperature=t, seed=5) for t in (0.0, 1.0)]
        yield f"generate {name}", hashlib.sha256(repr(text).encode()).hexdigest()[:12]


def translation_lines(mh):
    random = np.random.default_rng(10)
    source, target = (random.integers(3, 61, (50, 6, 12)).astype("i4") for _ in range(2))
    config = mh.models.Seq2SeqConfig(
        source_vocab_size=61, target_vocab_size=61, num_heads=4, encoder_layers=2, decoder_layers=2, embed_dim=64,
        ffn_dim=128, max_positions=64,
    )
    rng = mh.Rng(4)
    model = mh.models.Seq2Seq(config, rng=rng)
    yield "train seq2seq", fifty_steps(
        mh, model.parameters(), lambda i: model.loss(source[i], target[i][:, :-1], target[i][:, 1:], rng=rng)
    )
    sentences = [row.tolist() for row in source[0]]
    for dtype in ("f32", "int8"):
        found = model.beam_search(sentences, beam_size=4, max_length=20, weight_dtype=dtype)
        yield f"translate {dtype}", hashlib.sha256(repr(found).encode()).hexdigest()[:12]


def table():
    import multihead as mh

    mh.set_num_threads(2)
    isa = mh.isa()
    if isa != os.environ["MULTIHEAD_ISA"]:  # it only caps the choice
        print(f"{os.environ['MULTIHEAD_ISA']}: not on this CPU")
        return
    for dtype in DTYPES:
        for lines in (attention_lines, ragged_lines):
            for case, found in lines(mh, dtype):
                print(isa, dtype, case, found)
    for lines in (language_model_lines, translation_lines):
        for case, found in lines(mh):
            print(isa, "float32", case, found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", choices=ISAS, action="append", help="only this instruction set (default: all)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # the process of one instruction set
    arguments = parser.parse_args()
    if arguments.here:
        return table()
    for isa in arguments.isa or ISAS:
        run = subprocess.run([sys.executable, __file__, "--here"], env={**os.environ, "MULTIHEAD_ISA": isa},
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if run.returncode != 0:
            sys.exit(run.stderr)
        print(run.stdout, end="")


if __name__ == "__main__":
    main()
