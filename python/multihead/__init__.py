"""Multi-head attention and Transformers on a CPU: the C++ library's names, defaults and errors.

Every function takes Tensors, NumPy arrays or any CPU array with DLPack (PyTorch, JAX), without a copy where
possible, and returns Tensors: numpy.asarray(tensor) and torch.from_dlpack(tensor) share their memory.
"""

import sys as _sys

from . import _main_interpreter  # before the extension and NumPy: it refuses subinterpreters
from . import _core
from . import _copies, _parts, _printing, _subclasses, _tensor_methods, _tensor_numpy

_copies.install()
_parts.install()
_printing.install()
_subclasses.install()
_tensor_methods.install()
_tensor_numpy.install()

from ._core import (  # noqa: E402
    AttentionCapture, DtypeError, FormatError, IoError, Mask, NoTape, NumericError, Points, Rng, RotaryScaling,
    RotaryTable, ShapeError, Tape, Tensor, abs, activate, activate_dropout, add, add_dropout, add_layer_norm,
    add_rms_norm, add_scalar, alibi_slopes, argmax, argmin, argsort, attention, attention_composed, attention_packed,
    attention_profile, attention_ragged, autocast, blocks, cast, causal, clamp, concat, contiguous, conv1d, cpu_name,
    cross_entropy, cumsum, div, documents, drop, dropout, embedding, equal, exp, expand, explain,
    float32_matmul_precision, from_labml_mask, from_torch_key_padding_mask, from_torch_mha_mask, from_torch_sdpa_mask,
    gated, gelu, gelu_tanh, glu, greater, greater_equal, has_tiles, isa, keep, layer_norm, lengths, less, less_equal,
    linear, linear_attention, linear_cross_entropy, log, log_sigmoid, log_softmax, masked_scores, masked_softmax,
    matmul, max, maximum, mean, memory_stats, merge_attention, min, minimum, missing_threads, mul, neg, nonzero,
    not_equal, num_threads, ones, pad, permute, plan, pow, prefix, query_lengths, rand, randn, release_cached_memory,
    relu, reshape, rms_norm, roll, rotary, rotary_amplitude, rotary_frequencies, rotary_table, scale,
    set_float32_matmul_precision, set_num_threads, shift, sigmoid, silu, slice, softmax, softplus, solve_triangular,
    sort, split, sqrt, square, sub, sum, take, take_along_axis, tanh, tensor, topk, transpose, where, window, zeros,
)  # fmt: skip
from ._core import __version__
from . import distributed, io, lens, models, nn, optim, text, train
from ._inventing import ScoreRows, attention_rows, block_masses, compare, custom_op, gradcheck, top_blocks
from ._trace import mask_mod, score_mod
from ._trace.draws import random
from .generate import TextGenerator
from .embed import CrossEncoder, ImageClassifier, MultiVectorEncoder, SentenceEncoder, SparseEncoder, TokenClassifier
from .models import AutoModel
from .io import load_safetensors, save_safetensors
from .nn import masked_X
from .serve import Server
from .onnx import onnx_attention, onnx_linear_attention, rms_normalization, rotary_embedding
from .text import AutoTokenizer, Tokenizer
from .train import (
    train_classifier,
    train_embedder,
    train_image_classifier,
    train_language_model,
    train_masked_lm,
    train_reranker,
    train_seq2seq,
    train_tagger,
)
from .view import AttentionPage, AttentionView, attend

__all__ = [name for name in dir() if not name.startswith("_") and name not in ("generate", "onnx", "serve", "view")]

for _module in [module for name, module in _sys.modules.items() if name.startswith("multihead.")]:
    # dir() lists what a module offers, not what it imports.
    if hasattr(_module, "__all__"):
        _module.__dir__ = lambda names=_module.__all__: sorted(names)


def __getattr__(name):
    # PyTorch takes seconds to import; imported on demand.
    if name == "torch":
        import importlib

        return importlib.import_module(".torch", __name__)
    raise AttributeError(f"module 'multihead' has no attribute '{name}'")
