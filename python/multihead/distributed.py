"""The ranks of a job: the processes that mpirun or srun started together.

mpirun -n 4 python script.py: train_language_model(), train_classifier() and the rest train on all of them, with the
weights of one.
MPI is loaded only there, through a small plugin (docs/distributed.md). mpi4py may be used beside it; whoever initialises
MPI first finalises it.

ring_attention() is attention() on sequences of which each rank has a part (docs/ring-attention.md); run_local_group() runs
ranks as threads, where there is no mpirun.
"""

from __future__ import annotations

import atexit
import sys

from . import _core
from ._core import Group, SequenceShards, gather_rows, own_rows, ring_attention, run_local_group

_group = None


def group() -> Group:
    """All processes of the job as a Group with rank and size; a group of one without a launcher.

    Every rank has to call it once, or a function that trains. An uncaught exception ends the whole job.
    """
    global _group
    if _group is None:
        _group = _core.join_world()
        if _group.size > 1:
            _end_together()
    return _group


def _end_together():
    atexit.register(_core.leave_world)
    before = sys.excepthook

    def hook(kind, error, trace):
        before(kind, error, trace)
        sys.stderr.flush()
        _core.abort_world(1)

    sys.excepthook = hook


__all__ = ["Group", "SequenceShards", "gather_rows", "group", "own_rows", "ring_attention", "run_local_group"]
