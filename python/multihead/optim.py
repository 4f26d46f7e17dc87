"""Optimisers and learning-rate schedules."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from ._core import SGD, Adam, AdamW, Optimizer, learning_rate

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "Schedule", "learning_rate"]

_KINDS_WITH = {"final_ratio": ("linear", "cosine", "wsd"), "embed_dim": ("noam",), "decay_share": ("wsd",)}


@dataclass(frozen=True)
class Schedule:
    """A learning rate as a function of the step: optimizer.lr = schedule.at(step).

    kind: 'constant', 'linear', 'cosine', 'noam' or 'wsd' (constant until the last steps), after a linear warm-up.
    total_steps: where linear, cosine and wsd end, at final_ratio * lr; embed_dim: noam's; decay_share: wsd's last part.
    """

    kind: str = "constant"
    lr: float = 1e-3
    warmup_steps: int = 0
    total_steps: int = 0
    final_ratio: float = 0.0
    embed_dim: int = 0
    decay_share: float = 0.2

    def __post_init__(self) -> None:
        self.at(0)  # raises ValueError for fields that do not fit
        for field in fields(self):
            kinds = _KINDS_WITH.get(field.name)
            if kinds and self.kind not in kinds and getattr(self, field.name) != field.default:
                raise ValueError(f"schedule: {field.name} has no effect on {self.kind}, only on {', '.join(kinds)}")

    def at(self, step: int) -> float:
        """The rate of a step; steps count from 0."""
        return learning_rate(step, **asdict(self))
