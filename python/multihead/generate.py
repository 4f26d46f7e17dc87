"""Text in, text out: a language model with its tokenizer."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence, overload

from ._core import LanguageModel, TextStream, Tokenizer, generation_defaults, load_with_tokenizer, turn_ends
from ._types import PathLike

__all__ = ["TextGenerator"]


class TextGenerator:
    """A language model's folder or .gguf file, from text to text. Nothing is downloaded.

    `model` and `tokenizer` are the parts. What the folder's generation_config.json says holds unless a call says
    otherwise; its stop_strings end a text besides a call's. weights: 'int8', 'q8', 'q5' or 'q4' for less memory and time, as LanguageModel.load() takes them.
    """

    model: LanguageModel
    tokenizer: Tokenizer

    def __init__(self, folder: PathLike, *, weights: str | None = None) -> None:
        self.model, self.tokenizer = load_with_tokenizer(folder, weights)
        self._folder = folder
        self._defaults = generation_defaults(folder)
        if not self._defaults.get("stop_tokens") and self.tokenizer.eos_id is not None:
            self._defaults["stop_tokens"] = [self.tokenizer.eos_id]

    @overload
    def generate(
        self, prompt: str, *, max_new_tokens: int = ..., temperature: float | None = ..., top_k: int | None = ...,
        top_p: float | None = ..., seed: int = ..., stop_strings: Sequence[str] = ..., overflow: str = ...,
        on_text: Callable[[str], Any] | None = ...,
    ) -> str: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: Sequence[str], *, max_new_tokens: int = ..., temperature: float | None = ...,
        top_k: int | None = ..., top_p: float | None = ..., seed: int = ..., stop_strings: Sequence[str] = ...,
        overflow: str = ...,
    ) -> list[str]: ...  # fmt: skip
    def generate(
        self,
        prompt: str | Sequence[str],
        *,
        max_new_tokens: int = 100,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop_strings: Sequence[str] = (),
        overflow: str = "slide",
        on_text: Callable[[str], Any] | None = None,
    ) -> str | list[str]:
        """What the model writes after the prompt, or after each of several; temperature 0 takes the likeliest token.

        on_text, for one prompt, is called with each piece of text as it comes. overflow: a prompt or an answer that
        the model's context does not hold goes on from the last half of it ('slide') or is a ValueError ('error').
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        if on_text is not None and not isinstance(prompt, str):
            raise ValueError("TextGenerator.generate: on_text takes one prompt, a str")
        ids = [self.tokenizer.encode(text) for text in prompts]
        options = self._options(max_new_tokens, temperature, top_k, top_p, seed, stop_strings, overflow)
        texts = self._write(ids, options, on_text)
        return texts[0] if isinstance(prompt, str) else texts

    def chat(
        self,
        messages: Sequence[Mapping[str, str]] | str,
        *,
        max_new_tokens: int = 200,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop_strings: Sequence[str] = (),
        overflow: str = "slide",
        on_text: Callable[[str], Any] | None = None,
    ) -> str:
        """The answer to a conversation, [{"role": "user", "content": "..."}, ...], by the model's chat template.

        A str is one message of the user. The answer ends where the template ends a turn.
        """
        if not self.tokenizer.chat_template:
            raise ValueError(
                "TextGenerator.chat: the model has no chat template; generate(text) continues a text, and models for "
                "conversations (their names often end in Instruct or Chat) have one"
            )
        talk = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        ids = self.tokenizer.apply_chat_template(talk, add_generation_prompt=True)
        options = self._options(max_new_tokens, temperature, top_k, top_p, seed, stop_strings, overflow)
        options["stop_tokens"] = [*options.get("stop_tokens", []), *turn_ends(self.tokenizer)]
        return self._write([ids], options, on_text)[0]

    def _options(
        self, max_new_tokens: int, temperature: float | None, top_k: int | None, top_p: float | None, seed: int,
        stop_strings: Sequence[str], overflow: str,
    ) -> dict[str, Any]:  # fmt: skip
        if isinstance(stop_strings, str):  # a sequence of its letters
            raise TypeError(f"TextGenerator: stop_strings must be a list, got the str {stop_strings!r}; put it into one")
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        options = {**self._defaults, **{name: value for name, value in given.items() if value is not None}}
        options.update(max_new_tokens=max_new_tokens, seed=seed, overflow=overflow, tokenizer=self.tokenizer)
        options["stop_strings"] = [*stop_strings, *options.get("stop_strings", [])]
        return options

    def _write(self, ids: list[list[int]], options: dict[str, Any], on_text: Callable[[str], Any] | None) -> list[str]:
        if on_text is None:
            rows = self.model.generate(ids, **options)
        else:
            ends, answers = set(options.get("stop_tokens", [])), [None]
            stream = TextStream(lambda piece: answers.append(on_text(piece)), self.tokenizer)

            def on_token(row: int, token: int) -> Any:
                if token not in ends:
                    stream.write(token)
                return answers[-1]

            rows = self.model.generate(ids, on_token=on_token, **options)
            stream.finish()
        return [self.tokenizer.decode(row, skip_special=True, continued=True) for row in rows]

    def __repr__(self) -> str:
        packed = self.model.packed_dtype
        weights = f"matrices packed as {packed}" if packed else f"{self.model.parameter_count():,} parameters"
        return f"TextGenerator({weights}, {self.tokenizer.vocab_size:,} tokens)"
