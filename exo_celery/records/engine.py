"""What a ring's engine measures: of all requests together, never of one, and no text."""

from typing import Final

from pydantic import Field

from exo_celery.records.base import Record

# Upper bounds of the counts, in seconds: from a step of a small model to a long wait in line.
BOUNDS_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Durations(Record):
    """How often something took how long: counts between the bounds (the last one beyond them all), and the sum."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_SECONDS) + 1)
    sum_seconds: float = 0.0

    @property
    def count(self) -> int:
        """How many were measured."""
        return sum(self.counts)


class EngineFigures(Record):
    """What an engine does now (`running`, `waiting`, `lanes`, `tokens_per_second`), and has done since it is ready.

    `rows` are tokens that steps computed, so rows / steps is the mean batch. `requests` are ended ones by how they
    ended. `cached_tokens` of the `prompt_tokens` were known from earlier prompts, in `cache_hits` requests.
    """

    running: int = 0
    waiting: int = 0
    lanes: int = 0
    tokens_per_second: float = 0.0
    requests: dict[str, int] = Field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_hits: int = 0
    steps: int = 0
    rows: int = 0
    queue_seconds: Durations = Durations()
    first_token_seconds: Durations = Durations()
    inter_token_seconds: Durations = Durations()
