"""Models behind HTTP, answered in threads of this process."""

from __future__ import annotations

import os
import weakref
from typing import Any, Mapping, Sequence, Union

from ._core import HttpServer, LanguageModel, TextClassifier, Tokenizer
from ._types import DTypeLike, PathLike
from .embed import CrossEncoder, SentenceEncoder
from .generate import TextGenerator

__all__ = ["Server"]

Servable = Union[PathLike, TextGenerator, "tuple[LanguageModel, Tokenizer]", SentenceEncoder, CrossEncoder, TextClassifier]

_SOCKETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "multihead_sockets.so")


class Server:
    """Answers what `multihead serve` answers, on a port of this machine, until stop() or the end of a with block.

    models: a model's folder or .gguf file, several of them, or a dict of names and models. What a dict holds may be
    in memory: a TextGenerator, a LanguageModel with its Tokenizer, a SentenceEncoder, a CrossEncoder, a
    TextClassifier. Those share their weights with the server: do not change them while it runs. weights: what
    folders and files are packed as. port 0 picks a free one. The other options are the command's (docs/serving.md).
    """

    def __init__(self, models: PathLike | Sequence[PathLike] | Mapping[str, Servable], *, host: str = "127.0.0.1", port: int = 0, weights: str | None = None,
                 parallel: int = 8, context: int = 0, cache_dtype: DTypeLike | None = None, cache_bytes: int = 512 << 20, prompt_chunk: int = 512,
                 timeout: float = 600, max_queue: int = 256, max_body_bytes: int = 8 << 20, max_inputs: int = 2048, max_tokens: int = 0,
                 max_connections: int = 1024, api_keys: Sequence[str] = (), allow_hosts: Sequence[str] = ()) -> None:
        named = _named(models)
        for name, given in {"api_keys": api_keys, "allow_hosts": allow_hosts}.items():
            if isinstance(given, (str, bytes)):  # a sequence of its letters
                raise TypeError(f"Server: {name} must be a list, got one {type(given).__name__}; put it into one")
        if not 0 <= port <= 65535:
            raise ValueError(f"Server: port must be 0 to 65535, got {port}")
        for name, least in {"parallel": parallel, "prompt_chunk": prompt_chunk, "max_queue": max_queue, "max_body_bytes": max_body_bytes,
                            "max_inputs": max_inputs, "max_connections": max_connections}.items():
            if least < 1:
                raise ValueError(f"Server: {name} must be positive, got {least}")
        for name, least in {"cache_bytes": cache_bytes, "max_tokens": max_tokens}.items():
            if least < 0:
                raise ValueError(f"Server: {name} must not be negative, got {least}")
        if not timeout > 0:
            raise ValueError(f"Server: timeout must be positive, got {timeout}")
        if not os.path.exists(_SOCKETS):
            raise RuntimeError("Server: this build of multihead has no sockets: libevent was not there when it was built "
                               "(Debian: apt install libevent-dev pkg-config, then install multihead again)")
        self.host, self.models = host, list(named)
        self._server = HttpServer(
            _SOCKETS, list(named.items()), host=host, port=port, weights=weights, parallel=parallel, context=context,
            cache_dtype=cache_dtype, cache_bytes=cache_bytes, prompt_chunk=prompt_chunk, timeout=timeout, max_queue=max_queue,
            max_body_bytes=max_body_bytes, max_inputs=max_inputs, max_tokens=max_tokens, max_connections=max_connections,
            api_keys=list(api_keys), allow_hosts=list(allow_hosts))
        weakref.finalize(self, self._server.stop, 0)  # before the interpreter ends

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def url(self) -> str:
        """Where clients find it; OpenAI's want url + "/v1"."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._server.is_running

    def stop(self, seconds: float = 10) -> None:
        """Accepts nothing more; answers that have begun get so many seconds. Again: nothing."""
        self._server.stop(seconds)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Server({self.url}, {', '.join(self.models)}{'' if self.is_running else ', stopped'})"


def _named(models: Any) -> dict[str, Any]:
    """Each model as the extension takes it, by its name."""
    if isinstance(models, Mapping):
        named = {str(name): _servable(str(name), model) for name, model in models.items()}
    else:
        paths = [models] if isinstance(models, (str, bytes, os.PathLike)) else list(models)
        named = {}
        for path in paths:
            if not isinstance(path, (str, bytes, os.PathLike)):
                raise TypeError(f'Server: a {type(path).__name__} needs a name: {{"name": model}}')
            name = _name_of(path)
            if name in named:
                raise ValueError(f'Server: two models are called {name!r}; name them: {{"name": path}}')
            named[name] = path
    if not named:
        raise ValueError("Server: there is no model")
    return named


def _name_of(path: Any) -> str:
    """The last part of a path, as the command names models."""
    name = os.path.basename(os.path.abspath(os.fsdecode(path)))
    return name[:-len(".gguf")] if name.endswith(".gguf") else name


def _servable(name: str, model: Any) -> Any:
    if isinstance(model, (str, bytes, os.PathLike, TextClassifier)):
        return model
    if isinstance(model, TextGenerator):
        return model.model, model.tokenizer, model._folder
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], LanguageModel) and isinstance(model[1], Tokenizer):
        return (*model, None)
    if isinstance(model, SentenceEncoder):
        own = model._encoder
        for option, changed in {"precision": model.precision != "f32", "truncate_dim": (model.truncate_dim or 0) != own.truncate_dim,
                                "prompts": model.prompts != own.prompts,
                                "default_prompt_name": (model.default_prompt_name or "") != own.default_prompt_name}.items():
            if changed:
                raise ValueError(f"Server: {name}: a SentenceEncoder with {option} of its own would answer otherwise than its "
                                 f"encode(); leave {option} to the folder")
        return own
    if isinstance(model, CrossEncoder):
        if model.activation_fn is not None or model.max_length != min(model._classifier.max_length, model.model.config.context):
            raise ValueError(f"Server: {name}: a CrossEncoder with activation_fn or max_length of its own would answer otherwise "
                             "than its predict(); leave both to the folder")
        return model._classifier
    raise TypeError(f"Server: {name} must be a path, TextGenerator, (LanguageModel, Tokenizer), SentenceEncoder, CrossEncoder or "
                    f"TextClassifier, got {type(model).__name__}")
