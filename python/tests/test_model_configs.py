"""Model folders as transformers writes them, every key of config.json that changes results altered: either our
logits are transformers', or the folder is refused by the name of a key."""

import json
import os
import random

import numpy as np
import pytest

import multihead as mh

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ROPES = [
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8, "rope_theta": 10000.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 10000.0},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8, "rope_theta": 300.0,
     "beta_fast": 3.0, "beta_slow": 0.5, "truncate": False, "attention_factor": 1.3},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 10000.0,
     "mscale": 0.7, "mscale_all_dim": 1.0},
    {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
]
ACTIVATIONS = ["gelu", "gelu_new", "relu", "silu", "swish", "gelu_pytorch_tanh", "linear", "tanh", "quick_gelu"]
# Keys that no class of transformers reads today, but that would mean something.
STRANGE = {"attn_logit_softcapping": [30.0], "use_parallel_residual": [True], "logit_scale": [0.5],
           "quantization_config": [{"quant_method": "none_of_ours"}]}
LLAMA = {
    "num_key_value_heads": [1, 2, 4], "head_dim": [6, 16], "hidden_act": ACTIVATIONS, "rms_norm_eps": [1e-3],
    "rope_parameters": ROPES, "tie_word_embeddings": [True], "intermediate_size": [36], "num_hidden_layers": [1, 3],
    "max_position_embeddings": [64], "vocab_size": [53],
}
BASE = dict(vocab_size=47, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2, pad_token_id=0)
WINDOWS = {"use_sliding_window": [True], "max_window_layers": [0, 1, 9], "sliding_window": [3, 4096],
           "layer_types": [["full_attention"] * 2, ["full_attention", "sliding_attention"]]}
FAMILIES = {
    "gpt2": (dict(vocab_size=47, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2), {
        "n_inner": [20, None], "activation_function": ACTIVATIONS, "layer_norm_epsilon": [1e-3],
        "tie_word_embeddings": [False], "scale_attn_weights": [False], "scale_attn_by_inverse_layer_idx": [True],
        "reorder_and_upcast_attn": [True], "add_cross_attention": [True], "n_head": [2, 8], "n_positions": [16],
        "n_layer": [1, 3], "is_decoder": [True]}),
    "llama": (BASE, LLAMA | {"attention_bias": [True], "mlp_bias": [True], "pretraining_tp": [2],
                             "sliding_window": [3]}),
    "mistral": (BASE, LLAMA | {"sliding_window": [3, 17, None], "num_key_value_heads": [1, 2, 4, None]}),
    "qwen2": (BASE, LLAMA | WINDOWS),
    "qwen3": (BASE | {"head_dim": 8}, LLAMA | WINDOWS | {"attention_bias": [True]}),
    "marian": (dict(vocab_size=47, decoder_vocab_size=47, d_model=32, encoder_layers=2, decoder_layers=2,
                    encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40,
                    max_position_embeddings=32, pad_token_id=46, eos_token_id=0, decoder_start_token_id=46,
                    forced_eos_token_id=0, activation_function="swish"), {
        "activation_function": ACTIVATIONS, "scale_embedding": [True], "encoder_layers": [1, 3],
        "decoder_layers": [1, 3], "decoder_attention_heads": [2], "encoder_ffn_dim": [24],
        "share_encoder_decoder_embeddings": [False], "tie_word_embeddings": [False], "decoder_vocab_size": [51],
        "decoder_start_token_id": [3], "forced_eos_token_id": [5, None], "eos_token_id": [7],
        "normalize_before": [True], "static_position_embeddings": [False], "add_final_layer_norm": [True],
        "max_position_embeddings": [64]}),
}


def jittered(config, seed):
    """A model whose every weight, bias and norm is its own."""
    torch.manual_seed(seed)
    kind = transformers.MarianMTModel if config.model_type == "marian" else transformers.AutoModelForCausalLM
    model = kind(config) if config.model_type == "marian" else kind.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.15 * torch.randn_like(parameter)
    if config.model_type == "marian":
        model.final_logits_bias += 0.3 * torch.randn_like(model.final_logits_bias)
    return model


def as_version_4(folder):
    path = os.path.join(folder, "config.json")
    with open(path) as file:
        config = json.load(file)
    rope = config.pop("rope_parameters", None)
    if rope is not None:
        config["rope_theta"] = rope.pop("rope_theta", 10000.0)
        kind = rope.pop("rope_type", "default")
        config["rope_scaling"] = None if kind == "default" and not rope else {"type": kind, **rope}
    with open(path, "w") as file:
        json.dump(config, file)


def logits(folder, family):
    """transformers' and ours."""
    ids = np.random.default_rng(3).integers(1, 40, (2, 14))
    if family == "marian":
        theirs = transformers.MarianMTModel.from_pretrained(folder).eval()
        target = np.random.default_rng(4).integers(1, 40, (2, 9))
        with torch.no_grad():
            want = theirs(input_ids=torch.from_numpy(ids), decoder_input_ids=torch.from_numpy(target)).logits
        return want.numpy(), lambda: np.asarray(mh.models.Seq2Seq.load(folder)(ids, target))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        want = theirs(torch.from_numpy(ids)).logits
    return want.numpy(), lambda: np.asarray(mh.models.LanguageModel.load(folder)(ids))


def changes_of(family, count):
    """Every value alone, then random ones together."""
    choices = FAMILIES[family][1] | STRANGE
    singles = [{key: value} for key, values in choices.items() for value in values]
    rng = random.Random(family)
    mixed = []
    for _ in range(count):
        keys = rng.sample(sorted(FAMILIES[family][1]), rng.choice([2, 2, 3]))
        mixed.append({key: rng.choice(FAMILIES[family][1][key]) for key in keys})
    return [{}] + singles + mixed


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_or_refused_by_name(family, tmp_path):
    transformers.logging.set_verbosity_error()
    counts = {"equal": 0, "refused": 0, "refused by transformers": 0}
    for number, changes in enumerate(changes_of(family, int(os.environ.get("MULTIHEAD_CONFIGS", "12")))):
        folder = str(tmp_path / str(number))
        try:
            config = transformers.AutoConfig.for_model(family, **(FAMILIES[family][0] | changes))
            jittered(config, number).save_pretrained(folder)
            if number % 3 == 2:
                as_version_4(folder)
            want, ours = logits(folder, family)
        except Exception:  # noqa: BLE001 what transformers cannot make or read is nobody's
            counts["refused by transformers"] += 1
            continue
        try:
            got = ours()
        except Exception as error:  # noqa: BLE001
            names = list(changes) + ["rope_scaling"] * ("rope_parameters" in changes)
            assert any(name in str(error) for name in names), (changes, str(error))
            counts["refused"] += 1
            continue
        np.testing.assert_allclose(got, want, atol=1e-5 * max(1, np.abs(want).max()), rtol=0, err_msg=str(changes))
        counts["equal"] += 1
    print(family, counts)
    assert counts["equal"] >= 15 and counts["refused"] >= 4
