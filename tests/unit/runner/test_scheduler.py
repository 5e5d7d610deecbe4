"""The scheduler against a ring that is played by the test: rows as the executor keeps them, tokens counted up."""

from typing import Any

import pytest

from exo_celery.runner.prefix import PrefixIndex
from exo_celery.runner.protocol import Delta, Event, Finished, Started
from exo_celery.runner.reply import Reply
from exo_celery.runner.scheduler import COMPANY, FULL_CHUNK, LEAST_CHUNK, STALL_SECONDS, Scheduler
from exo_celery.runner.step import Choice, Chunk, Sampling, Step

END = 0
STEP_SECONDS = 0.1  # without prefill


class Letters:
    """A detokenizer in which every token is a letter."""

    def __init__(self) -> None:
        self.last_segment = ""

    def add_token(self, token: int) -> None:
        self.last_segment = chr(ord("a") + token % 26)

    def finalize(self) -> None:
        self.last_segment = ""


class Alphabet:
    """A tokenizer whose tokens are letters."""

    def detokenizer(self) -> Letters:
        return Letters()

    def spell(self, token: int) -> str:
        return chr(ord("a") + token % 26)


class Play:
    """Requests, the scheduler, and the rows of a ring that obeys it."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(PrefixIndex(1000, 32, exact=False))
        self.entries: dict[int, int] = {}
        self.rows: list[int] = []
        self.waiting: dict[int, int] = {}
        self.heard: list[Event] = []
        self.ended: list[Reply] = []
        self.steps: list[Step] = []

    def submit(self, name: str, prompt: int = 3, **options: Any) -> Reply:
        reply = Reply(
            name,
            tuple(range(1, prompt + 1)),
            Sampling(),
            max_tokens=options.get("max_tokens", 5),
            stops=options.get("stops", ()),
            end_tokens=frozenset({END}),
            speller=Alphabet(),
            emit=self.heard.append,
            on_finish=self.ended.append,
            priority=options.get("priority", 0),
        )
        self.scheduler.submit(reply)
        return reply

    def step(self, token: int | None = None, seconds: float = 0.1) -> Step:
        """Run one step as the executors do; every row's next token is `token`, or 1. Prefill takes `seconds`."""
        step = self.scheduler.next_step()
        self.steps.append(step)
        self.obey(step)
        sampled = self.rows
        if step.prefill:
            sampled = self.prefill(step.prefill)
        self.scheduler.note(step, seconds if step.prefill else STEP_SECONDS)
        if step.samples:
            self.scheduler.take([Choice(token=1 if token is None else token)] * len(sampled))
        return step

    def prefill(self, chunk: Chunk) -> list[int]:
        """Prefill; return the rows that are whole and go live."""
        for row in chunk.rows:
            self.waiting[row] -= min(chunk.count, self.waiting[row])
        assert chunk.completes == all(self.waiting[row] == 0 for row in chunk.rows)
        joined = [row for row in chunk.rows if not self.waiting[row]]
        for row in joined:
            del self.waiting[row]
        self.rows += joined
        return joined

    def obey(self, step: Step) -> None:
        """Keep, drop, admit and forget."""
        for keep in step.keep:
            assert keep.row in self.rows
            self.entries[keep.entry] = keep.count
        self.rows = [row for row in self.rows if row not in step.drop]
        for row in step.drop:
            self.waiting.pop(row, None)
        assert len(step.tokens) == (0 if step.prefill else len(self.rows))
        for admission in step.admit:
            assert admission.reused <= self.entries.get(admission.entry or 0, 0)
            self.waiting[admission.row] = len(admission.tokens) - admission.reused
        for entry in step.forget:
            del self.entries[entry]

    def run(self) -> None:
        while not self.scheduler.idle:
            self.step()
            assert len(self.steps) < 1000

    def finished(self) -> dict[str, Finished]:
        return {event.id: event for event in self.heard if isinstance(event, Finished)}


def test_a_request_is_prefilled_decoded_and_dropped() -> None:
    play = Play()
    play.submit("a", prompt=3, max_tokens=2)
    first, second, third = play.step(), play.step(), play.step()
    assert [admission.tokens for admission in first.admit] == [(1, 2, 3)]
    assert first.prefill is not None
    assert (first.prefill.rows, first.prefill.count, first.tokens) == ((0,), 3, ())
    assert (second.prefill, second.tokens) == (None, (1,))
    assert third == Step(drop=(0,))
    assert play.scheduler.idle
    assert [type(event) for event in play.heard] == [Started, Delta, Delta, Finished]
    done = play.finished()["a"]
    assert (done.finish_reason, done.text, done.usage.completion_tokens) == ("length", "bb", 2)


def test_the_first_token_comes_from_the_prefill() -> None:
    play = Play()
    play.submit("a", prompt=1, max_tokens=1)
    assert play.step().prefill == Chunk(rows=(0,), count=1, completes=True)
    assert play.finished()["a"].usage.completion_tokens == 1


def test_the_end_token_is_not_part_of_the_answer() -> None:
    play = Play()
    play.submit("a")
    play.step()
    play.step(END)
    done = play.finished()["a"]
    assert (done.finish_reason, done.text, done.usage.completion_tokens) == ("stop", "b", 1)


def test_a_stop_string_is_cut_off() -> None:
    play = Play()
    play.submit("a", stops=("bc",), max_tokens=9)
    for token in (1, 1, 2):
        play.step(token)
    assert (play.finished()["a"].finish_reason, play.finished()["a"].text) == ("stop", "b")


def test_a_held_beginning_of_a_stop_is_said_at_the_end() -> None:
    play = Play()
    play.submit("a", stops=("bc",), max_tokens=2)
    play.step(3)
    play.step(1)
    assert (play.finished()["a"].finish_reason, play.finished()["a"].text) == ("length", "db")


@pytest.mark.parametrize("when", [0, 1, 2, 3])
def test_cancel_frees_the_row_in_the_next_step(when: int) -> None:
    play = Play()
    victim = play.submit("a", prompt=2 * FULL_CHUNK, max_tokens=50)
    for _ in range(when):
        play.step()
    play.scheduler.cancel(victim)
    play.scheduler.cancel(victim)
    assert play.finished()["a"].finish_reason == "cancelled"
    assert play.ended == [victim]
    assert when == 0 or play.step() == Step(drop=(0,))
    assert play.scheduler.idle
    assert play.rows == []
    assert play.waiting == {}


def test_a_long_prompt_is_prefilled_in_small_chunks_between_the_tokens_of_running_streams() -> None:
    play = Play()
    play.submit("a", prompt=2, max_tokens=100)
    play.step()
    play.submit("b", prompt=100, max_tokens=1)
    while "b" not in play.finished():
        play.step(seconds=2 * STALL_SECONDS)
    chunks = [step.prefill.count if step.prefill else None for step in play.steps[1:]]
    assert chunks == [LEAST_CHUNK, None, LEAST_CHUNK, None, LEAST_CHUNK, None, 100 - 3 * LEAST_CHUNK]


def test_prefill_goes_on_until_running_streams_have_waited_long_enough() -> None:
    play = Play()
    play.submit("a", prompt=2, max_tokens=100)
    play.step()
    for number in range(9):
        play.submit(str(number), prompt=COMPANY)
    kinds = []
    for _ in range(8):
        kinds.append(play.step(seconds=STALL_SECONDS / 4).prefill is not None)
    # The first ones are small, since the speed is not known; each takes a quarter of the time here.
    assert kinds == [True, True, True, True, False, True, True, True]


def test_nobody_waits_before_the_first_token() -> None:
    play = Play()
    play.submit("a", prompt=2, max_tokens=100)
    play.step(seconds=9 * STALL_SECONDS)
    play.submit("b", prompt=2, max_tokens=100)
    assert play.step().prefill is not None


def test_chunks_follow_the_measured_speed() -> None:
    play = Play()
    play.submit("a", prompt=100, max_tokens=100)
    play.step(seconds=STALL_SECONDS)
    play.submit("b", prompt=400)
    chunk = play.step().prefill
    assert chunk is not None
    assert chunk.count == 100


def test_slow_steps_let_prefill_take_longer() -> None:
    play = Play()
    play.submit("a", prompt=100, max_tokens=100)
    play.step(seconds=STALL_SECONDS)
    play.scheduler.note(play.scheduler.next_step(), 10 * STALL_SECONDS)
    play.submit("b", prompt=400)
    chunk = play.scheduler.next_step().prefill
    assert chunk is not None
    assert chunk.count == 300  # the first 100 are known


def test_short_prompts_are_prefilled_together_but_not_too_many() -> None:
    play = Play()
    for number in range(8):
        play.submit(str(number), prompt=31 - number)
    chunk = play.step().prefill
    assert chunk is not None
    assert (len(chunk.rows), chunk.count) == (5, 31)
    assert chunk.size <= COMPANY
    assert play.step().prefill is not None  # the others, before anybody's second token


def test_rows_keep_their_tokens_when_others_leave() -> None:
    play = Play()
    play.submit("a", prompt=1, max_tokens=1)
    b = play.submit("b", prompt=1, max_tokens=9)
    play.step(5)
    assert play.step(6).tokens == (5,)
    play.submit("c", prompt=1, max_tokens=9)
    play.step(7)
    assert play.step(8).tokens == (6, 7)
    play.scheduler.cancel(b)
    assert play.step(9).tokens == (8,)


def test_a_prompt_that_was_seen_is_not_computed_again() -> None:
    play = Play()
    play.submit("a", prompt=100, max_tokens=3)
    play.run()
    again = play.submit("b", prompt=100, max_tokens=3)
    first = play.step()
    assert first.admit[0].reused == 99
    assert first.prefill == Chunk(rows=(1,), count=1, completes=True)
    assert [event.cached_tokens for event in play.heard if isinstance(event, Started)] == [0, 99]
    play.scheduler.cancel(again)
    play.run()


def test_the_next_turn_of_a_chat_reuses_the_answer_too() -> None:
    play = Play()
    play.submit("a", prompt=60, max_tokens=10)
    play.run()
    turn = Reply(
        "b",
        tuple(range(1, 61)) + (1,) * 9 + (77, 78),
        Sampling(),
        max_tokens=1,
        stops=(),
        end_tokens=frozenset({END}),
        speller=Alphabet(),
        emit=play.heard.append,
        on_finish=play.ended.append,
    )
    play.scheduler.submit(turn)
    step = play.step()
    assert step.admit[0].reused == 60 + 9
    assert step.prefill is not None
    assert step.prefill.count == 2


def test_a_row_beside_it_can_reuse_a_prompt_while_it_still_runs() -> None:
    play = Play()
    play.submit("a", prompt=80, max_tokens=100)
    play.step()
    play.step()
    play.submit("b", prompt=80, max_tokens=1)
    assert play.step().admit[0].reused == 79


def test_a_chat_goes_before_the_prompts_of_a_batch_even_begun_ones() -> None:
    play = Play()
    play.submit("line", prompt=3 * FULL_CHUNK, priority=9)
    assert play.step().prefill == Chunk(rows=(0,), count=FULL_CHUNK)
    play.submit("other line", prompt=FULL_CHUNK, priority=9)
    play.submit("chat", prompt=FULL_CHUNK)
    assert play.step().prefill == Chunk(rows=(2,), count=FULL_CHUNK, completes=True)
    play.run()
    assert {name: len(one.text) for name, one in play.finished().items()} == {"line": 5, "other line": 5, "chat": 5}
    order = [event.id for event in play.heard if isinstance(event, Delta)]
    assert order.index("chat") < order.index("line") < order.index("other line")
