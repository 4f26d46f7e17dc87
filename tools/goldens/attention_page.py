"""The weights in a page of `multihead attend` against transformers' output_attentions.

    multihead attend MODEL --text "It was a fine day" --out page.html
    python3 tools/goldens/attention_page.py page.html MODEL "It was a fine day"

MODEL: a trained language model that transformers loads, or a translator (then the text is the source, and the
page's own target is read back). A page keeps the square roots of the weights in 16 bits, so 1.5e-5 is the best one can
ask for, or in 8 bits (0.004), and of causal attention the lower triangle. Needs PyPI torch, transformers, tokenizers, numpy.
"""
import base64
import json
import pathlib
import re
import sys

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, MarianMTModel


def element(html, name):
    return re.search(rf'id="{name}">(.*?)</script>', html, re.S)[1]


def compare(html, index, view, expected):
    chosen = np.stack([expected[layer][0].numpy()[view["heads"]] for layer in view["layers"]])
    levels = np.frombuffer(base64.b64decode(element(html, f"w0-{index}")), "<u2" if view["bits"] == 16 else "u1")
    got, stored = np.zeros(chosen.shape), np.ones(chosen.shape, bool)
    got[np.tril(stored) if view["causal"] else stored] = (levels / (2 ** view["bits"] - 1)) ** 2
    difference = np.abs(got - chosen).max()
    print(f"{view['name']} {list(chosen.shape)}: largest difference {difference:.1e}")
    assert difference < (2e-5 if view["bits"] == 16 else 5e-3)


def main(page, folder, text):
    html = pathlib.Path(page).read_text()
    views = json.loads(element(html, "data"))["runs"][0]["views"]
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    ids = tokenizer.encode(text).ids
    with torch.no_grad():
        if len(views) == 1:
            model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
            return compare(html, 0, views[0], model(torch.tensor([ids]), output_attentions=True).attentions)
        model = MarianMTModel.from_pretrained(folder, attn_implementation="eager").eval()
        target = tokenizer.encode("".join(views[0]["queries"][1:])).ids
        out = model(input_ids=torch.tensor([ids + [model.config.eos_token_id]]), output_attentions=True,
                    decoder_input_ids=torch.tensor([[model.config.decoder_start_token_id] + target]))
    for index, weights in enumerate((out.cross_attentions, out.encoder_attentions, out.decoder_attentions)):
        compare(html, index, views[index], weights)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
