"""A tiny Marian model as transformers writes it, its logits and what generate() makes of it: tests/data/marian/.

    python3 tools/goldens/marian.py              # writes the fixture
    python3 tools/goldens/marian.py --check DIR  # loads a folder in transformers and prints logits and translations

Needs PyPI torch, transformers, safetensors.
"""
import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import MarianConfig, MarianMTModel

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "marian"
PAD, EOS, VOCABULARY = 40, 0, 41

# generate()'s options, and ours under the names of multihead::BeamOptions.
CASES = [
    (dict(num_beams=1), dict(beam_size=1)),
    (dict(num_beams=2), dict(beam_size=2)),
    (dict(num_beams=4, num_return_sequences=4), dict(beam_size=4, num_hypotheses=4)),
    (dict(num_beams=4, num_return_sequences=3, length_penalty=0.0), dict(beam_size=4, num_hypotheses=3, length_penalty=0.0)),
    (dict(num_beams=3, num_return_sequences=2, length_penalty=2.0), dict(beam_size=3, num_hypotheses=2, length_penalty=2.0)),
    (dict(num_beams=3, no_repeat_ngram_size=2), dict(beam_size=3, no_repeat_ngram=2)),
    (dict(num_beams=3, no_repeat_ngram_size=1), dict(beam_size=3, no_repeat_ngram=1)),
    (dict(num_beams=3, repetition_penalty=1.7), dict(beam_size=3, repetition_penalty=1.7)),
    (dict(num_beams=3, min_new_tokens=6), dict(beam_size=3, min_length=6)),
    (dict(num_beams=3, suppress_tokens=[7, 11]), dict(beam_size=3, suppress=[[7], [11]])),
]


def tiny_model():
    torch.manual_seed(5)
    model = MarianMTModel(MarianConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=20, decoder_ffn_dim=20, max_position_embeddings=24, init_std=0.25,
        pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD, forced_eos_token_id=None, scale_embedding=True,
        activation_function="swish")).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # biases and norms as trained models have them, not 0 and 1
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.final_logits_bias += 0.3 * torch.randn(1, VOCABULARY)
    teach(model)
    return model.eval()


def teach(model, steps=450):
    """A little copying, so that what it says ends and depends on the source."""
    optimizer = torch.optim.Adam(model.parameters(), lr=7e-3)
    for _ in range(steps):
        rows = [torch.randint(1, PAD, (n,)).tolist() + [EOS] for n in torch.randint(1, 10, (16,)).tolist()]
        ids, lengths = padded(rows)
        mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
        loss = model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"taught to a loss of {loss.item():.2f}")


def padded(rows):
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), PAD)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return ids, torch.tensor([len(row) for row in rows])


def write():
    DATA.mkdir(parents=True, exist_ok=True)
    model = tiny_model()
    model.save_pretrained(DATA)
    (DATA / "generation_config.json").unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(3)
    sources = [torch.randint(1, PAD, (n,), generator=generator).tolist() + [EOS] for n in (7, 3, 1, 10, 5)]
    ids, lengths = padded(sources)
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    target = torch.randint(1, PAD, (len(sources), 9), generator=generator)
    target[:, 0] = PAD
    with torch.no_grad():
        output = model(input_ids=ids, attention_mask=mask, decoder_input_ids=target)
    save_file({"source": ids, "lengths": lengths, "target": target, "logits": output.logits.contiguous()},
              DATA / "expected.safetensors")
    cases = []
    for theirs, ours in CASES:
        with torch.no_grad():
            result = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=18, do_sample=False,
                                    bad_words_ids=[[PAD]], output_scores=True, return_dict_in_generate=True, **theirs)
        n = theirs.get("num_return_sequences", 1)
        tokens = []
        for row in result.sequences[:, 1:].tolist():
            tokens.append(row[: row.index(EOS)])  # ValueError if it did not end: then choose another seed
        scores = result.sequences_scores.tolist() if "sequences_scores" in result else [None] * len(tokens)
        ours = dict(ours, suppress=ours.get("suppress", []) + [[PAD]], max_length=17)
        cases.append({"options": ours, "results": [
            [{"tokens": tokens[i * n + k], "score": scores[i * n + k]} for k in range(n)] for i in range(len(sources))]})
    (DATA / "expected.json").write_text(json.dumps({"sources": sources, "cases": cases}, separators=(",", ":")) + "\n")


def check(folder):
    model = MarianMTModel.from_pretrained(folder).eval()
    ids = torch.tensor([[5, 6, 7, model.config.eos_token_id]])
    with torch.no_grad():
        logits = model(input_ids=ids, decoder_input_ids=torch.tensor([[model.config.decoder_start_token_id, 5, 6]])).logits
        best = model.generate(input_ids=ids, num_beams=4, max_new_tokens=20)
    print(json.dumps({"logits": logits[0].tolist(), "tokens": best[0].tolist()}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="DIR", help="load this folder instead")
    arguments = parser.parse_args()
    check(arguments.check) if arguments.check else write()
