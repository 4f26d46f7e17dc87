"""Tiny BART, mBART, M2M100, Pegasus, T5 and mT5 models as transformers writes them, their logits and what generate() makes of them: tests/data/seq2seq/.

    python3 tools/goldens/seq2seq.py [NAME...]

Needs PyPI torch, transformers, safetensors.
"""
import json
import pathlib
import sys

import torch
from marian import EOS, PAD, VOCABULARY, padded, teach
from safetensors.torch import save_file
from transformers import BartConfig, BartForConditionalGeneration, M2M100Config, M2M100ForConditionalGeneration, MBartConfig, MBartForConditionalGeneration, MT5Config, MT5ForConditionalGeneration, PegasusConfig, PegasusForConditionalGeneration, T5Config, T5ForConditionalGeneration

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "seq2seq"
IDS = dict(vocab_size=VOCABULARY, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
BART = dict(IDS, d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=20,
            decoder_ffn_dim=20, max_position_embeddings=24, init_std=0.25, forced_eos_token_id=None, bos_token_id=None)
T5 = dict(IDS, d_model=16, d_kv=8, d_ff=20, num_layers=2, num_decoder_layers=1, num_heads=4, initializer_factor=0.5)


def models():
    yield "bart", BartForConditionalGeneration(BartConfig(**BART))
    yield "mbart", MBartForConditionalGeneration(MBartConfig(**BART, scale_embedding=True))
    yield "pegasus", PegasusForConditionalGeneration(PegasusConfig(**BART, scale_embedding=True, activation_function="relu"))
    yield "m2m100", M2M100ForConditionalGeneration(M2M100Config(**dict(BART, d_model=18, encoder_attention_heads=3, decoder_attention_heads=3,
                                                                   max_position_embeddings=64, decoder_start_token_id=EOS)))
    yield "t5", T5ForConditionalGeneration(T5Config(**T5))
    # 1.1: gated, the output layer apart and unscaled. A prime number of heads: nothing to interleave.
    yield "t5_gated", T5ForConditionalGeneration(T5Config(
        **dict(T5, num_heads=3, d_kv=6, relative_attention_num_buckets=8, relative_attention_max_distance=9), feed_forward_proj="gated-gelu",
        tie_word_embeddings=False))
    yield "mt5", MT5ForConditionalGeneration(MT5Config(**T5))


def write(name, model):
    folder = DATA / name
    for parameter in model.parameters():  # biases and norms as trained models have them, not 0 and 1
        if parameter.dim() == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    if name in ("t5_gated", "mt5"):
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(0.3 * torch.randn_like(model.lm_head.weight))
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias += 0.3 * torch.randn(1, VOCABULARY)
    teach(model)
    model.eval().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(3)
    sources = [torch.randint(1, PAD, (n,), generator=generator).tolist() + [EOS] for n in (7, 3, 1, 20, 5)]
    ids, lengths = padded(sources)
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    target = torch.randint(1, PAD, (len(sources), 21), generator=generator)
    target[:, 0] = model.config.decoder_start_token_id
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits

    def generated(**options):
        cases = []
        for beams in (1, 3):
            out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=18, do_sample=False, bad_words_ids=[[PAD]],
                                 num_beams=beams, length_penalty=1.0, forced_eos_token_id=EOS, **options)
            cases.append({"beam_size": beams, "tokens": [row[:row.index(EOS)] for row in out[:, 1:].tolist()]})
        return cases

    expected = {"sources": sources, "cases": generated(early_stopping=False)}
    if name == "bart":
        expected["forced"] = generated(early_stopping=True, forced_bos_token_id=9)
    save_file({"source": ids, "lengths": lengths, "target": target, "logits": logits.contiguous()}, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    torch.manual_seed(5)
    for name, model in models():
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            write(name, model)
