"""Multi-head attention and Transformers on a CPU: the C++ library's names, defaults and errors.

Every function takes Tensors, NumPy arrays or any CPU array with DLPack (PyTorch, JAX), without a copy where the
memory allows it, and returns Tensors: numpy.asarray(tensor) and torch.from_dlpack(tensor) share their memory.
"""

from . import _core
from ._core import (
    AttentionCapture,
    DtypeError,
    FormatError,
    IoError,
    Mask,
    NoTape,
    NumericError,
    Rng,
    RotaryTable,
    ShapeError,
    Tape,
    Tensor,
    add,
    alibi_slopes,
    attention,
    attention_profile,
    attention_ragged,
    blocks,
    causal,
    concat,
    cpu_name,
    cross_entropy,
    div,
    documents,
    drop,
    dropout,
    embedding,
    exp,
    explain,
    float32_matmul_precision,
    from_labml_mask,
    from_torch_key_padding_mask,
    from_torch_mha_mask,
    from_torch_sdpa_mask,
    gelu,
    gelu_tanh,
    has_tiles,
    isa,
    keep,
    layer_norm,
    lengths,
    linear,
    log,
    log_softmax,
    matmul,
    mean,
    memory_stats,
    mul,
    num_threads,
    ones,
    prefix,
    query_lengths,
    rand,
    randn,
    release_cached_memory,
    relu,
    rms_norm,
    rotary,
    rotary_table,
    set_float32_matmul_precision,
    set_num_threads,
    sigmoid,
    silu,
    softmax,
    sqrt,
    square,
    sub,
    sum,
    tanh,
    tensor,
    where,
    window,
    zeros,
)
from ._core import __version__
from . import models, nn, optim
from ._trace import mask_mod, score_mod
from .io import load_safetensors, save_safetensors
from .onnx import onnx_attention, rms_normalization, rotary_embedding
from .text import Tokenizer
from .train import train_language_model
from .view import AttentionView

__all__ = [name for name in dir() if not name.startswith("_") and name not in ("io", "onnx", "text", "train", "view")]


def __getattr__(name):
    # PyTorch takes seconds to import; it comes only when asked for.
    if name == "torch":
        import importlib

        return importlib.import_module(".torch", __name__)
    raise AttributeError(f"module 'multihead' has no attribute '{name}'")
