"""Optimisers and learning-rate schedules."""

from ._core import SGD, Adam, AdamW, Optimizer, learning_rate

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "learning_rate"]
