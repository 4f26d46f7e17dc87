"""Every family of models beside transformers: random configurations, what they compute, their gradients, and the way
back.

    python3 tools/family_parity.py [FAMILY...] [--configs 3] [--seed 0]

For each family transformers writes random models (odd sizes, tied or not, one file or shards, f32, bf16 or f16). Then

    outputs    logits or hidden states of ours and theirs
    gradients  of every weight, for a random linear function of the outputs; beside the largest of the same tensor
               (at least a hundredth of the model's largest: those of key biases are zero but for rounding)
    saved      outputs of transformers from the folder that we save, beside those from its own
    tokens     greedy generation, sequences that are equal token for token

It prints the largest differences and fails where outputs or saved are more than 1e-5 (beside the largest output, at
least 1), gradients more than 1e-4, or a token differs. Needs PyPI torch, transformers, safetensors.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import random
import sys
import tempfile

import numpy as np

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as tf
from safetensors.numpy import load_file

import multihead as mh
import remote_families

BOUNDS = {"outputs": 1e-5, "gradients": 1e-4, "saved": 1e-5}
STORAGE = [torch.float32, torch.bfloat16, torch.float16]
VOCABULARY = 61


@dataclasses.dataclass
class Case:
    """A class of transformers and a configuration; `kind` says how it is called."""

    model: type
    config: object
    kind: str  # decoder, base, encoder, seq2seq, images
    load: object = None  # of transformers' model and a folder: ours; default: from the folder where transformers wrote it


def pick(r, *options):
    return r.choice(options)


def sizes(r, heads=(1, 2, 3, 4), even=False):
    """(num_heads, head_dim, odd hidden sizes)"""
    head = pick(r, 8, 12, 16) if even else pick(r, 5, 7, 8)
    return pick(r, *heads), head


# -- Decoders ----------------------------------------------------------------------------------------------------------

def decoder_ids():
    return dict(vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def like_llama(config, model, base, **choices):
    def make(r):
        heads, head = sizes(r, (2, 4, 6), even=True)
        values = dict(decoder_ids(), hidden_size=heads * head, num_attention_heads=heads, num_key_value_heads=pick(r, heads, heads // 2),
                      intermediate_size=pick(r, 31, 45), num_hidden_layers=pick(r, 1, 2, 3), max_position_embeddings=64,
                      initializer_range=0.25, tie_word_embeddings=pick(r, True, False))
        for key, options in choices.items():
            values[key] = pick(r, *options)
        return Case(base if pick(r, False, False, True) else model, config(**values), "decoder")

    return make


def latent(config, model, base, **choices):
    def make(r):
        case = like_llama(config, model, base, q_lora_rank=(None, 9), kv_lora_rank=(7, 12), qk_nope_head_dim=(5, 8), qk_rope_head_dim=(4, 6),
                          v_head_dim=(6, 11), attention_bias=(True, False), **choices)(r)
        case.config.num_key_value_heads = case.config.num_attention_heads
        return case

    return make


def gpt2(r):
    heads, head = sizes(r)
    return Case(pick(r, tf.GPT2LMHeadModel, tf.GPT2Model), tf.GPT2Config(
        **decoder_ids(), n_embd=heads * head, n_head=heads, n_layer=pick(r, 1, 2, 3), n_positions=64, n_inner=pick(r, None, 27),
        initializer_range=0.25, activation_function=pick(r, "gelu_new", "relu")), "decoder")


def gpt_neox(r):
    heads, head = sizes(r, even=True)
    return Case(pick(r, tf.GPTNeoXForCausalLM, tf.GPTNeoXModel), tf.GPTNeoXConfig(
        **decoder_ids(), hidden_size=heads * head, num_attention_heads=heads, intermediate_size=pick(r, 31, 45),
        num_hidden_layers=pick(r, 1, 2, 3), max_position_embeddings=64, initializer_range=0.25, tie_word_embeddings=pick(r, True, False),
        use_parallel_residual=pick(r, True, False), attention_bias=pick(r, True, False),
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": pick(r, 0.5, 1.0)}), "decoder")


def opt(r):
    heads, head = sizes(r)
    return Case(pick(r, tf.OPTForCausalLM, tf.OPTModel), tf.OPTConfig(
        **dict(decoder_ids(), pad_token_id=1), hidden_size=heads * head, word_embed_proj_dim=heads * head, num_attention_heads=heads,
        ffn_dim=pick(r, 31, 45), num_hidden_layers=pick(r, 1, 2, 3), max_position_embeddings=64, init_std=0.25), "decoder")


def phi(r):
    heads, head = sizes(r, (2, 4), even=True)
    return Case(pick(r, tf.PhiForCausalLM, tf.PhiModel), tf.PhiConfig(
        **decoder_ids(), hidden_size=heads * head, num_attention_heads=heads, num_key_value_heads=pick(r, heads, heads // 2),
        intermediate_size=pick(r, 31, 45), num_hidden_layers=pick(r, 1, 2), max_position_embeddings=64, initializer_range=0.25), "decoder")


def gptj(r):
    heads, head = sizes(r, even=True)
    return Case(pick(r, tf.GPTJForCausalLM, tf.GPTJModel), tf.GPTJConfig(
        **decoder_ids(), n_embd=heads * head, n_head=heads, n_layer=pick(r, 1, 2, 3), n_positions=64, n_inner=pick(r, None, 27),
        rotary_dim=pick(r, 4, 6, 8), initializer_range=0.25, activation_function=pick(r, "gelu_new", "relu")), "decoder")


def gpt_neo(r):
    heads, head = sizes(r)
    layers = pick(r, 1, 2, 3)
    kinds = pick(r, *([k] * layers for k in ("global", "local")), ["global", "local", "global"][:layers], ["local", "global", "local"][:layers])
    return Case(pick(r, tf.GPTNeoForCausalLM, tf.GPTNeoModel), tf.GPTNeoConfig(
        **decoder_ids(), hidden_size=heads * head, num_heads=heads, num_layers=layers, attention_types=[[kinds, 1]], window_size=pick(r, 1, 4),
        intermediate_size=pick(r, None, 27), max_position_embeddings=64, initializer_range=0.25,
        activation_function=pick(r, "gelu_new", "relu")), "decoder")


def falcon(r):
    heads, head = sizes(r, even=True)
    # Layers in sequence, and with biases as many heads of keys as of queries, are saved as the families that have them, too.
    arrangement = pick(r, {}, {"multi_query": False},
                       {"new_decoder_architecture": True, "num_kv_heads": pick(r, 1, heads)},
                       {"new_decoder_architecture": True, "num_kv_heads": heads, "num_ln_in_parallel_attn": 1})
    return Case(pick(r, tf.FalconForCausalLM, tf.FalconModel), tf.FalconConfig(
        **decoder_ids(), hidden_size=heads * head, num_attention_heads=heads, num_hidden_layers=pick(r, 1, 2, 3), ffn_hidden_size=pick(r, None, 27),
        max_position_embeddings=64, initializer_range=0.25, bias=not arrangement and pick(r, True, False), activation=pick(r, "gelu", "relu"),
        tie_word_embeddings=pick(r, True, False), rope_parameters=pick(r, *SCALINGS), **arrangement), "decoder")


def bloom(r):
    heads, head = sizes(r, (1, 2, 3, 5))
    return Case(pick(r, tf.BloomForCausalLM, tf.BloomModel), tf.BloomConfig(
        **decoder_ids(), hidden_size=heads * head, n_head=heads, n_layer=pick(r, 1, 2, 3), initializer_range=0.25,
        tie_word_embeddings=pick(r, True, False)), "decoder")


def gemma_layers(config, model, base, **choices):
    def make(r):
        heads, head = sizes(r, (2, 4), even=True)
        layers = pick(r, 2, 3)
        kinds = ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(layers)]
        return Case(pick(r, model, model, base), config(
            **decoder_ids(), hidden_size=heads * pick(r, 11, 13), num_attention_heads=heads, num_key_value_heads=pick(r, heads, heads // 2),
            head_dim=head, intermediate_size=pick(r, 31, 45), num_hidden_layers=layers, layer_types=kinds, sliding_window=pick(r, 3, 5),
            query_pre_attn_scalar=pick(r, 7, 16), max_position_embeddings=64, initializer_range=0.25,
            **{key: pick(r, *options) for key, options in choices.items()}), "decoder")

    return make


SCALINGS = ({"rope_type": "default", "rope_theta": 500.0}, {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.5},
            {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 16})

# -- Encoders ----------------------------------------------------------------------------------------------------------


def like_bert(config, stem, **choices):
    def make(r):
        heads, head = sizes(r)
        suffix = pick(r, "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
        values = dict(vocab_size=VOCABULARY, hidden_size=heads * head, num_attention_heads=heads, intermediate_size=pick(r, 31, 45),
                      num_hidden_layers=pick(r, 1, 2, 3), max_position_embeddings=70, initializer_range=0.25, num_labels=pick(r, 2, 3),
                      pad_token_id=1 if stem in ("Roberta", "XLMRoberta", "Camembert", "MPNet") else 0)
        for key, options in choices.items():
            values[key] = pick(r, *options)
        return Case(getattr(tf, stem + suffix), config(**values), "encoder")

    return make


def distilbert(r):
    heads, head = sizes(r)
    suffix = pick(r, "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
    return Case(getattr(tf, "DistilBert" + suffix), tf.DistilBertConfig(
        vocab_size=VOCABULARY, dim=heads * head, n_heads=heads, hidden_dim=pick(r, 31, 45), n_layers=pick(r, 1, 2, 3),
        max_position_embeddings=70, initializer_range=0.25, num_labels=3), "encoder")


def modernbert(r):
    heads, head = sizes(r, even=True)
    suffix = pick(r, "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
    return Case(getattr(tf, "ModernBert" + suffix), tf.ModernBertConfig(
        vocab_size=VOCABULARY, hidden_size=heads * head, num_attention_heads=heads, intermediate_size=pick(r, 31, 45),
        num_hidden_layers=pick(r, 2, 4), max_position_embeddings=70, initializer_range=0.25, local_attention=pick(r, 4, 8),
        global_attn_every_n_layers=pick(r, 1, 2, 3), num_labels=3, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
        sep_token_id=2, classifier_pooling=pick(r, "cls", "mean")), "encoder")


def like_bert_rotated(config, stem, **choices):
    """Heads of an even size."""
    def make(r):
        heads, head = sizes(r, even=True)
        suffix = pick(r, "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
        values = dict(vocab_size=VOCABULARY, hidden_size=heads * head, num_attention_heads=heads, intermediate_size=pick(r, 31, 45),
                      num_hidden_layers=pick(r, 1, 2, 3), max_position_embeddings=70, initializer_range=0.25, num_labels=pick(r, 2, 3),
                      rope_parameters=pick(r, *SCALINGS[:2]))
        for key, options in choices.items():
            values[key] = pick(r, *options)
        return Case(getattr(tf, stem + suffix), config(**values), "encoder")

    return make


def esm(r):
    heads, head = sizes(r, even=True)
    suffix = pick(r, "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
    return Case(getattr(tf, "Esm" + suffix), tf.EsmConfig(
        vocab_size=VOCABULARY, hidden_size=heads * head, num_attention_heads=heads, intermediate_size=pick(r, 31, 45),
        num_hidden_layers=pick(r, 1, 2, 3), max_position_embeddings=70, initializer_range=0.25, num_labels=pick(r, 2, 3), pad_token_id=1,
        mask_token_id=pick(r, *range(3, 9)), token_dropout=pick(r, True, False), position_embedding_type="rotary",
        emb_layer_norm_before=False), "encoder")


def jina_v3_published(r):
    """With one of the adapters, or none."""
    case = like_bert_rotated(tf.JinaEmbeddingsV3Config, "JinaEmbeddingsV3", hidden_act=("gelu",), type_vocab_size=(1,),
                             rope_parameters=SCALINGS[:1])(r)
    tasks, seed = ["retrieval.query", "retrieval.passage", "separation"], r.randrange(1000)
    task = pick(r, None, *tasks)

    def load(theirs, folder):
        remote_families.publish_jina_v3(folder, theirs, tasks, task, seed)
        return mh.models.Encoder.load(folder, task=task)

    return dataclasses.replace(case, model=tf.JinaEmbeddingsV3Model, load=load)


def jina_bert(r):
    heads, head = sizes(r)
    return Case(pick(r, remote_families.JinaBertModel, remote_families.JinaBertForMaskedLM), remote_families.JinaBertConfig(
        vocab_size=VOCABULARY, hidden_size=heads * head, num_attention_heads=heads, intermediate_size=pick(r, 31, 45),
        num_hidden_layers=pick(r, 1, 2, 3), max_position_embeddings=70, initializer_range=0.25, type_vocab_size=pick(r, 1, 2),
        feed_forward_type=pick(r, "geglu", "reglu"), hidden_act=pick(r, "gelu", "relu")), "encoder")


def nomic_bert_moe(r):
    heads, head = sizes(r, even=True)
    return Case(remote_families.NomicBertModel, remote_families.NomicBertConfig(
        vocab_size=VOCABULARY, n_embd=heads * head, n_head=heads, n_inner=pick(r, 31, 45), n_layer=pick(r, 2, 4), n_positions=70,
        initializer_range=0.25, num_experts=pick(r, 3, 8), moe_top_k=pick(r, 1, 2), moe_every_n_layers=pick(r, 2, 3),
        rotary_emb_base=pick(r, 500, 10000)), "encoder")


def t5_encoder(config, stem):
    def make(r):
        return Case(getattr(tf, stem + pick(r, "EncoderModel", "EncoderModel", "ForTokenClassification")), t5_config(r, config), "encoder")

    return make


def vit(r):
    heads, head = sizes(r)
    patch, side = pick(r, 3, 4), pick(r, 2, 3)
    return Case(pick(r, tf.ViTModel, tf.ViTForImageClassification), tf.ViTConfig(
        image_size=patch * side, patch_size=patch, num_channels=pick(r, 1, 3), hidden_size=heads * head, num_attention_heads=heads,
        intermediate_size=pick(r, 31, 45), num_hidden_layers=pick(r, 1, 2, 3), qkv_bias=pick(r, True, False), initializer_range=0.25,
        num_labels=pick(r, 2, 3), hidden_act=pick(r, "gelu", "relu")), "images")


# -- Encoder-decoder models --------------------------------------------------------------------------------------------

def seq2seq_ids():
    return dict(vocab_size=VOCABULARY, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2)


def t5_config(r, config):
    tied = pick(r, True, False)
    return config(**dict(seq2seq_ids(), decoder_start_token_id=1), d_model=pick(r, 21, 30), num_heads=pick(r, 2, 3), d_kv=pick(r, 5, 8),
                  d_ff=pick(r, 31, 45), num_layers=2, num_decoder_layers=pick(r, 1, 2), initializer_factor=0.5,
                  relative_attention_num_buckets=8, relative_attention_max_distance=pick(r, 9, 17), num_labels=3,
                  feed_forward_proj=pick(r, "relu", "gated-gelu", "gated-silu"), tie_word_embeddings=tied)


def t5(config, model):
    return lambda r: Case(model, t5_config(r, config), "seq2seq")


def like_bart(config, model, heads=(1, 2, 3), **choices):
    def make(r):
        count, head = pick(r, *heads), pick(r, 6, 10)
        values = dict(seq2seq_ids(), d_model=count * head, encoder_layers=pick(r, 1, 2), decoder_layers=pick(r, 1, 2),
                      encoder_attention_heads=count, decoder_attention_heads=count, encoder_ffn_dim=31, decoder_ffn_dim=31,
                      max_position_embeddings=64, init_std=0.25, scale_embedding=pick(r, True, False),
                      activation_function=pick(r, "gelu", "relu", "swish"), forced_eos_token_id=None, bos_token_id=0)
        for key, options in choices.items():
            values[key] = pick(r, *options)
        return Case(model, config(**values), "seq2seq")

    return make


FAMILIES = {
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "opt": opt,
    "phi": phi,
    "llama": like_llama(tf.LlamaConfig, tf.LlamaForCausalLM, tf.LlamaModel, attention_bias=(True, False), mlp_bias=(True, False),
                        head_dim=(6, 10), rope_parameters=SCALINGS),
    "mistral": like_llama(tf.MistralConfig, tf.MistralForCausalLM, tf.MistralModel, sliding_window=(None, 4), head_dim=(6, 10)),
    "qwen2": like_llama(tf.Qwen2Config, tf.Qwen2ForCausalLM, tf.Qwen2Model),
    "qwen3": like_llama(tf.Qwen3Config, tf.Qwen3ForCausalLM, tf.Qwen3Model, head_dim=(6, 10), attention_bias=(True, False)),
    "phi3": like_llama(tf.Phi3Config, tf.Phi3ForCausalLM, tf.Phi3Model, sliding_window=(None, 5)),
    "gemma": like_llama(tf.GemmaConfig, tf.GemmaForCausalLM, tf.GemmaModel, head_dim=(6, 10)),
    "gemma2": gemma_layers(tf.Gemma2Config, tf.Gemma2ForCausalLM, tf.Gemma2Model),
    "gemma3_text": gemma_layers(tf.Gemma3TextConfig, tf.Gemma3ForCausalLM, tf.Gemma3TextModel),
    "gptj": gptj,
    "stablelm": like_llama(tf.StableLmConfig, tf.StableLmForCausalLM, tf.StableLmModel, use_qkv_bias=(True, False),
                           use_parallel_residual=(True, False), rope_parameters=(
                               {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}, SCALINGS[1])),
    "starcoder2": like_llama(tf.Starcoder2Config, tf.Starcoder2ForCausalLM, tf.Starcoder2Model, use_bias=(True, False),
                             num_key_value_heads=(1,), sliding_window=(None, 4), hidden_act=("gelu_pytorch_tanh", "relu")),
    "olmo2": like_llama(tf.Olmo2Config, tf.Olmo2ForCausalLM, tf.Olmo2Model, attention_bias=(True, False), rope_parameters=SCALINGS),
    "granite": like_llama(tf.GraniteConfig, tf.GraniteForCausalLM, tf.GraniteModel, attention_bias=(True, False), mlp_bias=(True, False),
                          embedding_multiplier=(1.0, 3.5), attention_multiplier=(0.05, 0.4), residual_multiplier=(1.0, 0.3),
                          logits_scaling=(1.0, 4.0)),
    "smollm3": like_llama(tf.SmolLM3Config, tf.SmolLM3ForCausalLM, tf.SmolLM3Model, attention_bias=(True, False), mlp_bias=(True, False),
                          no_rope_layer_interval=(1, 2, 3), pad_token_id=(0,)),
    "youtu": latent(tf.YoutuConfig, tf.YoutuForCausalLM, tf.YoutuModel, rope_interleave=(True, False)),
    "minicpm3": latent(tf.MiniCPM3Config, tf.MiniCPM3ForCausalLM, tf.MiniCPM3Model, mlp_bias=(True, False), scale_emb=(1, 3.5),
                       scale_depth=(1.4, 0.7), dim_model_base=(None, 8)),
    "gpt_neo": gpt_neo,
    "falcon": falcon,
    "bloom": bloom,
    "llama both ways": like_llama(tf.LlamaConfig, tf.LlamaForCausalLM, tf.LlamaModel, is_causal=(False,)),
    "eurobert": like_llama(tf.EuroBertConfig, tf.EuroBertForMaskedLM, tf.EuroBertModel, mlp_bias=(True, False), attention_bias=(True, False),
                           mask_token_id=(2,), pad_token_id=(0,)),
    "gemma3 both ways": gemma_layers(tf.Gemma3TextConfig, tf.Gemma3ForCausalLM, tf.Gemma3TextModel, use_bidirectional_attention=(True,)),
    "bert": like_bert(tf.BertConfig, "Bert", hidden_act=("gelu", "relu")),
    "roberta": like_bert(tf.RobertaConfig, "Roberta", type_vocab_size=(1, 2)),
    "xlm-roberta": like_bert(tf.XLMRobertaConfig, "XLMRoberta", type_vocab_size=(1, 2)),
    "camembert": like_bert(tf.CamembertConfig, "Camembert", type_vocab_size=(1, 2)),
    "mpnet": like_bert(tf.MPNetConfig, "MPNet"),
    "distilbert": distilbert,
    "electra": like_bert(tf.ElectraConfig, "Electra", embedding_size=(9, 14)),
    "modernbert": modernbert,
    "albert": like_bert(tf.AlbertConfig, "Albert", embedding_size=(9, 13)),
    "nomic_bert": like_bert_rotated(tf.NomicBertConfig, "NomicBert", hidden_act=("silu", "gelu")),
    "gte": like_bert_rotated(tf.GteConfig, "Gte", hidden_act=("gelu", "silu"), type_vocab_size=(0, 1, 2)),
    "deberta-v2": like_bert(tf.DebertaV2Config, "DebertaV2", relative_attention=(True,), share_att_key=(True,), norm_rel_ebd=("layer_norm",),
                            pos_att_type=("p2c|c2p",), position_buckets=(6, 8, 30), max_relative_positions=(-1, 20),
                            position_biased_input=(True, False), type_vocab_size=(0, 2)),
    "esm": esm,
    "jina_embeddings_v3": like_bert_rotated(tf.JinaEmbeddingsV3Config, "JinaEmbeddingsV3", hidden_act=("gelu", "relu"),
                                            type_vocab_size=(1, 2)),
    "jina_v3 adapters": jina_v3_published,
    "jina_bert": jina_bert,
    "nomic_bert_moe": nomic_bert_moe,
    "t5 encoder": t5_encoder(tf.T5Config, "T5"),
    "vit": vit,
    "marian": like_bart(tf.MarianConfig, tf.MarianMTModel),
    "pegasus": like_bart(tf.PegasusConfig, tf.PegasusForConditionalGeneration),
    "bart": like_bart(tf.BartConfig, tf.BartForConditionalGeneration),
    "mbart": like_bart(tf.MBartConfig, tf.MBartForConditionalGeneration),
    "m2m_100": like_bart(tf.M2M100Config, tf.M2M100ForConditionalGeneration),
    "t5": t5(tf.T5Config, tf.T5ForConditionalGeneration),
    "mt5": t5(tf.MT5Config, tf.MT5ForConditionalGeneration),
}


# -- Comparison --------------------------------------------------------------------------------------------------------

def write(case, folder, dtype, sharded, seed):
    """The model in its storage dtype, and as transformers reads it back."""
    torch.manual_seed(seed)
    model = case.model(case.config)
    with torch.no_grad():  # biases and norms as trained models have them, not 0 and 1
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias += 0.2 * torch.randn_like(model.final_logits_bias)
        model.final_logits_bias[..., case.config.eos_token_id] += 1.5  # or no sentence would end
    constants = {name: p.clone() for name, p in model.named_parameters() if name.endswith("embed_positions.weight") and not p.requires_grad}
    model.to(dtype).save_pretrained(folder, **({"max_shard_size": "15KB"} if sharded else {}))
    theirs = case.model.from_pretrained(folder, dtype=torch.float32).eval()
    theirs.load_state_dict(constants, strict=False)  # Pegasus's sinusoids, which the file rounds and we compute
    for name in constants:
        theirs.get_parameter(name).requires_grad = False
    return theirs


def inputs(case, r):
    def tokens(count, length):
        return [[r.randrange(3, VOCABULARY) for _ in range(length)] for _ in range(count)]

    if case.kind == "encoder":
        return [tokens(1, length)[0] for length in (7, 1, 13)]
    if case.kind == "images":
        shape = (2, case.config.num_channels, case.config.image_size, case.config.image_size)
        return np.random.default_rng(r.randrange(1000)).standard_normal(shape).astype(np.float32)
    if case.kind == "seq2seq":
        return tokens(2, 9), tokens(2, 7)
    return tokens(2, 11)


def first_output(out):
    return out.logits if "logits" in out else out.last_hidden_state


def their_outputs(model, case, x):
    if case.kind == "encoder":  # one at a time: no padding
        parts = [first_output(model(torch.tensor([ids]))) for ids in x]
        return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
    if case.kind == "images":
        return first_output(model(torch.tensor(x)))
    if case.kind == "seq2seq":
        return model(input_ids=torch.tensor(x[0]), decoder_input_ids=torch.tensor(x[1]), use_cache=False).logits
    return first_output(model(torch.tensor(x), use_cache=False))


def our_outputs(model, case, x):
    if case.kind in ("encoder", "images"):
        return model.features(x) if model.config.head == "none" else model.logits(x)
    if case.kind == "seq2seq":
        return model(np.array(x[0]), np.array(x[1]))
    return model(np.array(x)) if model.config.head else model.features(np.array(x))


def difference(got, want):
    return float(np.abs(got - want).max()) / max(1.0, float(np.abs(want).max()))


def split_phi3(grads, config):
    """As we save Phi 3: under Llama's names."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rows, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    split = {}
    for name, grad in grads.items():
        if "qkv_proj" in name:
            parts = np.split(grad, [rows, rows + keys])
            split |= {name.replace("qkv_proj", p): part for p, part in zip(("q_proj", "k_proj", "v_proj"), parts)}
        elif "gate_up_proj" in name:
            split |= {name.replace("gate_up_proj", p): part for p, part in zip(("gate_proj", "up_proj"), np.split(grad, 2))}
        else:
            split[name] = grad
    return split


def stored_gradients(model, folder):
    """By the names that files have, where those of parameters are others."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    model.save_pretrained(folder)
    return load_file(pathlib.Path(folder) / "model.safetensors")


def our_gradients(model, outputs, folder):
    """By the names of the family: a model whose weights are the gradients is saved."""
    state = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        state[name] = np.zeros(parameter.shape, np.float32) if grad is None else np.asarray(grad)
    model.load_state_dict(state)
    model.save(folder)
    return load_file(pathlib.Path(folder) / "model.safetensors")


def gradient_difference(ours, theirs):
    """theirs: of every name, those of tied weights too, which have one array."""
    largest = max(float(np.abs(grad).max()) for grad in theirs.values())
    compared = {id(grad) for name, grad in theirs.items() if name in ours}
    worst = 0.0
    for name, want in theirs.items():
        if name == "lm_head.weight" and "embed_out.weight" in ours:  # GPT-NeoX in files
            name = "embed_out.weight"
        if name not in ours:  # a tied weight has its gradient under another name
            if np.abs(want).max() > 0 and id(want) not in compared:
                raise AssertionError(f"no gradient of {name}")
            continue
        scale = max(float(np.abs(want).max()), 0.01 * largest)
        worst = max(worst, float(np.abs(ours[name] - want).max()) / scale)
    return worst


def generated(theirs, ours, case, x, steps=16):
    """(equal, all) rows of greedy generation."""
    options = dict(do_sample=False, max_new_tokens=steps, num_beams=1)
    if case.kind == "seq2seq":
        end = case.config.eos_token_id
        want = theirs.generate(torch.tensor(x[0]), pad_token_id=case.config.pad_token_id, suppress_tokens=[case.config.pad_token_id], **options)
        want = [row[1:row.index(end, 1)] if end in row[1:] else row[1:] for row in want.tolist()]
        got = [best[0][0] for best in ours.beam_search(x[0], beam_size=1, max_length=steps, suppress=[[case.config.pad_token_id]])]
    else:
        want = theirs.generate(torch.tensor(x), pad_token_id=0, eos_token_id=None, **options)[:, len(x[0]):].tolist()
        got = ours.generate(x, max_new_tokens=steps, temperature=0)
    # A sentence that does not end within the steps is compared as far as both have it.
    def is_equal(g, w):
        return list(g) == w if len(w) < steps else len(g) >= steps - 1 and list(g)[:steps - 1] == w[:steps - 1]

    return sum(is_equal(g, w) for g, w in zip(got, want)), len(want)


def compare(case, dtype, sharded, seed, root):
    r = random.Random(seed)
    folder, back, grads = (os.path.join(root, name) for name in ("theirs", "ours", "gradients"))
    theirs = write(case, folder, dtype, sharded, seed)
    ours = case.load(theirs, os.path.join(root, "published")) if case.load else mh.models.AutoModel.from_pretrained(folder)
    x = inputs(case, r)
    want = their_outputs(theirs, case, x)
    seed_tensor = torch.randn_like(want)
    (want * seed_tensor).sum().backward()
    arrays = {id(p): p.grad.numpy() for p in theirs.parameters() if p.grad is not None}
    their_grads = {name: arrays[id(p)] for name, p in theirs.named_parameters(remove_duplicate=False) if id(p) in arrays}
    for _, parameter in ours.named_parameters():
        parameter.requires_grad = True
    with mh.Tape() as tape:
        got = our_outputs(ours, case, x)
        tape.backward(got, seed=seed_tensor.numpy())
    want = want.detach().numpy()
    result = {"outputs": difference(np.asarray(got).reshape(want.shape), want)}
    if case.config.model_type == "phi3":
        their_grads = split_phi3(their_grads, case.config)
    if case.kind == "images" or case.config.model_type in ("nomic_bert", "gte", "jina_embeddings_v3"):  # classes have other names than files
        their_grads = stored_gradients(theirs, os.path.join(root, "renamed"))
    ours.save(back)
    with open(os.path.join(back, "config.json")) as file:
        named_in = remote_families if case.model.__module__ == remote_families.__name__ else tf
        kind = getattr(named_in, json.load(file)["architectures"][0])
    with torch.no_grad():
        again = their_outputs(kind.from_pretrained(back).eval(), case, x).numpy()
    result["saved"] = difference(again, want)
    result["tokens"] = (0, 0)
    if case.kind == "seq2seq" or (case.kind == "decoder" and ours.config.head and ours.config.causal):
        result["tokens"] = generated(theirs, ours, case, x)
    result["gradients"] = gradient_difference(our_gradients(ours, got, grads), their_grads)
    return result


def run(name, configs, seed):
    """The worst of each comparison over `configs` random models."""
    worst = {"outputs": 0.0, "gradients": 0.0, "saved": 0.0, "tokens": (0, 0)}
    for i in range(configs):
        r = random.Random(f"{name} {seed} {i}")
        case = FAMILIES[name](r)
        with tempfile.TemporaryDirectory() as root:
            result = compare(case, STORAGE[i % 3], i % 2 == 1, seed * 1000 + i, root)
        for key, value in result.items():
            worst[key] = tuple(np.add(worst[key], value)) if key == "tokens" else max(worst[key], value)
        if any(result[key] > bound for key, bound in BOUNDS.items()) or result["tokens"][0] < result["tokens"][1]:
            print(f"  {name} {i}: {case.model.__name__} {STORAGE[i % 3]} {result}\n  {case.config.to_diff_dict()}", file=sys.stderr)
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="default: all")
    parser.add_argument("--configs", type=int, default=3, help="random models of each (default 3)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tf.logging.set_verbosity_error()
    tf.logging.disable_progress_bar()
    print(f"{'family':<14}{'outputs':>10}{'gradients':>11}{'saved':>10}{'tokens':>9}")
    failed = False
    for name in arguments.families or FAMILIES:
        try:
            worst = run(name, arguments.configs, arguments.seed)
        except Exception as error:
            failed = True
            print(f"{name:<14} {type(error).__name__}: {error}", flush=True)
            continue
        equal, all_rows = worst["tokens"]
        bad = any(worst[key] > bound for key, bound in BOUNDS.items()) or equal < all_rows
        failed |= bad
        tokens = f"{equal}/{all_rows}" if all_rows else "-"
        print(f"{name:<14}{worst['outputs']:>10.1e}{worst['gradients']:>11.1e}{worst['saved']:>10.1e}{tokens:>9}{'  !' if bad else ''}",
              flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
