"""What the ranks of a ring say to each other: one step at a time, decided by rank 0, the same on every rank.

The order of the stream is the lockstep: each rank applies each step once, in order; nothing is polled or agreed upon.
"""

from pydantic import Field

from exo_celery.records.base import Record


class Sampling(Record):
    """How a row's tokens are chosen. Temperature 0 takes the likeliest; `logprobs` asks for that many alternatives."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = Field(default_factory=dict)
    logprobs: int | None = None
    seed: int = 0

    @property
    def changes_logits(self) -> bool:
        """Say whether what was generated before, or a bias, changes the logits."""
        penalties = self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1
        return any(penalties) or bool(self.logit_bias)


class Admission(Record):
    """A new row: its prompt, how to sample, and the entry that holds the cache of its first `reused` tokens."""

    row: int
    tokens: tuple[int, ...] = Field(min_length=1)
    sampling: Sampling = Sampling()
    entry: int | None = None
    reused: int = 0


class Keep(Record):
    """Keep a live row's cache, which holds `count` tokens by now, as an entry for later prompts."""

    row: int
    entry: int
    count: int


class Chunk(Record):
    """A piece of prefill: the next `count` prompt tokens of one row, or all that several rows need, at most `count`.

    Rows that it `completes` go live with it, behind those that are: their first tokens are sampled.
    """

    rows: tuple[int, ...] = Field(min_length=1)
    count: int = Field(ge=1)
    completes: bool = False

    @property
    def size(self) -> int:
        """How many tokens are computed, padding included."""
        return self.count * len(self.rows)


class Step(Record):
    """One step, in this order: keep caches, drop rows, admit rows, forget entries, then prefill or decode.

    `tokens` are the latest tokens of all live rows, in their order: the next ones are sampled. With none, and where
    there is a chunk, live rows rest.
    """

    keep: tuple[Keep, ...] = ()
    drop: tuple[int, ...] = ()
    admit: tuple[Admission, ...] = ()
    forget: tuple[int, ...] = ()
    prefill: Chunk | None = None
    tokens: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """How many tokens of a sequence are computed one after another, at most."""
        return self.prefill.size if self.prefill else 1

    @property
    def samples(self) -> bool:
        """Say whether the last rank has choices to tell."""
        return self.prefill.completes if self.prefill else bool(self.tokens)


class Choice(Record):
    """A chosen token; where asked for, its log probability and the likeliest others (token, log probability)."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampled(Record):
    """What the last rank answers: a choice for each row that the chunk completed, or else for each live row."""

    choices: tuple[Choice, ...]
