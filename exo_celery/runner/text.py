"""Text to tokens and back: tokenizer, chat template, streaming detokenizer.

Chat templates are foreign code. transformers renders them in Jinja's immutable sandbox; we limit their time.
"""

import threading
from pathlib import Path
from typing import Any, Final

import jinja2
from mlx_lm.tokenizer_utils import NaiveStreamingDetokenizer, load

from exo_celery.errors import ContextLengthError, InvalidRequestError, ModelFolderError, TemplateError
from exo_celery.runner.patience import OutOfTimeError, time_limit
from exo_celery.runner.protocol import GenerateRequest
from exo_celery.runner.reply import Detokenizer

TEMPLATE_SECONDS: Final = 5.0
SAID_BEFORE: Final = "."
# What foreign template code can raise on messages it was not made for.
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class Text:
    """A model's tokenizer with its limits. May be used by several threads."""

    def __init__(self, model_dir: Path, config: dict[str, Any], context_length: int) -> None:
        """Read the tokenizer's files.

        Raises:
            ModelFolderError: they are missing or broken.
        """
        try:
            self._tokenizer = load(model_dir, eos_token_ids=config.get("eos_token_id"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelFolderError(f"the tokenizer of {model_dir.name} cannot be read: {error}") from error
        self._vocabulary = int(config.get("vocab_size") or len(self._tokenizer))
        self._lock = threading.Lock()
        self.context_length = context_length
        self.end_tokens = frozenset(self._tokenizer.eos_token_ids)

    def detokenizer(self) -> Detokenizer:
        """Return a fresh streaming detokenizer."""
        fresh: Detokenizer = self._tokenizer.detokenizer
        return fresh

    def going_on(self) -> "Continuation":
        """Return what spells text that goes on where a plain prompt ended."""
        return Continuation(self)

    def spell(self, token: int) -> str:
        """Return the text of a single token."""
        with self._lock:
            return str(self._tokenizer.decode([token]))

    def encode(self, request: GenerateRequest) -> tuple[int, ...]:
        """Return a request's prompt tokens.

        Raises:
            TemplateError: the chat template refused the messages, or there is none.
            InvalidRequestError: the prompt is empty or holds tokens the model does not have.
            ContextLengthError: the prompt leaves no room for an answer.
        """
        tokens = request.prompt if isinstance(request.prompt, tuple) else self._encode_text(request)
        param = "prompt" if request.messages is None else "messages"
        if not tokens:
            raise InvalidRequestError("the prompt is empty: send at least one token", param=param)
        if not all(0 <= token < self._vocabulary for token in tokens):
            raise InvalidRequestError(f"token ids of this model are 0 to {self._vocabulary - 1}", param=param)
        if len(tokens) >= self.context_length:
            raise ContextLengthError(
                f"the prompt has {len(tokens)} tokens, this model's context is {self.context_length}: shorten it",
                param=param,
            )
        return tokens

    def _encode_text(self, request: GenerateRequest) -> tuple[int, ...]:
        text = request.prompt if isinstance(request.prompt, str) else self._render(request.messages or ())
        begin = self._tokenizer.bos_token
        # A template writes its own beginning, a plain prompt may bring one.
        special = request.messages is None and (begin is None or not text.startswith(begin))
        with self._lock:
            return tuple(self._tokenizer.encode(text, add_special_tokens=special))

    def _render(self, messages: tuple[dict[str, Any], ...]) -> str:
        if not self._tokenizer.has_chat_template:
            raise TemplateError("this model has no chat template: send a prompt instead of messages")
        turns = [normalized(message) for message in messages]
        try:
            with time_limit(TEMPLATE_SECONDS):
                rendered = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except OutOfTimeError as error:
            raise TemplateError(
                f"the model's chat template took longer than {TEMPLATE_SECONDS:.0f} s: send a plain prompt",
                param="messages",
            ) from error
        except TEMPLATE_ERRORS as error:
            raise TemplateError(f"the model's chat template refused the messages: {error}", param="messages") from error
        return str(rendered)


class Continuation:
    """Spells as the text does, but keeps the space before the first word: "Once upon" goes on with " a time"."""

    def __init__(self, text: Text) -> None:
        self.spell = text.spell
        self._text = text

    def detokenizer(self) -> Detokenizer:
        """Return a fresh streaming detokenizer that takes something for said already, so that it trims nothing."""
        fresh: Any = self._text.detokenizer()
        if not isinstance(fresh, NaiveStreamingDetokenizer):  # that one never trims
            fresh.text, fresh.offset = SAID_BEFORE, len(SAID_BEFORE)
        kept: Detokenizer = fresh
        return kept


def normalized(message: dict[str, Any]) -> dict[str, Any]:
    """Return a chat message as templates expect it: plain text, and no role that only OpenAI knows.

    Raises:
        InvalidRequestError: the content holds parts other than text.
    """
    content = message.get("content")
    if isinstance(content, list):
        if any(part.get("type") != "text" for part in content):
            raise InvalidRequestError("this model reads text only: send parts of type text", param="messages")
        content = "".join(str(part.get("text", "")) for part in content)
    role = "system" if message.get("role") == "developer" else message.get("role")
    kept = {key: value for key, value in message.items() if value is not None}
    return kept | {"role": role, "content": content or ""}
