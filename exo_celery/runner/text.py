"""Text to tokens and back: tokenizer, streaming detokenizer, and what finds calls of functions in an answer."""

import threading
from pathlib import Path
from typing import Any, Final

from mlx_lm.tokenizer_utils import NaiveStreamingDetokenizer, load

from exo_celery.errors import ContextLengthError, InvalidRequestError, ModelFolderError
from exo_celery.runner.calls import CallReader, Format
from exo_celery.runner.protocol import GenerateRequest
from exo_celery.runner.reply import Detokenizer
from exo_celery.runner.template import render

SAID_BEFORE: Final = "."


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

    def reader(self, name: str, request: GenerateRequest, prompt: tuple[int, ...]) -> CallReader | None:
        """Return what tells the calls in an answer from its text; None where nothing may be called."""
        if not request.tools:
            return None
        known = self._tokenizer
        marks = {"think_start": known.think_start or "", "think_end": known.think_end or ""}
        form = Format(known.tool_call_start, known.tool_call_end, known.tool_parser, **marks)
        thinking = known.has_thinking and known.rfind_think_start(prompt) > known.rfind_think_end(prompt)
        most = None if request.parallel_tool_calls else 1
        return CallReader(form, list(request.tools), name, thinking=thinking, most=most)

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
        if not all(0 <= token < self._vocabulary for token in request.logit_bias):
            raise InvalidRequestError(f"token ids of this model are 0 to {self._vocabulary - 1}", param="logit_bias")
        if not all(0 <= token < self._vocabulary for token in tokens):
            raise InvalidRequestError(f"token ids of this model are 0 to {self._vocabulary - 1}", param=param)
        if len(tokens) >= self.context_length:
            raise ContextLengthError(
                # In OpenAI's words, by which some clients know it.
                f"This model's maximum context length is {self.context_length} tokens, the prompt has {len(tokens)}: "
                "shorten it",
                param=param,
            )
        return tokens

    def _encode_text(self, request: GenerateRequest) -> tuple[int, ...]:
        text = request.prompt if isinstance(request.prompt, str) else render(self._tokenizer, request)
        begin = self._tokenizer.bos_token
        # A template writes its own beginning, a plain prompt may bring one.
        special = request.messages is None and (begin is None or not text.startswith(begin))
        with self._lock:
            return tuple(self._tokenizer.encode(text, add_special_tokens=special))


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
