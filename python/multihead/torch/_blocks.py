"""Checks the blocks of PyTorch's BlockMask against its function."""

import torch

_WHOLE = 1 << 30  # BLOCK_SIZE of a mask that stands for none
_EMPTY, _FULL = 0, 1  # of _core.ScoreProgram.block_classes


def _listed(counts, indices, columns):
    """True where a block is listed, (B, H, rows, columns)."""
    place = torch.arange(indices.shape[-1]).expand(indices.shape) < counts.unsqueeze(-1)
    listed = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool)  # the last column takes what is not meant
    listed.scatter_(-1, torch.where(place, indices.long(), columns), True)
    return listed[..., :columns]


def check_blocks(who, block_mask, program, query, checked):
    """The lengths of a BlockMask. Refuses one whose blocks disagree with its function.

    PyTorch's compiled attention skips unlisted blocks and runs full ones without the function; its eager attention uses
    only the function. Here they must agree.
    """
    rows, columns = block_mask.BLOCK_SIZE
    if rows == columns == _WHOLE:
        return None, None
    lengths = block_mask.seq_lengths
    batch, heads = query.size(0), query.size(1)
    names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    tensors = [getattr(block_mask, name) for name in names]
    versions = tuple(None if t is None or t.is_inference() else t._version for t in tensors)
    key = (batch, heads, program.fingerprint, lengths, rows, columns, versions)
    known = checked.get(block_mask)
    if known is not None and known[0] == key and all(a is b for a, b in zip(known[1], tensors)):
        return lengths
    across = -(-lengths[1] // columns)
    for name, got, size in zip(("B", "H"), block_mask.kv_indices.shape[-4:-2], (batch, heads)):
        if got not in (1, size):
            raise ValueError(f"{who}: block_mask was made for {name}={got}, got {size}")
    partial = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, across)
    full = torch.zeros_like(partial)
    if block_mask.full_kv_num_blocks is not None:
        full = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, across)
    classes = torch.from_dlpack(program.block_classes(batch, heads, *lengths, rows, columns))
    wrong = torch.where(partial | full, full & (classes != _FULL), classes != _EMPTY)
    if wrong.any():
        b, h, i, j = wrong.nonzero()[0].tolist()
        is_full = bool(full.expand_as(wrong)[b, h, i, j])
        said = "listed as full, but mask_mod excludes" if is_full else "not listed, but mask_mod allows"
        raise ValueError(
            f"{who}: block ({i}, {j}) of head {h} in sample {b} of block_mask is {said} pairs of it. PyTorch's eager "
            "attention would follow mask_mod, its compiled one the blocks: put the blocks into mask_mod, for example "
            "with blocks[q_idx // 128, kv_idx // 128]"
        )
    checked[block_mask] = key, tensors
    return lengths
