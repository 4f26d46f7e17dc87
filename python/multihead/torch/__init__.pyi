from contextlib import AbstractContextManager
from typing import Any, Sequence

from torch import Tensor

from .._types import Function

class BlockMask: ...

class Patch:
    """Calls that each side handled; print() it."""

def create_block_mask(
    mask_mod: Function,
    B: int | None = None,
    H: int | None = None,
    Q_LEN: int | None = None,
    KV_LEN: int | None = None,
    device: Any = "cpu",
    BLOCK_SIZE: Any = None,
    _compile: Any = None,
    separate_full_blocks: bool = True,
) -> BlockMask: ...
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Function | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any: ...
def from_torch(module: Any) -> Any: ...
def patch(*, always: bool = False) -> AbstractContextManager[Patch]: ...
def register_attention(
    name: str = "multihead", *, heads: Sequence[int] | None = None, query_rows: Sequence[int] | None = None
) -> Any: ...
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor: ...
def to_torch(source: Any, module: Any = None) -> Any: ...
