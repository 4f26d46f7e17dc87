"""Tiny random language models as transformers writes them, with their logits: tests/data/hugging_face/.

    python3 tools/goldens/hugging_face.py            # writes the fixtures
    python3 tools/goldens/hugging_face.py --check DIR [--tokens 1,2,3]   # prints logits of a saved model

Needs PyPI torch, transformers, safetensors.
"""
import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, BloomConfig, BloomForCausalLM, EuroBertConfig, EuroBertForMaskedLM, FalconConfig,
                          FalconForCausalLM, GPTNeoConfig, GPTNeoForCausalLM, GraniteConfig, GraniteForCausalLM, Olmo2Config,
                          Olmo2ForCausalLM, SmolLM3Config, SmolLM3ForCausalLM, Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig,
                          GemmaConfig, GemmaForCausalLM, GPT2Config, GPT2LMHeadModel, GPT2Model, GPTNeoXConfig, GPTNeoXForCausalLM,
                          GPTJConfig, GPTJForCausalLM, LlamaConfig, LlamaForCausalLM, MiniCPM3Config, MiniCPM3ForCausalLM, MistralConfig, MistralForCausalLM, OPTConfig, OPTForCausalLM,
                          Phi3Config, Phi3ForCausalLM, PhiConfig, PhiForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM, Qwen3Model, StableLmConfig, StableLmForCausalLM, Starcoder2Config,
                          Starcoder2ForCausalLM, YoutuConfig, YoutuForCausalLM)

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "hugging_face"


def models():
    yield "gpt2", GPT2LMHeadModel(GPT2Config(vocab_size=37, n_positions=23, n_embd=20, n_layer=2, n_head=4, initializer_range=0.3))
    llama = dict(vocab_size=31, hidden_size=24, intermediate_size=41, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=29, initializer_range=0.3)
    yield "llama", LlamaForCausalLM(LlamaConfig(**llama))
    yield "llama_tied", LlamaForCausalLM(
        LlamaConfig(**llama, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=10, rope_theta=500.0))
    yield "mistral", MistralForCausalLM(MistralConfig(**llama, sliding_window=4))
    yield "qwen2", Qwen2ForCausalLM(Qwen2Config(**llama, tie_word_embeddings=True))
    yield "qwen3", Qwen3ForCausalLM(Qwen3Config(**llama, head_dim=10))
    yield "qwen3_base", Qwen3Model(Qwen3Config(**llama, head_dim=10))
    yield "gpt2_base", GPT2Model(GPT2Config(vocab_size=37, n_positions=23, n_embd=20, n_layer=2, n_head=4, initializer_range=0.3))
    # A short first context and a small base, so that eleven tokens meet kept, blended and divided frequencies.
    for kind, more in (("linear", {}),
                       ("llama3", dict(low_freq_factor=0.5, high_freq_factor=1.5, original_max_position_embeddings=8)),
                       ("yarn", dict(beta_fast=2, beta_slow=0.25, original_max_position_embeddings=8))):
        rope = dict(rope_type=kind, rope_theta=50.0, factor=3.0, **more)
        yield f"rope_{kind}", LlamaForCausalLM(LlamaConfig(**llama, head_dim=12, rope_parameters=rope))
    neox = dict(vocab_size=31, hidden_size=24, intermediate_size=41, num_hidden_layers=2, num_attention_heads=3,
                max_position_embeddings=29, initializer_range=0.3)
    yield "gpt_neox", GPTNeoXForCausalLM(GPTNeoXConfig(**neox, rotary_pct=0.5))
    yield "gpt_neox_sequential", GPTNeoXForCausalLM(
        GPTNeoXConfig(**neox, use_parallel_residual=False, tie_word_embeddings=True, attention_bias=False))
    yield "phi", PhiForCausalLM(PhiConfig(**neox))
    yield "phi3", Phi3ForCausalLM(Phi3Config(**llama, pad_token_id=0))
    yield "gptj", GPTJForCausalLM(
        GPTJConfig(vocab_size=31, n_positions=29, n_embd=24, n_layer=2, n_head=3, n_inner=41, rotary_dim=4, initializer_range=0.3))
    half = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.7}
    yield "stablelm", StableLmForCausalLM(StableLmConfig(**llama, use_qkv_bias=True, rope_parameters=half))
    yield "stablelm_parallel", StableLmForCausalLM(StableLmConfig(**llama, use_parallel_residual=True, rope_parameters=half))
    yield "starcoder2", Starcoder2ForCausalLM(Starcoder2Config(**llama, sliding_window=4))
    yield "opt", OPTForCausalLM(
        OPTConfig(vocab_size=31, hidden_size=20, ffn_dim=37, num_hidden_layers=2, num_attention_heads=4,
                  max_position_embeddings=23, init_std=0.3, word_embed_proj_dim=20))
    yield "gemma", GemmaForCausalLM(GemmaConfig(**llama, head_dim=10))
    # Windows of four tokens, and scores large enough to meet the caps.
    gemma = {**llama, "num_hidden_layers": 3, "head_dim": 10, "sliding_window": 4, "query_pre_attn_scalar": 7}
    yield "gemma2", Gemma2ForCausalLM(Gemma2Config(**gemma, attn_logit_softcapping=2.0, final_logit_softcapping=3.0))
    yield "gemma3", Gemma3ForCausalLM(
        Gemma3TextConfig(**gemma, layer_types=["sliding_attention", "full_attention", "sliding_attention"]))
    yield "olmo2", Olmo2ForCausalLM(Olmo2Config(**llama))
    yield "granite", GraniteForCausalLM(GraniteConfig(
        **llama, embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.4, logits_scaling=2.5, pad_token_id=0))
    layers = {**llama, "num_hidden_layers": 4}
    yield "smollm3", SmolLM3ForCausalLM(SmolLM3Config(**layers, no_rope_layer_interval=2, rope_theta=500.0, pad_token_id=0))
    yield "gpt_neo", GPTNeoForCausalLM(
        GPTNeoConfig(vocab_size=31, hidden_size=24, num_layers=3, num_heads=3, intermediate_size=41, max_position_embeddings=29,
                     window_size=4, attention_types=[[["global", "local"], 1], [["global"], 1]], initializer_range=0.3))
    falcon = dict(vocab_size=31, hidden_size=24, ffn_hidden_size=41, num_hidden_layers=2, num_attention_heads=3,
                  max_position_embeddings=29, initializer_range=0.3)
    yield "falcon", FalconForCausalLM(FalconConfig(**falcon, bias=True))
    yield "falcon_two_norms", FalconForCausalLM(FalconConfig(**falcon, new_decoder_architecture=True))
    yield "bloom", BloomForCausalLM(BloomConfig(vocab_size=31, hidden_size=24, n_layer=2, n_head=3, initializer_range=0.3))
    yield "eurobert", EuroBertForMaskedLM(EuroBertConfig(**llama, pad_token_id=0, mlp_bias=True))
    yield "gemma3_both_ways", Gemma3ForCausalLM(
        Gemma3TextConfig(**{**gemma, "sliding_window": 6}, use_bidirectional_attention=True,
                         layer_types=["sliding_attention", "full_attention", "sliding_attention"]))
    latent = {**llama, "num_key_value_heads": 4, "initializer_range": 0.2, "kv_lora_rank": 11, "qk_nope_head_dim": 7, "qk_rope_head_dim": 6}
    yield "youtu", YoutuForCausalLM(YoutuConfig(
        **latent, q_lora_rank=13, v_head_dim=9, attention_bias=True, bos_token_id=None, eos_token_id=None))
    yield "minicpm3", MiniCPM3ForCausalLM(MiniCPM3Config(
        **latent, q_lora_rank=None, scale_emb=3, scale_depth=1.1, dim_model_base=8, bos_token_id=None, eos_token_id=None))


def write(wanted):
    for name, model in models():
        if wanted and name not in wanted:
            continue
        torch.manual_seed(len(name))
        for parameter in model.parameters():  # biases and norms as trained models have them, not 0 and 1
            if parameter.dim() == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
        folder = DATA / name
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        tokens = torch.randint(2, model.config.vocab_size, (2, 11))  # past what a model may take for padding
        with torch.no_grad():
            out = model.eval()(tokens)
        name, expected = ("logits", out.logits) if "logits" in out else ("features", out.last_hidden_state)
        save_file({"tokens": tokens, name: expected.contiguous()}, folder / "expected.safetensors")


def check(folder, tokens):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        print(json.dumps(model(torch.tensor([tokens])).logits[0].tolist()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="fixtures to write (default: all)")
    parser.add_argument("--check", metavar="DIR", help="print the logits of the model in this folder")
    parser.add_argument("--tokens", default="1,2,3", help="token ids for --check")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.check:
        check(arguments.check, [int(t) for t in arguments.tokens.split(",")])
    else:
        write(arguments.names)
