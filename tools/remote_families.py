"""Families that transformers lacks, whose folders name code of their own: the same models written anew in PyTorch, to
compare with. Names of classes, weights and fields of config.json are those of the published folders. Jina Embeddings v3 is
in transformers, but for the adapters of the published folder.

Jina Embeddings v2: Günther et al. 2023, https://arxiv.org/abs/2310.19923. Nomic Embed v2: Nussbaum & Duderstadt 2025,
https://arxiv.org/abs/2502.07972.
"""
import json
import pathlib

import numpy as np
import torch
import transformers as tf
from safetensors.numpy import load_file, save_file
from torch import nn
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput


def attend(q, k, v, bias=None):
    """[B, T, heads, dim] each, bias [heads, T, T] -> [B, T, heads · dim]"""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    weights = (scores if bias is None else scores + bias).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)


class JinaBertConfig(tf.BertConfig):
    def __init__(self, feed_forward_type="geglu", emb_pooler="mean", **options):
        super().__init__(**options)
        self.position_embedding_type = "alibi"
        self.feed_forward_type = feed_forward_type
        self.emb_pooler = emb_pooler


def alibi(heads, length):
    """The biases of Press et al. 2022, on both sides: [heads, length, length]."""
    def powers(count):
        return [2 ** (-8 * (i + 1) / count) for i in range(count)]

    whole = 2 ** (heads.bit_length() - 1)
    slopes = powers(whole) + powers(2 * whole)[::2][:heads - whole]
    at = torch.arange(length)
    return -torch.tensor(slopes)[:, None, None] * (at[None] - at[:, None]).abs()


class JinaLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, inner = c.hidden_size, c.intermediate_size
        own = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value")})
        out = nn.ModuleDict({"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width, c.layer_norm_eps)})
        self.attention = nn.ModuleDict({"self": own, "output": out})
        self.mlp = nn.ModuleDict({"gated_layers": nn.Linear(width, 2 * inner, bias=False), "wo": nn.Linear(inner, width),
                                  "layernorm": nn.LayerNorm(width, c.layer_norm_eps)})
        self.heads = c.num_attention_heads
        self.act = F.gelu if c.feed_forward_type == "geglu" else F.relu

    def forward(self, x, bias):
        q, k, v = (self.attention["self"][name](x).unflatten(-1, (self.heads, -1)) for name in ("query", "key", "value"))
        out = self.attention["output"]
        x = out["LayerNorm"](x + out["dense"](attend(q, k, v, bias)))
        gate, up = self.mlp["gated_layers"](x).chunk(2, -1)
        return self.mlp["layernorm"](x + self.mlp["wo"](self.act(gate) * up))


class JinaBertModel(tf.PreTrainedModel):
    config_class = JinaBertConfig
    base_model_prefix = "bert"

    def __init__(self, config, add_pooling_layer=True):
        super().__init__(config)
        width = config.hidden_size
        self.embeddings = nn.ModuleDict({"word_embeddings": nn.Embedding(config.vocab_size, width),
                                         "token_type_embeddings": nn.Embedding(config.type_vocab_size, width),
                                         "LayerNorm": nn.LayerNorm(width, config.layer_norm_eps)})
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList([JinaLayer(config) for _ in range(config.num_hidden_layers)])})
        if add_pooling_layer:
            self.pooler = nn.ModuleDict({"dense": nn.Linear(width, width)})
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings["word_embeddings"]

    def forward(self, input_ids, token_type_ids=None, output_hidden_states=None):
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.embeddings["LayerNorm"](self.embeddings["word_embeddings"](input_ids) + self.embeddings["token_type_embeddings"](types))
        bias = alibi(self.config.num_attention_heads, input_ids.shape[1]).to(x)
        for layer in self.encoder["layer"]:
            x = layer(x, bias)
        return BaseModelOutput(last_hidden_state=x, hidden_states=(x,))


class JinaBertForMaskedLM(tf.PreTrainedModel):
    config_class = JinaBertConfig
    base_model_prefix = "bert"
    _tied_weights_keys = {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
                          "cls.predictions.decoder.bias": "cls.predictions.bias"}

    def __init__(self, config):
        super().__init__(config)
        width = config.hidden_size
        self.bert = JinaBertModel(config, add_pooling_layer=False)
        transform = nn.ModuleDict({"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width, config.layer_norm_eps)})
        self.cls = nn.ModuleDict({"predictions": nn.ModuleDict({"transform": transform, "decoder": nn.Linear(width, config.vocab_size)})})
        self.cls["predictions"].bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.post_init()

    def get_input_embeddings(self):
        return self.bert.get_input_embeddings()

    def get_output_embeddings(self):
        return self.cls["predictions"]["decoder"]

    def forward(self, input_ids, token_type_ids=None, output_hidden_states=None):
        x, head = self.bert(input_ids, token_type_ids).last_hidden_state, self.cls["predictions"]
        y = head["transform"]["LayerNorm"](tf.activations.ACT2FN[self.config.hidden_act](head["transform"]["dense"](x)))
        return MaskedLMOutput(logits=y @ self.get_input_embeddings().weight.T + head.bias, hidden_states=(x,))


class NomicBertConfig(tf.PretrainedConfig):
    model_type = "nomic_bert"

    def __init__(self, vocab_size=61, n_positions=64, n_embd=32, n_inner=64, n_layer=2, n_head=2, layer_norm_epsilon=1e-5, num_experts=8,
                 moe_top_k=2, moe_every_n_layers=2, type_vocab_size=1, rotary_emb_base=10000, initializer_range=0.02, **options):
        super().__init__(**options)
        self.__dict__.update({name: value for name, value in locals().items() if name not in ("self", "options", "__class__")})
        self.activation_function = "gelu"
        self.qkv_proj_bias = self.mlp_fc1_bias = self.mlp_fc2_bias = True
        self.prenorm = self.causal = self.rotary_emb_interleaved = self.moe_normalize_expert_weights = False
        self.rotary_emb_fraction = 1.0


class NomicExperts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.mlp = nn.Module()
        self.mlp.w1 = nn.Parameter(c.initializer_range * torch.randn(c.num_experts * c.n_inner, c.n_embd))
        self.mlp.w2 = nn.Parameter(c.initializer_range * torch.randn(c.num_experts * c.n_inner, c.n_embd))
        self.bias = nn.Parameter(torch.zeros(c.n_embd))


class NomicLayer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.c = c
        self.attn = nn.ModuleDict({"Wqkv": nn.Linear(c.n_embd, 3 * c.n_embd), "out_proj": nn.Linear(c.n_embd, c.n_embd)})
        self.has_experts = index % c.moe_every_n_layers == 1
        if self.has_experts:
            router = nn.ModuleDict({"layer": nn.Linear(c.n_embd, c.num_experts, bias=False)})
            self.mlp = nn.ModuleDict({"router": router, "experts": NomicExperts(c)})
        else:
            self.mlp = nn.ModuleDict({"fc1": nn.Linear(c.n_embd, c.n_inner), "fc2": nn.Linear(c.n_inner, c.n_embd)})
        self.norm1, self.norm2 = (nn.LayerNorm(c.n_embd, c.layer_norm_epsilon) for _ in range(2))

    def choose(self, x):
        """Every expert computes all tokens; those that are not chosen count nothing."""
        weights, chosen = self.mlp["router"]["layer"](x).softmax(-1).topk(self.c.moe_top_k)
        shares = torch.zeros(*x.shape[:-1], self.c.num_experts).scatter(-1, chosen, weights)
        w1, w2 = (w.unflatten(0, (self.c.num_experts, -1)) for w in (self.mlp["experts"].mlp.w1, self.mlp["experts"].mlp.w2))
        inner = F.gelu(torch.einsum("btd,ehd->bteh", x, w1))
        return torch.einsum("bteh,ehd,bte->btd", inner, w2, shares) + self.mlp["experts"].bias

    def forward(self, x, cos, sin):
        q, k, v = self.attn["Wqkv"](x).unflatten(-1, (3, self.c.n_head, -1)).unbind(2)

        def rotate(y):
            a, b = y.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        x = self.norm1(x + self.attn["out_proj"](attend(rotate(q), rotate(k), v)))
        return self.norm2(x + (self.choose(x) if self.has_experts else self.mlp["fc2"](F.gelu(self.mlp["fc1"](x)))))


class NomicBertModel(tf.PreTrainedModel):
    config_class = NomicBertConfig
    base_model_prefix = "nomic_bert"

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.ModuleDict({"word_embeddings": nn.Embedding(config.vocab_size, config.n_embd),
                                         "token_type_embeddings": nn.Embedding(config.type_vocab_size, config.n_embd)})
        self.emb_ln = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList([NomicLayer(config, i) for i in range(config.n_layer)])})
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings["word_embeddings"]

    def forward(self, input_ids, token_type_ids=None, output_hidden_states=None):
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.emb_ln(self.embeddings["word_embeddings"](input_ids) + self.embeddings["token_type_embeddings"](types))
        half = self.config.n_embd // self.config.n_head // 2
        frequency = self.config.rotary_emb_base ** (-torch.arange(half) / half)
        angles = (torch.arange(input_ids.shape[1])[:, None] * frequency)[:, None]
        for layer in self.encoder["layers"]:
            x = layer(x, angles.cos(), angles.sin())
        return BaseModelOutput(last_hidden_state=x, hidden_states=(x,))


def publish_jina_v3(folder, model, tasks, task, seed, rank=4, alpha=6):
    """The folder that Jina publishes: beside weights low-rank changes for each task, which make `model` of them with `task`
    (None: without any)."""
    rng = np.random.default_rng(seed)
    model.save_pretrained(folder)
    folder = pathlib.Path(folder)
    published = {}
    for name, x in load_file(folder / "model.safetensors").items():
        if x.ndim != 2 or not name.endswith(".weight"):
            published["roberta." + name] = x
            continue
        left, right = (rng.normal(scale=.3, size=(len(tasks), *shape)).astype(np.float32) for shape in ((x.shape[0], rank), (rank, x.shape[1])))
        change = left[tasks.index(task)].astype(np.float64) @ right[tasks.index(task)] * (alpha / rank) if task else 0
        stem = f"roberta.{name.removesuffix('.weight')}.parametrizations.weight."
        published[stem + "original"] = (x - change).astype(np.float32)
        published[stem + "0.lora_A"], published[stem + "0.lora_B"] = (left, right) if "embeddings." in name else (right, left)
    save_file(published, folder / "model.safetensors")
    saved = model.config.to_dict()
    same = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings",
            "initializer_range", "type_vocab_size", "layer_norm_eps", "hidden_act")
    (folder / "config.json").write_text(json.dumps({
        "model_type": "xlm-roberta", "architectures": ["XLMRobertaLoRA"], "position_embedding_type": "rotary",
        "rotary_emb_base": saved["rope_parameters"]["rope_theta"], "lora_adaptations": tasks, "task_instructions": dict.fromkeys(tasks, ""),
        "lora_rank": rank, "lora_alpha": alpha, "lora_dropout_p": 0.0, "lora_main_params_trainable": False, "load_trained_adapters": True,
        "matryoshka_dimensions": [8, 16], "truncate_dim": None, "emb_pooler": "mean", "use_flash_attn": True, "use_reentrant": False,
        **{key: saved[key] for key in same}}))
