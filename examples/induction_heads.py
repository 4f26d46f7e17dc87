"""Induction heads: trained, measured and switched off, on one page.

Two layers of attention alone learn to continue what they have seen before: a head of the first layer copies each
token to the next position, a head of the second looks for the current token among these copies and predicts
what followed (Elhage et al. 2021; Olsson et al. 2022). One layer cannot.

    python examples/induction_heads.py --out induction.html     # about a minute on two cores; needs matplotlib
"""

import argparse
import html
import io
import time

import numpy as np

import multihead as mh

VOCABULARY, LENGTH, BATCH = 64, 64, 32


def repeated(rng, count):
    """Random tokens [count, LENGTH + 1], of which a stretch is said again and again."""
    out = np.empty((count, LENGTH + 1), np.int64)
    for row in out:
        period = rng.integers(8, LENGTH // 2 + 1)
        row[:] = np.resize(rng.integers(0, VOCABULARY, period), LENGTH + 1)
    return out


def measure(model):
    scores = mh.lens.head_scores(model, length=LENGTH // 2, seed=7)
    scores["copying"] = mh.lens.copying_accuracy(model, length=LENGTH // 2, seed=7)
    return scores


def train(layers, steps, seed):
    config = mh.models.LanguageModelConfig(
        vocab_size=VOCABULARY, context=LENGTH, num_layers=layers, num_heads=4, embed_dim=64, positions="rotary",
        block="attention_only", tie_embeddings=False,
    )  # fmt: skip
    model = mh.models.LanguageModel(config, rng=mh.Rng(seed))
    optimiser = mh.optim.AdamW(model.parameters(), lr=2e-3)
    rng, history, began = np.random.default_rng(seed), [], time.monotonic()
    for step in range(1, steps + 1):
        tokens = repeated(rng, BATCH)
        with mh.Tape() as tape:
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
            tape.backward(loss)
        optimiser.step()
        model.zero_grad()
        if step % 50 == 0:
            scores = measure(model)
            history.append((step, float(loss), scores["induction"].max(), scores["copying"]))
            if step % 500 == 0:
                print(f"{layers} layers, step {step}: loss {float(loss):.3f}, best induction head {history[-1][2]:.3f}, "
                      f"copying {history[-1][3]:.3f}, {time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    return model, np.array(history)


def without(model, heads):
    """Copying accuracy with the heads [(layer, head)] switched off."""
    gates = np.ones((model.config.num_layers, model.config.num_heads), np.float32)
    for layer, head in heads:
        gates[layer, head] = 0
    return mh.lens.copying_accuracy(model, length=LENGTH // 2, seed=7, hooks=mh.lens.head_gates(gates))


def svg(figure):
    out = io.StringIO()
    figure.savefig(out, format="svg", bbox_inches="tight")
    return out.getvalue()[out.getvalue().index("<svg") :]


def pictures(runs, pattern):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves, axes = plt.subplots(1, 3, figsize=(12, 3.2))
    for layers, (_, history) in runs.items():
        for axis, column, title in zip(axes, (1, 2, 3), ("loss (nats)", "best induction score", "copying accuracy")):
            axis.plot(history[:, 0], history[:, column], label=f"{layers} layer{'s' if layers > 1 else ''}")
            axis.set(title=title, xlabel="step")
    axes[0].legend()
    head, axis = plt.subplots(figsize=(4.5, 4.5))
    axis.imshow(pattern, cmap="viridis")
    axis.set(title="the induction head on 32 tokens said twice", xlabel="key", ylabel="query")
    return svg(curves), svg(head)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="induction.html")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    runs = {layers: train(layers, arguments.steps, arguments.seed) for layers in (2, 1)}

    model = runs[2][0]
    scores = measure(model)
    found = [tuple(map(int, at)) for at in np.argwhere(scores["induction"] > 0.4)]
    full, ablated = scores["copying"], without(model, found)
    one = measure(runs[1][0])
    lines = [
        f"two layers: best induction head {scores['induction'].max():.3f}, best previous-token head "
        f"{scores['previous_token'].max():.3f}, copying {full:.3f}",
        f"induction heads {found} switched off: copying {ablated:.3f} ({(full - ablated) / full:.0%} lost)",
        f"one layer: best induction head {one['induction'].max():.3f}, copying {one['copying']:.3f}",
    ]
    print("\n".join(lines))

    half = np.random.default_rng(7).integers(0, VOCABULARY, LENGTH // 2)
    layer, head = np.unravel_index(scores["induction"].argmax(), scores["induction"].shape)
    name = f"layers.{layer}.self_attn.pattern"
    _, cache = mh.lens.run_with_cache(model, np.tile(half, 2)[None], points=name, heads=[int(head)])
    curves, picture = pictures(runs, np.asarray(cache[name])[0, 0])
    text = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    with open(arguments.out, "w", encoding="utf-8") as page:
        page.write(f'<!doctype html><meta charset="utf-8"><title>Induction heads</title><body style="font-family:sans-serif;'
                   f'max-width:1100px;margin:auto"><h1>Induction heads</h1>{text}{curves}{picture}</body>')  # fmt: skip
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
