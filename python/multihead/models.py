"""Language models in Hugging Face layout."""

from ._core import LanguageModel, LanguageModelConfig, language_model_preset

__all__ = ["LanguageModel", "LanguageModelConfig", "language_model_preset"]
