"""multihead under PyTorch: attention on the CPU with PyTorch's signatures and semantics, forward and backward."""

from ._attention import scaled_dot_product_attention
from ._convert import from_torch, to_torch
from ._flex import create_block_mask, flex_attention
from ._patch import patch
from ._transformers import register_attention

__all__ = [
    "create_block_mask",
    "flex_attention",
    "from_torch",
    "patch",
    "register_attention",
    "scaled_dot_product_attention",
    "to_torch",
]
