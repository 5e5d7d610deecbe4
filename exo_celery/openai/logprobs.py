"""How likely tokens were, in the two shapes that OpenAI has for it."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from exo_celery.records.base import Record
from exo_celery.records.logprobs import Candidate, TokenLogprobs

HALF: Final = "\N{REPLACEMENT CHARACTER}"


class TokenShown(Record):
    """A token; `bytes` are its UTF-8, null for a token that is half a character."""

    token: str
    logprob: float
    bytes: list[int] | None

    @classmethod
    def facts(cls, one: Candidate) -> dict[str, object]:
        """Return what is shown of any token."""
        whole = None if HALF in one.token else list(one.token.encode())
        return {"token": one.token, "logprob": one.logprob, "bytes": whole}


class ChosenToken(TokenShown):
    """A token of the answer, and the likeliest at its place."""

    top_logprobs: list[TokenShown]


class ChatLogprobs(Record):
    """Those of a chat, token by token."""

    content: list[ChosenToken]
    refusal: None = None

    @classmethod
    def of(cls, tokens: Sequence[TokenLogprobs]) -> "ChatLogprobs | None":
        """Show tokens; None when nobody asked for it."""
        chosen = [
            ChosenToken.model_validate(
                TokenShown.facts(one) | {"top_logprobs": [TokenShown.facts(other) for other in one.top]}
            )
            for one in tokens
        ]
        return cls(content=chosen) if chosen else None


class TextLogprobs(Record):
    """Those of a completion, a list for each fact; `text_offset` is where a token begins in the answer."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]

    @classmethod
    def of(cls, tokens: Sequence[TokenLogprobs], offset: int = 0) -> "TextLogprobs | None":
        """Show tokens, the first of which begins at `offset`; None when nobody asked for it."""
        offsets = accumulate((len(one.token) for one in tokens), initial=offset)
        return (
            cls(
                tokens=[one.token for one in tokens],
                token_logprobs=[one.logprob for one in tokens],
                top_logprobs=[{other.token: other.logprob for other in one.top} for one in tokens],
                text_offset=list(offsets)[: len(tokens)],
            )
            if tokens
            else None
        )
