"""How likely tokens were."""

from exo_celery.records.base import Record


class Candidate(Record):
    """A token, spelled, with its log probability."""

    token_id: int
    token: str
    logprob: float


class TokenLogprobs(Candidate):
    """A chosen token, with the likeliest at its place."""

    top: tuple[Candidate, ...] = ()
