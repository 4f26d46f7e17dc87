"""The settings of complete training runs; train.language_model_settings(preset) and the like give their values."""

from typing import TypedDict

from .nn import Attention


class RunSettings(TypedDict, total=False):
    dropout: float
    attention_dropout: float
    steps: int
    epochs: float
    time: str
    accumulate: int
    shards: int
    optimizer: str
    schedule: str
    lr: float
    warmup: int
    final_ratio: float
    decay_share: float
    beta1: float
    beta2: float
    eps: float
    eps_hat: bool
    momentum: float
    weight_decay: float
    clip: float
    label_smoothing: float
    precision: str
    seed: int
    log_every: int
    eval_every: int
    save_every: int
    keep: int
    patience: int
    best: str


class LanguageModelSettings(RunSettings, total=False):
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    ff: int
    context: int
    window: int
    positions: str
    rotary_base: float
    rotary_fraction: float
    norm: str
    norm_first: bool
    block: str
    final_norm: bool
    activation: str
    gated: bool
    attention_bias: bool
    qk_norm: bool
    out_bias: bool
    ff_bias: bool
    head_bias: bool
    tie_embeddings: bool
    scale_embeddings: bool
    ff_dropout: float
    init_std: float
    scaled_residual_init: bool
    default_linear_init: bool
    attention: str | type[Attention]
    latent_dim: int
    query_latent_dim: int
    tokenizer: str
    vocab_size: int
    validation_share: float
    validation_blocks: int
    batch: int
    context_shards: int
    eval_windows: int
    lora_rank: int
    lora_alpha: float
    lora_targets: str


class Seq2SeqSettings(RunSettings, total=False):
    encoder_layers: int
    decoder_layers: int
    heads: int
    width: int
    ff: int
    max_positions: int
    positions: str
    norm: str
    norm_first: bool
    final_norm: bool
    activation: str
    gated: bool
    bias: bool
    output_bias: bool
    tie_output: bool
    scale_embeddings: bool
    ff_dropout: float
    init_std: float
    tokenizer: str
    vocab_size: int
    shared_vocabulary: bool
    max_tokens: int
    batch_tokens: int
    bucket: int
    average: int
    eval_pairs: int
    lora_rank: int
    lora_alpha: float
    lora_targets: str


class MaskedLmSettings(RunSettings, total=False):
    layers: int
    heads: int
    width: int
    ff: int
    context: int
    batch: int
    max_length: int
    mask_share: float
    whole_words: bool
    vocab_size: int
    validation_share: float
    eval_windows: int
    lora_rank: int
    lora_alpha: float
    lora_targets: str


class ClassifierSettings(RunSettings, total=False):
    batch: int
    max_length: int
    freeze: bool
    head_only: bool
    head_c: float
    regression: bool
    multi_label: bool
    balanced: bool
    labels_as_names: bool
    eval_texts: int
    lora_rank: int
    lora_alpha: float
    lora_targets: str


class TaggerSettings(RunSettings, total=False):
    batch: int
    max_length: int
    eval_texts: int
    lora_rank: int
    lora_alpha: float
    lora_targets: str


class RerankerSettings(RunSettings, total=False):
    batch: int
    max_length: int
    ranking: str
    negatives: int
    miner: str
    eval_queries: int
    lora_rank: int
    lora_alpha: float
    lora_targets: str


class ImageClassifierSettings(RunSettings, total=False):
    image_size: int
    patch_size: int
    channels: int
    layers: int
    heads: int
    width: int
    ff: int
    batch: int
    eval_images: int


class EmbedderSettings(RunSettings, total=False):
    batch: int
    max_length: int
    temperature: float
    symmetric: bool
    chunk: int
    matryoshka: str
    eval_pairs: int
    lora_rank: int
    lora_alpha: float
    lora_targets: str
