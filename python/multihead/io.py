"""Named tensors in safetensors and GGUF files, and checkpoints of training runs."""

from ._core import (
    list_checkpoints, load_checkpoint, load_gguf, load_safetensors, newest_checkpoint, prune_checkpoints,
    save_checkpoint, save_safetensors, verify_checkpoint,
)  # fmt: skip

__all__ = [
    "list_checkpoints", "load_checkpoint", "load_gguf", "load_safetensors", "newest_checkpoint", "prune_checkpoints",
    "save_checkpoint", "save_safetensors", "verify_checkpoint",
]  # fmt: skip
